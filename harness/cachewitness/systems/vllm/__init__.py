"""The engine `vllm`: the installed vLLM's own cache manager, on CPU."""
