"""Prints a score on a terminal: what every arm restored and lost, the groups, the questions that
changed, the verdict.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from cachewitness.core.result import EXIT_USAGE
from cachewitness.parity.scores.arms import is_noise
from cachewitness.parity.scores.document import Changed, Document
from cachewitness.parity.scores.gate import Judged
from cachewitness.report.counterexample import wrapped
from cachewitness.report.terminal import print_lines, print_objects, print_verdict, print_wrapped

SHOWN_MAX = 3
"""How many lost questions are told in full, and as many gained ones, of the first arm that has any.
"""
_PRIMARY = {
    "arm": "arm",
    "right": "right",
    "restored": "restored",
    "least": "least",
    "lost": "lost",
    "gained": "gained",
    "near": "ties",
    "hard": "hard",
    "p": "p (Holm)",
    "worst": "worst",
    "verdict": "verdict",
}
_HAPPENED = ("preempted", "drafted", "evicted")
"""What is counted by requests."""
_OF_TURNS = {"reached": "into answers", "ended": "to their ends"}
"""The same of second turns: how far their hits reach."""


def heading(engine: str, task: str, questions: int, seed: int, out: Console) -> None:
    """Print what is about to be run."""
    out.print(
        Text(f"engine {engine}, {questions:,} questions of {task}, seed {seed}", style="bold"),
        soft_wrap=True,
    )


def print_score(whole: Document, out: Console) -> None:
    """Print the tables, the questions that changed and the verdict."""
    out.print()
    print_objects(_arm_rows(whole), _PRIMARY, out, justify="right")
    out.print()
    _print_restored(whole, out)
    for arm in whole.judged:
        _print_groups(arm, out)
    for change in ("lost", "gained"):
        _print_changed([entry for entry in whole.changed if entry.change == change], out)
    print_verdict(
        whole.exit_code, out, reasons=_why(whole), passed="no arm lost an answer by its cache"
    )


def _why(whole: Document) -> list[str]:
    """Return why the verdict is what it is; nothing for a pass without an expected failure."""
    known = [
        f"expected of arm {arm.arm}: {', '.join(arm.anomalies)} ({arm.expected})"
        for arm in whole.judged
        if arm.expected
    ]
    if whole.exit_code == EXIT_USAGE:
        return ["the list of expected failures is out of date", *whole.broken_list]
    if whole.exit_code:
        return _by_reason(whole) + known
    return known and ["no other arm lost an answer by its cache", *known]


def _by_reason(whole: Document) -> list[str]:
    """Return why the verdict is what it is, each reason once, with the arms that it holds for."""
    arms: dict[str, list[str]] = {}
    for arm in whole.judged:
        if arm.verdict == whole.verdict and not arm.expected:
            for reason in _reasons(arm):
                arms.setdefault(reason, []).append(arm.arm)
    return [f"{', '.join(names)}: {reason}" for reason, names in arms.items()]


def _reasons(arm: Judged) -> list[str]:
    blamed = (
        [f"the questions that lost are of group {', '.join(arm.suspects)}"] if arm.suspects else []
    )
    decides = [f"{arm.needed:,} questions would decide"] if arm.needed else []
    return arm.reasons + blamed + decides


def _arm_rows(whole: Document) -> list[dict[str, Any]]:
    judged = {arm.arm: arm for arm in whole.judged}
    rows = []
    for entry in whole.arms:
        row = {
            "arm": entry.arm,
            "right": f"{entry.right.get(whole.rules.primary, 0):,}/{entry.questions:,}",
            "restored": f"{entry.restored.share(entry.restored.tokens):.1%}",
            "least": f"{entry.restored.least:,}",
            "verdict": "cold",
        }
        if is_noise(entry.arm):
            row |= {"verdict": "noise"}
        if entry.arm in judged:
            row |= _figures(judged[entry.arm])
        rows.append(row)
    return rows


def _figures(arm: Judged) -> dict[str, Any]:
    return {
        "lost": arm.lost,
        "gained": arm.gained,
        "near": arm.near_ties,
        "hard": len(arm.hard),
        "p": _p(arm.p_adjusted),
        "worst": f"{100 * arm.lower:+.2f}",
        "verdict": arm.verdict,
    }


def _print_restored(whole: Document, out: Console) -> None:
    """Print the share that each cache group restored, in the arms that restored anything."""
    turns = _OF_TURNS if any(entry.restored.reached for entry in whole.arms) else {}
    rows = [
        {"arm": entry.arm, "tier": f"{entry.restored.share(entry.restored.from_tier):.1%}"}
        | {name: f"{getattr(entry.restored, name):,}" for name in (*_HAPPENED, *turns)}
        | {
            name: f"{entry.restored.share(tokens):.1%}"
            for name, tokens in entry.restored.groups.items()
        }
        for entry in whole.arms
        if entry.restored.tokens or entry.restored.preempted
    ]
    names = dict.fromkeys(name for entry in whole.arms for name in entry.restored.groups)
    if rows:
        columns = {"arm": "restored by"} | {name: f"group {name}" for name in names}
        print_objects(
            rows,
            columns | {"tier": "of a tier"} | {name: name for name in _HAPPENED} | turns,
            out,
            justify="right",
        )
        out.print()


def _print_groups(arm: Judged, out: Console) -> None:
    if not arm.groups or not (arm.lost or arm.gained):
        return
    columns = {
        "group": f"{arm.arm}: questions of",
        "n": "n",
        "cold": "right cold",
        "right": "right",
        "lost": "lost",
    }
    rows = [
        {
            "group": group.group,
            "n": group.n,
            "cold": group.right_cold,
            "right": group.right,
            "lost": group.lost,
            "gained": group.gained,
            "p": _p(group.p),
            "note": "suspect" if group.group in arm.suspects else "",
        }
        for group in arm.groups
    ]
    print_objects(
        rows, columns | {"gained": "gained", "p": "p (Holm)", "note": ""}, out, justify="right"
    )
    out.print()


def _print_changed(entries: list[Changed], out: Console) -> None:
    first = [entry for entry in entries if entry.arm == entries[0].arm][:SHOWN_MAX]
    for entry in first:
        print_lines(_transcripts(entry), out)
        out.print()
    if len(entries) > len(first):
        by_arm = {entry.arm: sum(other.arm == entry.arm for other in entries) for entry in entries}
        counted = ", ".join(f"{count} in arm {arm}" for arm, count in by_arm.items())
        print_wrapped(
            [f"answers {entries[0].change}: {counted}; all of them are in report.json"], out
        )
        out.print()


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _transcripts(entry: Changed) -> list[str]:
    where = (
        f"question {entry.doc} (row {entry.row}{', group ' + entry.group if entry.group else ''})"
    )
    lines = wrapped(f"{entry.change} in arm {entry.arm}: {where}: {entry.question}", "")
    for name, text in (
        ("right answer", entry.target),
        ("cold", entry.cold),
        (entry.arm, entry.other),
    ):
        lines += wrapped(f"{name}: {' | '.join(filter(None, text.strip().splitlines()))}", "  ")
    return lines
