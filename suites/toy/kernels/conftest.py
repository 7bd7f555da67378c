"""Kernels in Triton run on the CPU here, in Triton's interpreter; that is decided when Triton is
imported.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("torch") is not None:
    from cachewitness.toy.kind import need_torch

    need_torch()
    os.environ.setdefault("TRITON_INTERPRET", "1")
