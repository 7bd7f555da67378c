"""What this harness makes of mutants: each runs in a fork, on cases that enter the function."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.mutation.cases import Case, Clean, Judged, clean, judge
from benchmarks.mutation.engine import MutatedEngine
from benchmarks.mutation.forked import Forked, Say, in_shares
from benchmarks.mutation.kept import Side, append, rows
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.plant import Planted
from benchmarks.mutation.trial import AT_STATEMENT, NOT_REPLACED, chosen, end_late, tried


def measure(
    engine: MutatedEngine, source: Path, seed: int, mutants: Sequence[Mutant], kept: Path, jobs: int
) -> None:
    """Run every mutant that was not run yet, so many at once, and append what came of each to
    `ours.jsonl`.
    """
    engine.imported(source)
    folder = engine.within(source)
    cases = engine.cases(str(source), seed)
    pool = _clean(cases, folder, kept / "ours-clean.jsonl", jobs)
    if engine.forks_warm:
        _warm(pool)
    planted = Planted(folder)
    gc.collect()
    gc.freeze()
    file = kept / "ours.jsonl"
    done = {side.number for side in rows(file, Side)}

    def run(mutant: Mutant) -> None:
        append(file, _judged(mutant, pool, planted, folder, engine.budget))

    in_shares([mutant for mutant in mutants if mutant.number not in done], jobs, run)


def _clean(cases: Sequence[Case], folder: Path, file: Path, jobs: int) -> list[tuple[Case, Clean]]:
    """Return the cases with what is known of them, and measure in forks what is not."""
    known = {one.name for one in rows(file, Clean)}
    left = [case for case in cases if case.name not in known]
    in_shares(left, jobs, lambda case: append(file, clean(case, folder)))
    by_name = {one.name: one for one in rows(file, Clean)}
    return [(case, by_name[case.name]) for case in cases]


def _warm(pool: Sequence[tuple[Case, Clean]]) -> None:
    """Run one case of each engine, so that everything is imported."""
    usable = [case for case, known in pool if not known.found]
    for case in {(case.engine, case.trace.header.level): case for case in usable}.values():
        judge(case)


def _judged(
    mutant: Mutant,
    pool: Sequence[tuple[Case, Clean]],
    planted: Planted,
    folder: Path,
    budget: float,
) -> Side:
    taken, seconds, entering = chosen(pool, mutant, budget)
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
