"""The toy's suites compute as the engine does: with one thread."""

from __future__ import annotations

from harness.toy.kind import need_torch

need_torch()
