"""TensorRT-Edge-LLM's vectors: how layers are routed, where rows go, at which length a system
prompt is reused, whole lives.
"""
