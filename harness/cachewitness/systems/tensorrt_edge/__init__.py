"""The policy `tensorrt_edge`: the adapter, options and faults of the executable specification of
TensorRT-Edge-LLM's cache manager.
"""
