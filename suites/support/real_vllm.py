"""The real vLLM that tests run on: `CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`
(`ci/stage_vllm.sh`).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = os.environ.get("CACHEWITNESS_VLLM_SOURCE", "")

needs_vllm = pytest.mark.skipif(
    not SOURCE or importlib.util.find_spec("torch") is None,
    reason=(
        "needs torch, and CACHEWITNESS_VLLM_SOURCE to name a folder that holds `vllm`;"
        " ci/stage_vllm.sh has both"
    ),
)
REAL = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),
    needs_vllm,
]  # torch and vLLM warn while they are imported
"""The marks of a test that runs a real vLLM."""


def run_alone(*files: Path) -> subprocess.CompletedProcess[str]:
    """Run test files with vLLM and pytest alone: nothing of this repository is on the path, and
    none of its settings hold.
    """
    options = ["-q", "--tb=line", "-c", os.devnull, "-p", "no:cacheprovider"]
    argv = [sys.executable, "-P", "-m", "pytest", *options, *map(str, files)]
    surroundings = os.environ | {"PYTHONPATH": SOURCE}
    return subprocess.run(
        argv, capture_output=True, text=True, cwd=files[0].parent, env=surroundings, timeout=300
    )
