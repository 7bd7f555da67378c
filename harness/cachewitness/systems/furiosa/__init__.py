"""The policy `furiosa`: the adapter, options and faults of the executable specification of
Furiosa-LLM's cache.
"""
