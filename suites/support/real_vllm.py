"""The real vLLM that tests run on: `CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm` (`ci/stage_vllm.sh`)."""

from __future__ import annotations

import importlib.util
import os

import pytest

SOURCE = os.environ.get("CACHEWITNESS_VLLM_SOURCE", "")

needs_vllm = pytest.mark.skipif(
    not SOURCE or importlib.util.find_spec("torch") is None,
    reason="needs torch, and CACHEWITNESS_VLLM_SOURCE to name a folder that holds `vllm`; ci/stage_vllm.sh has both",
)
REAL = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), needs_vllm]  # torch and vLLM warn while they are imported
"""The marks of a test that runs a real vLLM."""
