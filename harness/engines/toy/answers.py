"""Opens the toy engine for an arm: what an arm asks for, in the toy's own options. Nothing here imports torch until then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.engines.answers import Backend, Opening

TIER_PAGES = 1 << 16
"""Enough for every prompt of a score, each under a salt of its own."""
PREEMPT_EVERY = 8
"""Steps after which the request that came last loses its place, in an arm under preemption."""

DRAFTS = 3
"""Tokens that are guessed with each one, in an arm with drafts."""
SCARCE_PAGES = 256
"""Room for the blocks of a few contexts of the problems, not of all, in an arm where space is scarce."""


def open_service(options: Mapping[str, str], opening: Opening) -> Backend:
    """Open the toy engine, with `options` as the user named it, for one arm of a score.

    Raises UsageError for an option or a checkpoint that does not fit, EngineMissing without torch or without a GPU asked for.
    """
    from harness.engines.toy.kind import need_torch

    need_torch()
    from harness.engines.toy.service import PAGES, ToyService

    checkpoint = options.get("checkpoint") or opening.checkpoint
    return ToyService(
        Path(checkpoint) if checkpoint else None,
        policy=opening.policy,
        caching=opening.caching,
        mutant=options.get("mutant", ""),
        release=options.get("release", ""),
        tier_pages=TIER_PAGES if opening.tier else 0,
        drafts=DRAFTS if opening.drafts else 0,
        pages=SCARCE_PAGES if opening.scarce else PAGES,
        preempt_every=PREEMPT_EVERY if opening.preempt else 0,
        dtype=options.get("dtype") or opening.dtype or "float32",
        device=options.get("device") or opening.device,
    )
