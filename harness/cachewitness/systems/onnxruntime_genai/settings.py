"""What is known of the models and of the library without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NAME = "onnxruntime-genai"
Rewinds = Literal["anywhere", "snapshot", "never"]
REWINDS: Mapping[str, Rewinds] = {"qwen3_5": "snapshot", "lfm2": "never", "llama": "anywhere"}
"""Where the library rewinds each model to: any length, the one snapshot of a generator (or 0), or
not at all.

ONNX Runtime GenAI 0.18, `Generator::RewindToLength` and `RecurrentState::RewindTo`.
"""
CONTROL = "llama"
"""Attention alone."""
VOCABULARY = 256
"""Ids below the special ones."""
MAX_LENGTH = 2048
"""Tokens that a generator has room for, those of the answer included."""
UNSPLIT = 1 << 16
"""Tokens of a step if a trace does not limit them."""
SLOTS = 4
"""So many generators are kept, each for a request at a time."""


@dataclass(frozen=True)
class Ways:
    """How generators are used.

    `interval`: where a model has states, the library is asked for a snapshot at the last multiple
    of so many tokens in front of a prompt's last one. `chunk` tokens are computed in a step.
    `shared`: past and present share a buffer. `computed`: the last token of an answer is computed
    before the generator is kept.
    """

    rewinds: Rewinds
    interval: int
    chunk: int
    shared: bool = True
    computed: bool = True
