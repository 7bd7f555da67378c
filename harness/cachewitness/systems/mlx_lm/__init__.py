"""The engine `mlx-lm`: the installed mlx-lm's continuous batching and its prompt cache, on tiny
models, on a CPU.

A loop does with the library's `BatchGenerator` and `LRUPromptCache` what its server does
(mlx_lm/server.py, `_generate`). It tells no pages, so it runs at answers level (docs/answers.md).
"""
