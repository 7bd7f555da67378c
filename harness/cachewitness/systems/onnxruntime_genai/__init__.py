"""The engine `onnxruntime-genai`: the installed ONNX Runtime GenAI's `Generator`, kept between
requests and rewound, on tiny models on a CPU.

It tells no pages, so it runs at answers level (docs/answers.md). The models have random weights
and are made by ci/onnxruntime_genai_models.py.
"""
