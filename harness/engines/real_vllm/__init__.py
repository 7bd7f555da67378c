"""The engine `vllm`: the installed vLLM's own cache manager, in process on CPU."""
