"""One row of the table of cold against cached: the result of one arm at one place in one
precision.
"""

from __future__ import annotations

import msgspec


class ArmRow(msgspec.Struct, kw_only=True):
    """An arm at a place. `largest` and `state_largest` are differences to the definition, in logits
    and in recurrent states.

    `share` and `state_share` are the largest share of its own tolerance that a difference came to;
    each model, layer and part of a state has a tolerance of its own. Of `rows` of logits,
    `restored_rows` were computed after a hit and `beyond` lie beyond the tolerance, as do
    `states_beyond` of `states` last states of requests; `no_number` rows and states hold NaN or
    infinity. `sampled` rows chose a token; where the cold run chose another, its two likeliest were
    apart by at most twice the tolerance (`near`) or by more (`hard`). `bits` rows had to be equal
    bit by bit to a cold run in the same chunks, `bits_held` were. By group kind, of `asked` tokens
    looked up `restored` were not computed. `missing` are the traces in which the arm's mechanism
    did not happen, with what did not.
    """

    arm: str
    where: str
    precision: str
    traces: int = 0
    rows: int = 0
    restored_rows: int = 0
    beyond: int = 0
    states: int = 0
    states_beyond: int = 0
    sampled: int = 0
    near: int = 0
    hard: int = 0
    bits: int = 0
    bits_held: int = 0
    asked: dict[str, int] = {}
    restored: dict[str, int] = {}
    largest: float = 0.0
    share: float = 0.0
    state_largest: float = 0.0
    state_share: float = 0.0
    no_number: int = 0
    failed: int = 0
    missing: list[str] = []

    @property
    def verdict(self) -> str:
        """Return fail for a difference, nothing checked if the mechanism did not happen
        somewhere, else pass.
        """
        if self.failed:
            return "FAIL"
        return "nothing checked" if self.missing or not self.rows else "pass"

    def add(self, other: ArmRow) -> None:
        """Add another trace's: counts add up, of differences the largest stays."""
        for field in self.__struct_fields__[3:]:
            mine = getattr(self, field)
            its = getattr(other, field)
            if isinstance(mine, dict):
                setattr(
                    self,
                    field,
                    {kind: mine.get(kind, 0) + its.get(kind, 0) for kind in {**mine, **its}},
                )
            else:
                setattr(self, field, max(mine, its) if isinstance(mine, float) else mine + its)


def merge_rows(rows: list[ArmRow]) -> list[ArmRow]:
    """Return one row for each arm, place and precision, in the order in which they were met."""
    merged: dict[tuple[str, str, str], ArmRow] = {}
    for row in rows:
        key = (row.arm, row.where, row.precision)
        merged.setdefault(key, ArmRow(arm=row.arm, where=row.where, precision=row.precision)).add(
            row
        )
    return list(merged.values())
