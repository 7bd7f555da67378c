"""Answers prompts with the toy model: greedy decoding over a paged cache, many requests at a time.

The same engine that traces run on (scheduler, cache manager, pages), but what a request generates is what the model says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.score.backend import Answer, Ask


class ToyService:
    """A `Backend` over the toy model of a checkpoint folder.

    `caching` turns prefix caching on; `mutant` plants a seeded fault of the engine `reference`; `slots` are the pool's blocks of
    `block_size` tokens (0: enough for `batch` requests and some hundred cached prefixes); at most `batch` requests run at a time
    and at most `budget` tokens a step; `retention_interval` as the policy's option. `tier_slots` > 0 adds a second tier.
    `preempt_every` n > 0 takes the place of the request that came last every n steps. `dtype` is float32, float64 or bf16-state
    (float32 with recurrent memories kept in bfloat16); `device` is cpu or cuda.

    Raises UsageError for an option or a checkpoint that does not fit, EngineMissing without torch or a GPU asked for.
    """

    name = "toy"

    def __init__(
        self,
        checkpoint: Path,
        *,
        caching: bool = True,
        mutant: str = "",
        release: str = "",
        block_size: int = 16,
        slots: int = 0,
        batch: int = 16,
        budget: int = 1024,
        retention_interval: int | None = None,
        tier_slots: int = 0,
        preempt_every: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        raise NotImplementedError

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer every prompt, in the order asked."""
        raise NotImplementedError

    def reset(self) -> bool:
        """Forget every cached prefix of the local pool."""
        raise NotImplementedError

    def versions(self) -> Mapping[str, str]:
        """Return engine, checkpoint hash, device, precision and packages."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the pools."""
