"""The installed SGLang's own radix cache, allocators and request records, driven in process."""
