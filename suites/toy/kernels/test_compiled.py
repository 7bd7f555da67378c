"""The kernels compile for a GPU, whether one is here or not: the interpreter accepts much that
the compiler refuses.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suites.support.checkout import PYTHONPATH
from suites.support.sampled import chosen

pytestmark = pytest.mark.toy
REPOSITORY = Path(__file__).resolve().parents[3]
KERNELS = REPOSITORY / "reference_impl/cachewitness_reference/toy_model/triton_kernels"


@pytest.mark.parametrize("dtype", chosen(["float32", "bfloat16", "float64"], "bfloat16"))
def test_every_kernel_compiles_for_compute_capability_9(dtype: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "suites.support.compile_kernels", dtype, "90"]
    ran = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    launched = re.findall(
        r"launch\(\s*(_\w+),",
        "".join(path.read_text(encoding="utf-8") for path in KERNELS.glob("*.py")),
    )
    assert {pair.split("=")[0] for pair in ran.stdout.split()} == set(launched) and len(
        launched
    ) == 11
