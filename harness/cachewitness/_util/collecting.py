"""How often Python looks for cycles among objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECTED_AFTER = 50_000
"""So many objects come before Python looks for cycles among them: judging a history and serving
prompts make many objects, and hardly a cycle."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Have Python look for cycles seldom meanwhile."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
