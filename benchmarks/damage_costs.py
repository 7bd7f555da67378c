"""What damage of a cache costs on real weights, by engine: writes a section of
docs/results/score.md.

    python -m benchmarks.damage_costs MODEL.gguf --kept FOLDER [--engine llama.cpp] [--limit 16]
        [--write docs/results/score.md]

Each damage is measured as `score --likelihood` measures a cache, by the same questions, and judged
by the same code, over all questions and over the first ones. Cold answers are asked once for an
engine. All answers are kept in FOLDER, and what is there is not asked again. Of engines that are
not named, the page keeps the rows that it has.

Needs what `ci/stage_likelihood.sh` installs: `xllamacpp`, for transformers `torch`, `gguf` and
`accelerate`, for OpenVINO GenAI its three packages, for mlx-lm also `mlx-cpu`.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import sections
from benchmarks.damage_costs_asking import Kept, served, started
from cachewitness._util import pages
from cachewitness.engines.answers import BackendError
from cachewitness.parity.likelihood.asking import Manner, Subject, prove
from cachewitness.parity.likelihood.measuring import AGAINST, HIT, Asker, Measured, Plan
from cachewitness.parity.likelihood.questions import Question, questions
from cachewitness.parity.likelihood.verdict import Judged, Rules, judge
from cachewitness.parity.scores import tasks
from cachewitness.parity.scores.tasks import Task

if TYPE_CHECKING:
    from benchmarks.damage_costs_faults import Damaged

TITLE = "## What damage costs"
LIMIT = 16
LLAMA_CPP, TRANSFORMERS, OPENVINO, MLX = "llama.cpp", "transformers", "OpenVINO GenAI", "mlx-lm"
PLANS = {
    LLAMA_CPP: Plan(positions=5, noise=4),
    TRANSFORMERS: Plan(positions=2, noise=1),
    OPENVINO: Plan(positions=2, noise=1),
    MLX: Plan(positions=2, noise=1),
}
"""What is compared: every token of an answer but the first, where there is no noise."""
SERVER, PROXY = "pretrained_server.py", "prefix_fault_proxy.py"
COMPARED = {
    "none, two servers": (),
    "keys in q8_0": ("q8_0",),
    "keys and values in q8_0": ("q8_0", "q8_0"),
    "keys in q4_0": ("q4_0",),
    "keys and values in q4_0": ("q4_0", "q4_0"),
}
"""Types of llama.cpp's keys and values, each compared with f16."""
PROXIED = {
    "none": "",
    "one token lost": "token",
    "a block of 16 tokens of another prefix": "block",
    "the last two blocks, two blocks stale": "stale",
    "two blocks of the window lost": "skipped",
    "the window of another prefix": "foreign",
    "another prefix": "whole",
}
"""Faults that the proxy plants into what hits restore."""


@dataclass(frozen=True)
class Row:
    """One damage on one engine, and what came of it. `fails_from`: the fewest of the first
    questions from which on the verdict is a failure; 0 if it is none at all.
    """

    engine: str
    damage: str
    arm: str
    judged: Judged
    fails_from: int


class Printing:
    """Prints what is asked."""

    def begins(self, arm: str, requests: int) -> None:
        """Print an arm."""
        print(f"  {arm}: {requests} requests", flush=True)

    def asked(self) -> None:
        """Print nothing of a request."""


@dataclass(frozen=True)
class Bench:
    """Where answers are kept, and what is asked of each engine."""

    kept: Path
    task: Task
    plan: Plan

    def cold(self, engine: str, opened: Callable[[], Subject]) -> Kept:
        """Return who is asked cold."""
        return Kept(self.kept / engine / "cold.json", opened, cold=True)

    def asked(self, cold: Kept) -> list[Question]:
        """Return the questions."""
        asked = questions(self.task, cold.tokens)
        cold.save()
        return asked

    def row(
        self, engine: str, damage: str, arm: str, opened: Callable[[], Subject], cold: Kept
    ) -> Row:
        """Measure and judge one damage. Raises BackendError if not all was answered."""
        print(f"{engine}: {damage}", flush=True)
        asked = self.asked(cold)
        name = re.sub(r"\W+", "-", f"{arm} {damage}")
        asking = f"{len(asked)}-{self.plan.positions}-{self.plan.noise}"
        subject = Kept(self.kept / engine / asking / f"{name}.json", opened)
        found = self._measured(asked, subject, cold, arm)
        if found.broken_off:
            raise BackendError(f"{engine}: {damage}: {found.broken_off}")
        subject.save()
        return Row(engine, damage, arm, _judged(found, arm), fails_from(found, arm))

    def _measured(self, asked: Sequence[Question], subject: Kept, cold: Kept, arm: str) -> Measured:
        if arm == AGAINST:
            manner = Manner("another server", salted=False)
            return Asker(cold, cold, subject, manner, self.plan, Printing()).run(asked, [arm])
        # A proxy puts the tokens of a prompt that it has seen into those of another prefix.
        subject.ask(asked[-1].tokens, 1, "another prefix", cache_prompt=False)
        manner = prove(subject, cold, asked[0].tokens)
        return Asker(subject, cold, None, manner, self.plan, Printing()).run(asked, [arm])


