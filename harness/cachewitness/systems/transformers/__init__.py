"""The engine `transformers`: the installed Hugging Face transformers, resumed from its own cache
objects, on a CPU.

A small server keeps deep copies of the library's caches by prefix, as a server built on
transformers would, and runs tiny models with random weights. It tells no pages, so it runs at
answers level (docs/answers.md).
"""
