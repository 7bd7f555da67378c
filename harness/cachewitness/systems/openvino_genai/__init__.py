"""The engine `openvino-genai`: the installed OpenVINO GenAI's own continuous batching, on tiny
hybrid models on a CPU.

It tells no pages, so it runs at answers level (docs/answers.md). The models have random weights
and are made by ci/openvino_models.py.
"""
