"""What a control came to: traces of a suite on a variant of the engine, where no cache can be at
fault, or none of states.
"""

from __future__ import annotations

import msgspec

from cachewitness.core.result import Result


class ControlRow(msgspec.Struct, kw_only=True):
    """Of `traces` of a control `failed` have a finding; of `answers` so many had `restored`
    tokens. On those of its traces that the engine itself has run too, `tokens` were restored, and
    by the engine itself `own`.
    """

    control: str
    traces: int = 0
    failed: int = 0
    answers: int = 0
    restored: int = 0
    tokens: int = 0
    own: int = 0

    @staticmethod
    def of(control: str, result: Result) -> ControlRow:
        """Return the row of one trace."""
        activity = result.activity
        trace = result.trace
        assert trace is not None, "a control runs a trace"
        return ControlRow(
            control=control,
            traces=1,
            failed=int(bool(result.findings)),
            answers=activity.lookups,
            restored=activity.hits if trace.header.level == "answers" else activity.from_tier,
        )

    @property
    def line(self) -> str:
        """The row in one line."""
        tokens = (
            f"; {self.tokens:,} tokens restored where the engine itself restores {self.own:,}"
            if self.tokens
            else ""
        )
        return (
            f"control {self.control}: {self.failed} of {self.traces} traces have a finding; "
            f"{self.restored:,} of {self.answers:,} answers with restored tokens{tokens}"
        )


def merge_controls(rows: list[ControlRow]) -> list[ControlRow]:
    """Return one row for each control, in the order in which they were met."""
    merged: dict[str, ControlRow] = {}
    for row in rows:
        into = merged.setdefault(row.control, ControlRow(control=row.control))
        for field in row.__struct_fields__[1:]:
            setattr(into, field, getattr(into, field) + getattr(row, field))
    return list(merged.values())
