"""TensorRT-Edge-LLM."""
