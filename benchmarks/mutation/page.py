"""Writes the page: what kills random mutants of an engine's source, here and in its own tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import msgspec

from benchmarks.mutation.engine import MutatedEngine
from benchmarks.mutation.kept import Side, rows
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.own_tests import BUDGET as THEIR_BUDGET
from benchmarks.mutation.own_tests import VARIANTS, CleanTest
from cachewitness._util import pages

KILLED = ("rule", "lock-step", "died", "hung", "test")
NOT_RUN = ("not entered", "not replaced")
AIM, AIM_OF_RULES = 0.8, 0.7
"""Shares of the mutants that change a decision that are to be killed here, and by rules."""
CLASSES = ("no effect", "not entered", "not drawn", "no rule", "listed")
"""Why a mutant survives. It changes nothing that anybody could see; nothing enters it; what is
drawn does not have the state in which it matters; or it does, and no rule says so, or one by an
anomaly that the release is known for."""


class Survivor(msgspec.Struct, frozen=True):
    """A mutant that was read: why it survives, its class first."""

    file: str
    function: str
    line: int
    change: str
    kind: str
    why: str


def survivors_of(engine: MutatedEngine) -> list[Survivor]:
    """Return the mutants of an engine that were read."""
    return rows(Path(__file__).with_name(f"survivors-{engine.name}.jsonl"), Survivor)


@dataclass(frozen=True)
class Both:
    """A mutant and what both sides make of it."""

    mutant: Mutant
    ours: Side
    theirs: Side

    @property
    def we(self) -> bool:
        """Whether this harness kills it."""
        return self.ours.outcome in KILLED

    @property
    def they(self) -> bool:
        """Whether the engine's own tests do."""
        return self.theirs.outcome in KILLED

    @property
    def decides(self) -> bool:
        """Whether it changes a decision, as far as either side sees."""
        return self.ours.differs or self.they

    @property
    def raises(self) -> bool:
        """Whether the engine itself raises here, or does not end."""
        return self.ours.outcome in ("died", "hung")


def page(
    engine: MutatedEngine,
    kept: Path,
    mutants: Sequence[Mutant],
    release: str,
    seed: int,
    tools: Mapping[str, str],
) -> str:
    """Return the page for what was measured on both sides, or here if the engine's own tests do
    not run.
    """
    ours = {side.number: side for side in rows(kept / "ours.jsonl", Side)}
    theirs = {mutant.number: Side(mutant.number, NOT_RUN[0]) for mutant in mutants}
    if engine.tests:
        theirs = {side.number: side for side in rows(kept / "theirs.jsonl", Side)}
    both = [
        Both(mutant, ours[mutant.number], theirs[mutant.number])
        for mutant in mutants
        if mutant.number in ours and mutant.number in theirs
    ]
    usable = [one for one in both if "not replaced" not in (one.ours.outcome, one.theirs.outcome)]
    tests = rows(kept / "theirs-clean.jsonl", CleanTest)
    survivors = survivors_of(engine)
    return pages.render(
        engine.page,
        package=engine.name,
        name=engine.title,
        tested=engine.tests is not None,
        release=release,
        seed=seed,
        day=date.today().strftime("%-d %B %Y"),
        tools=tools,
        budgets={"ours": engine.budget, "theirs": THEIR_BUDGET},
        drawn=len(both),
        lost=len(both) - len(usable),
        total=_counts(usable),
        deciding=_counts(one for one in usable if one.decides),
        lasting=_counts(one for one in usable if one.decides and not one.raises),
        entered=_counts(one for one in usable if one.ours.outcome not in NOT_RUN),
        seconds={
            "ours": sum(one.ours.seconds for one in usable),
            "theirs": sum(one.theirs.seconds for one in usable),
        },
        cut=_cut(usable),
        aim=_is_met(usable, tested=engine.tests is not None),
        head=[*HEAD, *(HEAD_OF_THEIRS if engine.tests else ())],
        files=_shown(_by_file(usable), engine),
        operators=_shown(_by(usable, lambda one: f"`{one.mutant.operator}`"), engine),
        rules=Counter(one.ours.by for one in usable if one.ours.outcome == "rule").most_common(),
        ran=_ran(tests),
        reasons=_reasons(tests),
        classes=Counter(one.kind for one in survivors),
        kinds=CLASSES,
        survivors=survivors,
        listed=[_survivor(one) for one in survivors],
        elsewhere=engine.tests.elsewhere if engine.tests else (),
        variants=VARIANTS,
    )


def _is_met(some: Sequence[Both], *, tested: bool) -> bool:
    """Whether enough mutants are killed here: of those that change a decision, by rules, and beside
    the engine's own tests if these run.
    """
    deciding = [one for one in some if one.decides]
    rules = sum(one.ours.outcome == "rule" for one in deciding)
    we = sum(one.we for one in deciding)
    cheaper = sum(one.ours.seconds for one in some) < sum(one.theirs.seconds for one in some)
    enough = we >= AIM * len(deciding) and rules >= AIM_OF_RULES * len(deciding)
    return enough and (not tested or (cheaper and we > sum(one.they for one in deciding)))


