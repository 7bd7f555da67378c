"""The toy's suites compute as the engine does: with one thread. Without torch they are listed as
not run.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is not None:
    from cachewitness.toy.kind import need_torch

    need_torch()
