"""What each group of questions lost: it needs one kind of cache more than the others, so where it
loses, that cache is suspect.

A hint and no verdict: the questions of a group are taken for independent here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cachewitness.parity.scores.pairs import Pair, counts, right_in_both
from cachewitness.parity.scores.statistics import holm, mcnemar


class GroupScore(msgspec.Struct, frozen=True, kw_only=True):
    """What one group of questions lost; `p` is corrected for the number of groups."""

    group: str
    n: int
    right_cold: int
    right: int
    lost: int
    gained: int
    p: float


def group_scores(pairs: Sequence[Pair]) -> list[GroupScore]:
    """Return what each group of questions lost, if the questions have groups."""
    members: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.cold.group:
            members.setdefault(pair.cold.group, []).append(pair)
    adjusted = holm([mcnemar(*counts(group)) for group in members.values()])
    return [
        _group_score(name, group, p)
        for (name, group), p in zip(members.items(), adjusted, strict=True)
    ]


def suspects(groups: Sequence[GroupScore], alpha: float) -> list[str]:
    """Return the groups that lost significantly, the worst first."""
    significant = [group for group in groups if group.p < alpha]
    return [
        group.group
        for group in sorted(significant, key=lambda group: (group.gained - group.lost) / group.n)
    ]


def _group_score(name: str, pairs: Sequence[Pair], p: float) -> GroupScore:
    (lost, gained) = counts(pairs)
    (right_cold, right) = right_in_both(pairs)
    return GroupScore(
        group=name, n=len(pairs), right_cold=right_cold, right=right, lost=lost, gained=gained, p=p
    )
