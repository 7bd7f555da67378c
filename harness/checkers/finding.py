"""What a checker says: findings, and how often it had something to judge."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One contradiction: which anomaly, seen by which checker, at which event of the history and operation of the trace.

    `cause` is one word for what is behind it where the checker can tell, such as the fact in which a divergence lies.
    `output` is the end of what an engine in a process of its own had printed when it failed.
    """

    anomaly: str
    sentence: str
    checker: str = ""
    cause: str = ""
    r: str = ""
    seq: int = -1
    op: int = -1
    output: str = ""


class Measured(msgspec.Struct, kw_only=True):
    """What comparing logits came to. `floor`, `tolerance` and `largest` are differences in logits.

    Of `rows` compared, `restored_rows` were of requests that had hit something, and `beyond` differed by more than the
    tolerance; of `asked` tokens of requests that were looked up, `restored` were not computed.
    """

    floor: float = 0.0
    tolerance: float = 0.0
    largest: float = 0.0
    rows: int = 0
    restored_rows: int = 0
    beyond: int = 0
    asked: int = 0
    restored: int = 0

    def add(self, other: Measured) -> None:
        """Add another run's: counts add up, of differences the largest stays."""
        for field in self.__struct_fields__:
            mine, its = getattr(self, field), getattr(other, field)
            setattr(self, field, mine + its if isinstance(mine, int) else max(mine, its))


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a checker did in a run: how often it had something to judge, what it found, why it could not judge."""

    checker: str
    opportunities: int = 0
    findings: int = 0
    acceptable: int = 0
    crashed: str = ""
    not_applicable: str = ""
    measured: Measured | None = None


def merge_tallies(tallies: list[Tally]) -> list[Tally]:
    """Add up the tallies of several runs, by checker; not applicable only if it never applied."""
    merged: dict[str, Tally] = {}
    for tally in tallies:
        into = merged.setdefault(tally.checker, Tally(checker=tally.checker, not_applicable=tally.not_applicable))
        into.opportunities += tally.opportunities
        into.findings += tally.findings
        into.acceptable += tally.acceptable
        into.crashed = into.crashed or tally.crashed
        if not tally.not_applicable:
            into.not_applicable = ""
        if tally.measured is not None:
            into.measured = into.measured or Measured()
            into.measured.add(tally.measured)
    return list(merged.values())
