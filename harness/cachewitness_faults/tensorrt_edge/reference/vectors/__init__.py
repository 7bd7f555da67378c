"""The questions that TensorRT-Edge-LLM is asked for test vectors."""
