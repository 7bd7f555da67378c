"""What `benchmarks.sensitivity` measures and `benchmarks.sensitivity_page` tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.needed import Row
from cachewitness.parity.scores.gate import Judged

CONDITIONS = ("hit", "replay")


@dataclass(frozen=True)
class Distance:
    """How far logits are from the cold ones: mean KL divergence, mean and largest difference,
    over `rows` positions.
    """

    kl: float
    mean: float
    largest: float
    rows: int


@dataclass(frozen=True)
class Outcome:
    """What one damage did under one condition. `judged` is the gate's verdict, `blind` that of
    the score alone.
    """

    condition: str
    changed: int
    judged: Judged
    blind: Judged
    distance: Distance


@dataclass(frozen=True)
class Found:
    """All that was measured; the first damage is none at all. `needs` is by checkpoint and
    execution.
    """

    outcomes: Mapping[str, Sequence[Outcome]]
    noise: int
    floor: float
    tolerance: float
    n: int
    versions: Mapping[str, str]
    needs: Mapping[tuple[str, str], Sequence[Row]]
