"""Exports a folder of safetensors, as ci/pretrained_folder.py writes one, for OpenVINO GenAI.

    python ci/openvino_folder.py SAFETENSORS FOLDER

It is a script that imports nothing of this package, since it needs another environment than the
engine: `ci/openvino_maker.sh` makes it, whose transformers 4.57.6 is the newest that optimum-intel
exports Gemma 3 with. Weights stay in float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from optimum.exporters.openvino import main_export

BASES = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
"""What transformers 4 calls the base of rotary embeddings, by the layer types of transformers 5."""


def main(weights: str, folder: str) -> None:
    """Write the folder: the model, and its tokenizer as OpenVINO computes it."""
    main_export(
        weights,
        folder,
        task="text-generation-with-past",
        device="cpu",
        library_name="transformers",
        convert_tokenizer=True,
        stateful=True,
    )
    found, written = (
        json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
        for name in (weights, folder)
    )
    if lost := _lost(found, written):
        sys.exit(f"openvino_folder: exported with another {', '.join(lost)} than {weights} has")


def _lost(found: dict[str, Any], written: dict[str, Any]) -> list[str]:
    """Return what the older release did not take from the configuration."""
    bases = found.get("rope_parameters", {})
    return [
        name
        for layers, name in BASES.items()
        if layers in bases and bases[layers]["rope_theta"] != written[name]
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
