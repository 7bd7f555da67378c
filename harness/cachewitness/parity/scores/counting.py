"""Counts what an arm lost and gained, and what the second cold run did of the same questions, by
shared prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness.parity.scores.decision import Counts, Tally
from cachewitness.parity.scores.pairs import Pair, counts, right_in_both


def counted(pairs: Sequence[Pair], again: Sequence[Pair] | None) -> Counts:
    """Count the pairs of an arm, and those of the second cold run if there is one.

    A prefix is shared by the questions of a tenant; if a question has none, all are taken for
    independent.
    """
    lost_again = {pair.cold.doc for pair in again or () if pair.lost}
    members: dict[str, list[Pair]] = {}
    for pair in pairs:
        members.setdefault(pair.cold.tenant, []).append(pair)
    prefixes = () if "" in members else tuple(_tally(each, lost_again) for each in members.values())
    return Counts(_tally(pairs, lost_again), prefixes, again is not None)


def _tally(pairs: Sequence[Pair], lost_again: set[int]) -> Tally:
    lost, gained = counts(pairs)
    gone = {pair.cold.doc for pair in pairs if pair.lost}
    repeated = {pair.cold.doc for pair in pairs} & lost_again
    return Tally(
        len(pairs),
        right_in_both(pairs)[0],
        lost,
        gained,
        len(gone - repeated),
        len(repeated - gone),
    )
