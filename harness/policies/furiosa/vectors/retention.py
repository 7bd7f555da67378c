"""Cleanup: which sliding blocks of 16 tokens a request still holds after so many tokens, computed `chunk` at a time.

A window of one token reads nothing behind it, and the reference keeps a block all the same: another engine need not.
"""

from __future__ import annotations

from typing import Any

from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import RetentionInput

BLOCK = 16


def cases() -> list[Case]:
    """Return every question."""
    return [
        *(
            _case(f"after-{n}", f"a window of 33 after {n} tokens", 33, n)
            for n in (1, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97)
        ),
        *(_case(f"window-{w}", f"a window of {w} after 96 tokens", w, 96) for w in (1, 2, 16, 17, 18, 32, 34, 96, 97, 98)),
        *(
            _case(f"window-{w}-of-w", f"W tokens are kept, not W − 1: {w}, after 96 tokens", w, 96, window_tail="W")
            for w in (16, 17, 32, 33)
        ),
        *(_case(f"by-{c}", f"the same whatever the chunks: {c} at a time", 33, 96, chunk=c) for c in (1, 16, 40)),
    ]


def _case(name: str, comment: str, window: int, tokens: int, **config: Any) -> Case:
    groups = [GroupSpec("full", BLOCK), GroupSpec("sliding", BLOCK, window=window)]
    asked = RetentionInput(groups, 1, 0, -(-tokens // BLOCK), tokens=tokens, config=config)
    flags = ["released-early", "released-late", "window-edge"]
    return Case(f"retention/{name}", comment, flags, asked, acceptable=window == 1)
