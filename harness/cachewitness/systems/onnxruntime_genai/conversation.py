"""A `Generator` of the library that is kept: every call of the library is here, and nothing of its
cache is done in its place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

from cachewitness.core.engine_failure import native
from cachewitness.systems.onnxruntime_genai.settings import MAX_LENGTH, Rewinds

ONE_THREAD = {"model": {"decoder": {"session_options": {"intra_op_num_threads": 1}}}}


@lru_cache(maxsize=2)
def model_of(folder: Path) -> Any:
    """Return the model of a folder; nothing is left in it by who uses it."""
    with native():
        og.disable_telemetry_events()
        config = og.Config(str(folder))
        config.overlay(json.dumps(ONE_THREAD))
        return og.Model(config)


class Conversation:
    """A `Generator` and the identity whose tokens it holds."""

    def __init__(self, model: Any, rewinds: Rewinds, identity: str, *, shared: bool) -> None:
        self.identity = identity
        self.rewinds = rewinds
        self.snapshot_at = 0
        """Behind how many tokens the library was asked for a snapshot; 0: there is none."""
        with native():
            settings = og.GeneratorParams(model)
            settings.set_search_options(
                max_length=MAX_LENGTH, do_sample=False, past_present_share_buffer=shared
            )
            self.generator = og.Generator(model, settings)

    def length(self) -> int:
        """Return how many tokens the library says that it holds."""
        with native():
            return int(self.generator.token_count())

    def tokens(self) -> list[int]:
        """Return the tokens that the library says that it holds."""
        with native():
            return [int(token) for token in self.generator.get_sequence(0)]

    def reach(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt, all but its last at most, this can go on behind."""
        held = self.tokens()
        common = shared(held, prompt[:-1])
        if common == len(held) or self.rewinds == "anywhere":
            return common
        fits = self.rewinds == "snapshot" and self.snapshot_at <= common
        return self.snapshot_at if fits else 0

    def rewind(self, length: int) -> None:
        """Take all tokens back but the first `length`."""
        if length < self.length():
            with native():
                self.generator.rewind_to(length)
        if not length:
            self.snapshot_at = 0

    def append(self, tokens: Sequence[int]) -> None:
        """Compute tokens behind what is there."""
        with native():
            self.generator.append_tokens(np.asarray(tokens, dtype=np.int32))

    def snapshot(self) -> None:
        """Have the library keep its states as they are."""
        with native():
            self.generator.snapshot_state()
        self.snapshot_at = self.length()

    def logits(self) -> Any:
        """Return the logits [vocabulary] of what follows. A token that was generated and not
        computed yet is computed for that.
        """
        with native():
            return np.array(self.generator.get_logits(), dtype=np.float64).reshape(-1)

    def choose(self) -> tuple[int, float]:
        """Let the library choose the next token; return it and its logprob."""
        logits = self.logits()
        with native():
            self.generator.generate_next_token()
            token = int(self.generator.get_next_tokens()[0])
        top = logits.max()
        return token, float(logits[token] - top - np.log(np.exp(logits - top).sum()))


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
