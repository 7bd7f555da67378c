"""The installed exllamav3's own generator, page table and recurrent cache, driven in process."""