def _counts(some: Iterable[Both]) -> dict[str, int]:
    """Return how many of some mutants came to what."""
    listed = list(some)
    ours = Counter(one.ours.outcome for one in listed)
    return {
        "all": len(listed),
        "entered": sum(one.ours.outcome not in NOT_RUN for one in listed),
        "reached": sum(one.ours.reached for one in listed),
        "differs": sum(one.ours.differs for one in listed),
        "rule": ours["rule"],
        "lockstep": ours["lock-step"],
        "died": ours["died"] + ours["hung"],
        "we": sum(one.we for one in listed),
        "alive": sum(one.ours.outcome == "alive" for one in listed),
        "they_entered": sum(one.theirs.outcome not in NOT_RUN for one in listed),
        "they": sum(one.they for one in listed),
        "only_we": sum(one.we and not one.they for one in listed),
        "only_they": sum(one.they and not one.we for one in listed),
    }


HEAD = ("mutants", "entered", "reached", "differs", "rules", "lock-step alone", "died", "killed")
HEAD_OF_THEIRS = ("entered by tests", "killed by tests", "only here", "only by tests")


def _row(name: str, some: Iterable[Both]) -> list[str]:
    counts = _counts(some)
    names = ("all", "entered", "reached", "differs", "rule", "lockstep", "died", "we")
    further = ("they_entered", "they", "only_we", "only_they")
    return [name, *(str(counts[key]) for key in (*names, *further))]


def _shown(table: Sequence[Sequence[str]], engine: MutatedEngine) -> list[list[str]]:
    """Return the rows of a table, without the last columns if the engine's tests do not run."""
    return [[*(row if engine.tests else row[: -len(HEAD_OF_THEIRS)])] for row in table]


def _by_file(some: Sequence[Both]) -> list[list[str]]:
    return [*_by(some, lambda one: f"`{one.mutant.file}`"), _row("**all**", some)]


def _by(some: Sequence[Both], name: Callable[[Both], str]) -> list[list[str]]:
    """Return a row for each group of mutants of one name."""
    groups: dict[str, list[Both]] = {}
    for one in some:
        groups.setdefault(name(one), []).append(one)
    return [_row(key, groups[key]) for key in sorted(groups)]


def _cut(some: Sequence[Both]) -> dict[str, int]:
    """Return how many survivors were not run on all that enters them, by side."""
    return {
        "ours": sum(_is_cut(one.ours) for one in some),
        "theirs": sum(_is_cut(one.theirs) for one in some),
    }


def _is_cut(side: Side) -> bool:
    return side.outcome in ("alive", "lock-step") and side.ran < side.entering


def _ran(tests: Iterable[CleanTest]) -> list[list[str]]:
    """Return by folder of tests how many ran and passed, how many could not, in how many files."""
    folders: dict[str, list[CleanTest]] = {}
    for test in tests:
        file = test.name.split("::")[0]
        folders.setdefault("/".join(file.split("/")[:3]), []).append(test)
    return [
        [
            f"`{folder}`",
            str(len({test.name.split("::")[0] for test in found})),
            str(sum(test.outcome == "passed" for test in found)),
            str(sum(test.outcome != "passed" for test in found)),
        ]
        for folder, found in sorted(folders.items())
    ]


def _reasons(tests: Iterable[CleanTest]) -> list[tuple[int, str]]:
    """Return why tests do not run here, the most frequent first."""
    why = Counter(_short(test.outcome) for test in tests if test.outcome != "passed")
    return [(count, reason) for reason, count in why.most_common(12)]


def _short(outcome: str) -> str:
    missing = re.search(r"No module named '([^']+)'", outcome)
    if missing:
        return f"the package `{missing[1]}` is missing"
    kinds = (
        (r"fixture '", "a fixture of `tests/conftest.py`"),
        (r"[Ss]kip", "skipped by themselves"),
        (
            r"local_files_only|huggingface|offline|directory specified|config\.json",
            "a model's files",
        ),
        (r"[Cc][Uu][Dd][Aa]|NVIDIA|GPU|[Tt]riton", "a GPU, or a compiled kernel"),
        (r"_C\b|_OpNamespace|torch\.ops", "a compiled extension"),
        (r"does not pass always|took too long", outcome),
    )
    return next((name for pattern, name in kinds if re.search(pattern, outcome)), "other errors")


def _survivor(one: Survivor) -> list[str]:
    change = one.change.replace("|", "\\|").replace("\n", " ⏎ ")
    return [f"`{one.file}:{one.line}`", f"`{one.function}`", f"`{change}`", one.kind, one.why]
