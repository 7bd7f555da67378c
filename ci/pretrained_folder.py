"""Writes a GGUF file's model as a folder of safetensors in float32, with its configuration and its
tokenizer, as mlx-lm and others read one (1.1 GB for Gemma 3 270M).

    python ci/pretrained_folder.py MODEL.gguf FOLDER

transformers does it, which needs `torch`, `gguf` and `accelerate`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers


def main(model: str, folder: str) -> None:
    """Write the folder."""
    file = Path(model)
    found = {"gguf_file": file.name, "local_files_only": True}
    kind = transformers.AutoModelForCausalLM
    loaded = kind.from_pretrained(str(file.parent), dtype=torch.float32, **found)
    # The tensors are plain by now, but the library writes no model that it loaded as a quantized
    # one.
    del loaded.config.quantization_config
    plain = kind.from_config(loaded.config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    # The tokenizer comes last, so that a folder that has one is whole.
    transformers.AutoTokenizer.from_pretrained(str(file.parent), **found).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
