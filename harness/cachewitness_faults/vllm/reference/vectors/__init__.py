"""The questions that vLLM is asked for test vectors."""