def fails_from(found: Measured, arm: str) -> int:
    """Return the fewest of the first questions from which on the verdict is a failure; 0 if it is
    none with all. The first ones are one behind each prefix, then the next ones.
    """
    order = in_turn(found.questions)
    fewest = 0
    for count in range(len(order), 0, -1):
        if _judged(part_of(found, order[:count]), arm).verdict != "fail":
            break
        fewest = count
    return fewest


def in_turn(asked: Sequence[Question]) -> list[int]:
    """Return the indexes of questions, the first of each prefix in front, then the second ones."""
    turns: dict[str, int] = {}
    order = []
    for index, question in enumerate(asked):
        turns[question.prefix] = turns.get(question.prefix, 0) + 1
        order.append((turns[question.prefix], index))
    return [index for _, index in sorted(order)]


def part_of(found: Measured, indexes: Sequence[int]) -> Measured:
    """Return what was measured of some questions alone."""
    new = {index: place for place, index in enumerate(indexes)}
    return Measured(
        questions=[found.questions[index] for index in indexes],
        cold={new[index]: steps for index, steps in found.cold.items() if index in new},
        paths={new[index]: paths for index, paths in found.paths.items() if index in new},
        warm=found.warm,
        arms={
            arm: {(new[index], at): kept for (index, at), kept in kept.items() if index in new}
            for arm, kept in found.arms.items()
        },
    )


def _judged(found: Measured, arm: str) -> Judged:
    return next(one for one in judge(found, Rules()) if one.arm == arm)


# --- engines --------------------------------------------------------------------------------------


def of_llama_cpp(bench: Bench, model: Path) -> Iterator[Row]:
    """Yield the rows of llama.cpp's server."""
    with started(SERVER, str(model)) as plain:
        cold = bench.cold(LLAMA_CPP, lambda: served(plain()))
        for damage, types in COMPARED.items():
            with started(SERVER, str(model), *types) as other:
                opened = partial(served_at, other)
                yield bench.row(LLAMA_CPP, damage, AGAINST, opened, cold)
        yield from proxied(bench, plain, PROXIED, cold)


def proxied(
    bench: Bench, plain: Callable[[], str], faults: Mapping[str, str], cold: Kept
) -> Iterator[Row]:
    """Yield the rows of faults that a proxy plants in front of a server."""
    for damage, fault in faults.items():
        with behind(plain, fault) as address:
            yield bench.row(LLAMA_CPP, damage, HIT, partial(served_at, address), cold)


def served_at(address: Callable[[], str]) -> Subject:
    """Return the server of an address that is known when it is called."""
    return served(address())


@contextmanager
def behind(plain: Callable[[], str], fault: str) -> Iterator[Callable[[], str]]:
    """Give what returns the address of a proxy with a fault, or of the server itself without."""
    if not fault:
        yield plain
        return
    with ExitStack() as opened:
        yield lambda: opened.enter_context(started(PROXY, plain(), fault))()


def damaged(bench: Bench, engine: str, library: Damaged) -> Iterator[Row]:
    """Yield the rows of an engine in this process, one for each damage."""
    cold = bench.cold(engine, lambda: library.opened("none"))
    library.prompts = [question.tokens for question in bench.asked(cold)]
    for damage in library.damages:
        yield bench.row(engine, damage, HIT, partial(library.opened, damage), cold)


def of_transformers(bench: Bench, model: Path) -> Iterator[Row]:
    """Return the rows of transformers."""
    from benchmarks.damage_costs_faults import DAMAGES, Library

    return damaged(bench, TRANSFORMERS, Library(model, DAMAGES))


def of_openvino(bench: Bench, model: Path) -> Iterator[Row]:
    """Yield the rows of OpenVINO GenAI, on the folder that lies beside the file."""
    from benchmarks.damage_costs_openvino import NAMES, OpenVino

    library = OpenVino(model.with_name(f"{model.stem}-openvino"))
    cold = bench.cold(OPENVINO, library.cold)
    for damage in NAMES:
        yield bench.row(OPENVINO, damage, HIT, partial(library.opened, damage), cold)


def of_mlx(bench: Bench, model: Path) -> Iterator[Row]:
    """Return the rows of mlx-lm, on the folder that lies beside the file."""
    from benchmarks.damage_costs_mlx import DAMAGES, Library

    return damaged(bench, MLX, Library(model.with_suffix(""), DAMAGES))


