"""Prints compared likelihoods on a terminal: the arms, the questions that moved, the verdict."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from cachewitness.parity.likelihood.document import ArmEntry, Document, moved_of
from cachewitness.parity.likelihood.measuring import FOREIGN, NOISE, OFF
from cachewitness.parity.likelihood.verdict import Judged
from cachewitness.report.counterexample import wrapped
from cachewitness.report.terminal import print_lines, print_objects, print_verdict, print_wrapped

SHOWN_MAX = 3
"""Questions of an arm that are shown token by token."""
_COLUMNS = {
    "arm": "arm",
    "counted": "counted",
    "restored": "restored",
    "change": "change",
    "noise": "noise",
    "ratio": "ratio",
    "cost": "cost",
    "p": "p (Holm)",
    "moved": "moved",
    "seconds": "s",
    "verdict": "verdict",
}


def heading(server: str, questions: int, prefixes: int, requests: int, out: Console) -> None:
    """Print what is about to be asked."""
    line = (
        f"{server}: likelihoods of {questions:,} questions behind {prefixes} prefixes,"
        f" {requests:,} requests"
    )
    out.print(Text(line, style="bold"), soft_wrap=True)


def print_likelihood(whole: Document, out: Console) -> None:
    """Print the arms, the questions that moved and the verdict."""
    judged = {arm.arm: arm for arm in whole.judged}
    out.print()
    rows = [_row(entry, judged.get(entry.arm), whole) for entry in whole.arms]
    print_objects(rows, _COLUMNS, out, justify="right")
    print_wrapped(
        ["change, noise and cost in nats a token; moved: by twice the noise or more"], out
    )
    if whole.lm_eval is not None:
        print_wrapped(whole.lm_eval.lines, out)
    out.print()
    for entry in whole.arms:
        _print_moved(entry, whole, out)
    print_verdict(whole.exit_code, out, reasons=_why(whole), passed=whole.passed)


def _why(whole: Document) -> list[str]:
    if not whole.exit_code:
        return []
    return [
        f"{arm.arm}: {reason}"
        for arm in whole.judged
        if arm.verdict == whole.verdict
        for reason in arm.reasons
    ]


def _row(entry: ArmEntry, judged: Judged | None, whole: Document) -> dict[str, Any]:
    least, most = entry.restored
    row: dict[str, Any] = {
        "arm": entry.arm,
        "counted": f"{entry.requests:,}",
        "restored": f"{least:,}" if least == most else f"{least:,} to {most:,}",
        "seconds": f"{entry.seconds:.0f}",
        "verdict": {OFF: "cold", NOISE: "noise", FOREIGN: "control"}.get(entry.arm, ""),
    }
    if entry.arm == FOREIGN and whole.control is not None:
        row |= {
            "change": f"{whole.control.change:.2g}",
            "noise": f"{whole.control.noise:.2g}",
            "ratio": f"{whole.control.ratio:.2f}",
        }
    if judged is None:
        return row
    row |= {"counted": f"{judged.counted:,}/{judged.positions:,}", "verdict": judged.verdict}
    if judged.size is not None and judged.cost is not None:
        row |= {
            "change": f"{judged.size.change:.2g}",
            "noise": f"{judged.size.noise:.2g}",
            "ratio": f"{judged.size.ratio:.2f}",
            "cost": f"{judged.cost.mean:+.4f}",
            "p": "<0.001" if judged.p_adjusted < 0.001 else f"{judged.p_adjusted:.3f}",
            "moved": f"{sum(one.moved for one in entry.questions)}/{len(entry.questions)}",
        }
    return row


def _print_moved(entry: ArmEntry, whole: Document, out: Console) -> None:
    moved = moved_of(entry)
    for one in moved[:SHOWN_MAX]:
        lines = wrapped(
            f"moved in arm {entry.arm}: row {one.row}, prefix {one.prefix}: {one.question}"
            f" ({one.change:.2g} nats, noise {one.noise:.2g})",
            "",
        )
        for name, values in (
            ("cold", [f"{token.cold:.2f}" for token in one.tokens]),
            (
                whole.other,
                ["–" if token.arm is None else f"{token.arm:.2f}" for token in one.tokens],
            ),
        ):
            absent = " (–: no logarithm of that token came)" * ("–" in values)
            lines += wrapped(f"log-probability by token, {name}: {' '.join(values)}{absent}", "  ")
        print_lines(lines, out)
    if len(moved) > SHOWN_MAX:
        print_wrapped(
            [f"{len(moved):,} questions moved in arm {entry.arm}; report.html draws them"], out
        )
    if moved:
        out.print()
