"""The real OpenVINO GenAI, on the models that `ci/openvino_models.py` makes."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.systems.openvino_genai.kind import MODELS

installed = pytest.mark.skipif(
    find_spec("openvino_genai") is None or not os.environ.get(MODELS),
    reason=(
        f"needs openvino-genai, and {MODELS} to name a folder of models; ci/stage_openvino.sh has"
        " both"
    ),
)
"""The mark of a test that runs it."""


def engine(options: str) -> EngineSpec:
    """Return the engine with these options, in a process of its own."""
    return parse(f"openvino-genai:{options}").isolated(Isolation())