ENGINES = {
    LLAMA_CPP: of_llama_cpp,
    TRANSFORMERS: of_transformers,
    OPENVINO: of_openvino,
    MLX: of_mlx,
}


# --- the page -------------------------------------------------------------------------------------


def rows_of(
    measured: Mapping[str, Callable[[], Iterator[Row]]],
    engines: Iterable[str],
    page: Path | None,
    title: str,
) -> list[str]:
    """Return the lines of a table by engine: what is measured, and of another engine what the page
    has in the section of this title.
    """
    lines: list[str] = []
    for engine in engines:
        if engine not in measured:
            lines += standing(page.read_text(encoding="utf-8"), title, engine) if page else []
            continue
        for row in measured[engine]():
            lines.append(_line(row))
            print(f"  {lines[-1]}", flush=True)
    return lines


def standing(page: str, title: str, engine: str) -> list[str]:
    """Return the lines of an engine in the table of a section."""
    section = page.partition(f"\n{title}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if f"| {engine} |" in line]


def table(lines: Sequence[str]) -> str:
    """Return the table."""
    head = [
        "| damage | engine | change | noise | cost (95 %) | perplexity | fails from | verdict |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    return "\n".join([*head, *lines])


def section(lines: Sequence[str], limit: int) -> str:
    """Return the section of the page."""
    intro = _HEAD.format(limit=limit, plans="; ".join(map(_plan, PLANS)))
    return pages.flowed("\n\n".join([TITLE, intro, table(lines), _READ]))


_HEAD = """What damage of a cache costs a token on real weights, by engine: Gemma 3 270M (Q4_K_M, 15
layers with windows of 512 tokens, 3 with full attention), {limit} of the problems behind 8 prefixes
of 643 to 670 tokens ({plans}). `python -m benchmarks.damage_costs MODEL.gguf --kept FOLDER --write
docs/results/score.md` writes this section: one run of each, judged by the code that judges every
run. On **llama.cpp**'s server, with one thread and one slot, other types of keys and values are
another server, compared with f16 (`--against`); the other faults are other tokens in the prefix of
a request that may hit, which a proxy sends. **transformers** computes the same weights in float32,
and what a hit restores is itself damaged, in all layers or in those with windows. In **OpenVINO
GenAI**, in float32 too, the blocks of 32 tokens that a hit restores are overwritten in all layers,
or the pool keeps them in another type; its folder is the one that `ci/stage_likelihood.sh` exports
beside the file. In **mlx-lm**, in float32 as well, the same is done to the caches that it finds as
to those of transformers; *mlx-lm's* bits, where a row has them, are the rounding of its
`QuantizedKVCache`, in all layers, though it has none for windows and none for batches. Change,
noise and cost are in nats a token, *perplexity* is what the cost multiplies it by (e to the cost),
and *fails from* is the fewest of these questions, one behind each prefix first, from which on the
verdict is a failure."""
_READ = """A change that is larger than the noise has to be so behind several prefixes, six as a
rule, before it fails, unless it is larger than the margin where there is no noise: in all but
llama.cpp cold runs agree but for rounding, so that a change beyond 0.01 nats fails from the first
question on, and a smaller one is unknown. They tell the logarithm of the token that they chose
alone, which moves less than the twenty best that llama.cpp tells: compare the rows of one engine.
Where nothing stands under *fails from*, so many questions do not end in a failure."""


def _plan(engine: str) -> str:
    plan = PLANS[engine]
    return f"{engine}: `--positions {plan.positions} --noise {plan.noise}`"


def _line(row: Row) -> str:
    size = row.judged.size
    cost = row.judged.cost
    assert size is not None
    assert cost is not None
    times = [math.exp(value) for value in (cost.mean, cost.lower, cost.upper)]
    cells = [
        row.damage,
        row.engine,
        f"{size.change:.2g}",
        f"{size.noise:.2g}",
        f"{cost.mean:+.5f} ({cost.lower:+.5f} to {cost.upper:+.5f})".replace("-", "−"),
        f"{times[0]:.3f} ({times[1]:.3f} to {times[2]:.3f})",
        f"{row.fails_from:,}" if row.fails_from else "–",
        row.judged.verdict,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure what is not kept, print the section, and write the page if asked to."""
    parser = argparse.ArgumentParser(description="Measure what damage of a cache costs.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--kept", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--engine", choices=[*ENGINES], action="append")
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    given = parser.parse_args()
    task = tasks.problems(given.limit)
    measured = {
        engine: partial(ENGINES[engine], Bench(given.kept, task, PLANS[engine]), given.model)
        for engine in given.engine or ENGINES
    }
    lines = rows_of(measured, ENGINES, given.write, TITLE)
    sections.tell(section(lines, given.limit), given.write)


if __name__ == "__main__":
    main()
