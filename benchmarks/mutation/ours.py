"""What this harness makes of mutants: each runs in a fork, on cases that enter the function."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.mutation.cases import Case, Clean, Judged, clean, judge
from benchmarks.mutation.forked import Forked, Say
from benchmarks.mutation.kept import Side, append, once, rows
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.plant import Planted
from benchmarks.mutation.trial import AT_STATEMENT, NOT_REPLACED, chosen, end_late, tried

BUDGET = 2.0
"""Of the cases that enter a function those are run that come first, until they take so many CPU
seconds on the engine as it is."""


def measure(cases: Sequence[Case], mutants: Sequence[Mutant], folder: Path, kept: Path) -> None:
    """Run every mutant that was not run yet, and append what came of it to `ours.jsonl`."""
    known = once(
        kept / "ours-clean.jsonl",
        Clean,
        lambda: [found for case in cases if (found := clean(case, folder))],
    )
    pool = _warm(cases, known)
    planted = Planted(folder)
    gc.collect()
    gc.freeze()
    done = {side.number for side in rows(kept / "ours.jsonl", Side)}
    for mutant in mutants:
        if mutant.number not in done:
            append(kept / "ours.jsonl", _judged(mutant, pool, planted, folder))


def _warm(cases: Sequence[Case], known: Sequence[Clean]) -> list[tuple[Case, Clean]]:
    """Return the clean cases with what is known of them; one of each engine is run, so that
    everything is imported.
    """
    by_name = {one.name: one for one in known}
    pool = [(case, by_name[case.name]) for case in cases if case.name in by_name]
    for case in {(case.engine, case.trace.header.level): case for case, _ in pool}.values():
        judge(case)
    return pool


def _judged(
    mutant: Mutant, pool: Sequence[tuple[Case, Clean]], planted: Planted, folder: Path
) -> Side:
    taken, seconds, entering = chosen(pool, mutant, BUDGET)
    if not taken:
        return Side(mutant.number, "not entered")

    def work(say: Say) -> None:
        for case, usual in taken:
            end_late(usual.seconds)
            judged = judge(case)
            say(msgspec.to_builtins(judged))
            if judged.finding or judged.stopped:
                return

    ended = tried(mutant, planted, folder, seconds, work)
    return side(mutant.number, ended, [known for _, known in taken], entering)


def side(number: int, run: Forked, known: Sequence[Clean], entering: int) -> Side:
    """Return what a fork's answers come to."""
    if NOT_REPLACED in run.sent:
        return Side(number, "not replaced", entering=entering)
    judged = [msgspec.convert(one, Judged) for one in run.sent if isinstance(one, dict)]
    outcome, by = _verdict(judged, run.ended)
    changed = any(
        clean.digest and one.digest != clean.digest
        for one, clean in zip(judged, known, strict=False)
    )
    return Side(
        number,
        outcome,
        by,
        reached=AT_STATEMENT in run.sent,
        differs=outcome != "alive" or changed,
        ran=len(judged),
        entering=entering,
        seconds=round(run.seconds, 3),
    )


def _verdict(judged: Sequence[Judged], ended: str) -> tuple[str, str]:
    if judged and (found := judged[-1].finding):
        return ("died" if found.endswith("(engine)") else "rule"), found
    if judged and judged[-1].stopped:
        return "died", judged[-1].stopped
    if differential := next((one.differential for one in judged if one.differential), ""):
        return "lock-step", differential
    if ended:
        return ("hung" if ended == "too long" else "died"), ended
    return "alive", ""
