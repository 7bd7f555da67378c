"""vLLM's vectors: how a cache manager of vLLM's shape answers them.

The reference and the installed vLLM are asked through the same calls: an engine is opened as for a
trace, and what its own classes say is read (`answers`). So a fault planted into the reference shows
in these vectors too, where it lies in their way.
"""
