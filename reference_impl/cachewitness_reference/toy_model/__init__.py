"""A small hybrid language model in plain PyTorch, with its caches in the open.

`dense` is the model without a cache, `paged` the same model reading and writing only through block
tables and state pages that a cache policy hands it. Layers are functions over a mapping of
parameters, named as in a Hugging Face checkpoint.
"""
