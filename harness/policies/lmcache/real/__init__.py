"""The installed LMCache as the second tier of vLLM's reference: its own look-up, store and retrieve, in process, on a CPU."""
