"""The engine `llama-cpp`: the server of the installed llama.cpp (`xllamacpp`), on tiny hybrid
models on a CPU.

It tells no pages, so it runs at answers level (docs/answers.md). The models have random weights
and are made by ci/llama_cpp_models.py.
"""
