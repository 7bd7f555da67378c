"""What a generated token costs the host when the toy model serves prompts: everything but the
device.

    python -m benchmarks.serving_host [--beside TREE] [--profile] [--write docs/results/gpu.md]

Prompts are answered as by `cachewitness score`: scheduler, cache manager, observer, block tables,
the plan of each step, choice of tokens, texts and stops. The device is taken out: pools lie on the
meta device, and a step returns logits that were drawn before. A step is planned for the flat
kernels, as on a GPU. Times are CPU seconds of a process of its own, the best of several; with
`--beside` processes with the harness of another checkout take turns with those of this one, and
both must give the same answers.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import os
import platform
import pstats
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import msgspec
import torch

from benchmarks import sections
from cachewitness._util import pages
from cachewitness.engines.answers import Ask
from cachewitness.toy import service as toy_service
from cachewitness.toy import tensors as toy_tensors
from cachewitness.toy.problems.words import GOODS, PEOPLE
from cachewitness_reference.toy_model import flat_plan
from cachewitness_reference.toy_model.paged_pools import Pools

HERE = Path(__file__).resolve().parents[1]
BATCH, BLOCK, PROMPTS, NEW = 64, 16, 192, 64
SHARED, OWN = 150, 8
"""Sentences that all prompts share, and that are a prompt's own."""
ROUNDS = 3
COLUMNS = 32
"""Columns of the logits that are drawn: so few that the choice of a token is the host's own work.
"""


class Measured(msgspec.Struct):
    """One process: CPU microseconds for a generated token; of a prompt the mean number of tokens,
    and how many of them came from the cache; a digest of all answers.
    """

    microseconds: float
    prompt_tokens: float
    restored: float
    answers: str


class Drawn:
    """Stands for the device: plans a step, has its pages claimed, and returns logits that were
    drawn before. No answer ends early, since neither mark of the vocabulary is the likeliest.
    """

    def __init__(self) -> None:
        self._rows = torch.rand(8 * BATCH, COLUMNS, generator=torch.Generator().manual_seed(0))
        self._rows[:, :2] = -1.0
        self._steps = 0

    def step(
        self,
        pools: Pools,
        chunks: Sequence[Any],
        weights: object,
        *,
        kernels: Any,
        pad_rows: int = 1,
        watch: object = None,
    ) -> torch.Tensor:
        """Return logits [sum of outputs, columns]."""
        planned = flat_plan.plan(pools, chunks, pad_rows, kernels.positions)
        for g, claimed in planned.claims:
            pools.claim(g, claimed)
        self._steps += 1
        first = self._steps % (7 * BATCH)
        return self._rows[first : first + sum(chunk.outputs for chunk in chunks)]


def questions() -> list[Ask]:
    """Return prompts of the checkpoint's words that share most of what they say."""
    pairs = list(zip(PEOPLE, GOODS, strict=False))
    sentences = [f" {who} has {n} {what} ." for n in range(20) for who, what in pairs]
    shared = "".join(sentences[:SHARED])
    return [
        Ask(
            f"{n}",
            shared + sentences[-1 - n % 300] * OWN,
            stop=("Question", "\n\n"),
            max_tokens=NEW,
        )
        for n in range(PROMPTS)
    ]


def measure(*, profiled: bool = False) -> Measured:
    """Answer all prompts in this process."""
    with (
        mock.patch.object(toy_service, "check", lambda *_: None),
        mock.patch.object(toy_tensors, "step", Drawn().step),
        mock.patch.object(Pools, "_fill", lambda *_, **__: None),
    ):
        service = toy_service.ToyService(
            batch=BATCH, block_size=BLOCK, pages=20_000, budget=8192, device="meta"
        )
        asks = questions()
        service.answer(asks[:BATCH])
        profiler = cProfile.Profile()
        begun = time.process_time()
        answers = profiler.runcall(service.answer, asks) if profiled else service.answer(asks)
        seconds = time.process_time() - begun
    if profiled:
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(40)
    digest = hashlib.sha256(msgspec.json.encode(answers, order="deterministic")).hexdigest()
    generated = sum(len(answer.tokens) for answer in answers)
    return Measured(
        seconds / generated * 1e6,
        mean(answer.prompt_tokens for answer in answers),
        mean(answer.restored[""] for answer in answers),
        digest,
    )


def of_tree(tree: Path) -> Measured:
    """Measure the harness of a checkout, in a process of its own."""
    roots = [tree / "harness", tree / "reference_impl", HERE]
    printed = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving_host", "--one"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, roots))},
        capture_output=True,
        check=True,
    ).stdout
    return msgspec.json.decode(printed, type=Measured)


def main(argv: list[str] | None = None) -> int:
    """Measure, print the section, and return 1 if two trees do not give the same answers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", metavar="TREE", type=Path, help="a checkout to compare with")
    parser.add_argument("--profile", action="store_true", help="print what takes most time")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the section into this page")
    given = parser.parse_args(argv)
    if given.one or given.profile:
        print(msgspec.json.encode(measure(profiled=given.profile)).decode())
        return 0
    trees = [HERE, *([given.beside.resolve()] if given.beside else [])]
    found: dict[Path, list[Measured]] = {tree: [] for tree in trees}
    for _ in range(ROUNDS):
        for tree in trees:
            found[tree].append(of_tree(tree))
    same = len({one.answers for all_of_it in found.values() for one in all_of_it}) == 1
    costs = [min(one.microseconds for one in found[tree]) for tree in trees]
    text = pages.render(
        "gpu-serving-host",
        batch=BATCH,
        block=BLOCK,
        prompts=PROMPTS,
        prompt_tokens=f"{found[HERE][0].prompt_tokens:.0f}",
        restored=f"{found[HERE][0].restored:.0f}",
        new=NEW,
        rounds=ROUNDS,
        python=platform.python_version(),
        costs=costs,
        same=same,
    )
    sections.tell(text, given.write)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
