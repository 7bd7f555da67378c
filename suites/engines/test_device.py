"""The engine's steps say all that happens to pages: a device that only follows them finds what
every run needs.

The device keeps, in place of numbers, which prefix each token and each state was computed from. It
sees steps in the order in which they run, and nothing of keys, holders or the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from cachewitness.core.attention_span import first_needed
from cachewitness.core.driving import drive
from cachewitness.core.events import Accept, Group, Move, Run, StepBegin
from cachewitness.core.trace_format import Step, TraceHeader
from cachewitness.engines.driver import Driver
from cachewitness.systems.vllm.reference.engine import assemble, configure
from cachewitness.systems.vllm.reference.policy import (
    default_configurations,
    scheduler_configurations,
)
from cachewitness.systems.vllm.reference.reporting_pool import observable_manager
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.scheduler import Sampler

STATE = -1
CONFIGURATIONS = [*default_configurations()[::3], *scheduler_configurations()]
SEEDS = 3


class Symbolic:
    """Pages hold, for each place in them, the digest of the prefix that was computed into it."""

    def __init__(self, groups: list[Group]) -> None:
        self.recurrent = [group for group in groups if group.kind == "recurrent"]
        self.attention = [group for group in groups if group.kind != "recurrent"]
        self.contents: dict[tuple[int, int], dict[int, int]] = {}
        self.steps: list[int] = []
        self.compared = 0
        self.under_way: dict[int, tuple[Move, dict[int, int]]] = {}

    def execute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]
    ) -> None:
        self.steps.append(begin.step)
        for pool, pages in begin.zeros:
            self.contents |= {(pool, page): {} for page in pages}
        self._copy(begin.copies)
        self._begin([entry for entry in begin.begun if entry[1].src_pool])
        runs = [(run, _digests(tokens[run.r])) for run in begin.runs if run.r not in withdrawn]
        runs = [(run, spelt) for run, spelt in runs if run.stop < len(spelt)]
        for run, spelt in runs:
            for group in self.recurrent:
                if run.start:
                    self._expect(self._column(group, run, run.start - 1), STATE, spelt[run.start])
        for run, spelt in runs:
            self._write(run, spelt)
        for run, spelt in runs:
            for group in self.attention:
                for position in range(first_needed(group, run.start), run.stop):
                    self._expect(
                        self._column(group, run, position),
                        position % group.block_size,
                        spelt[position + 1],
                    )
        self._copy(begin.stores)
        self._begin([entry for entry in begin.begun if not entry[1].src_pool])
        for number in begin.failed:
            del self.under_way[number]
        for number in begin.ended:
            move, image = self.under_way.pop(number)
            now = self.contents.get((move.src_pool, move.src), {})
            self.contents[move.dst_pool, move.dst] = {
                place: digest for place, digest in image.items() if now.get(place) == digest
            }

    def _begin(self, begun: list[tuple[int, Move]]) -> None:
        """Begin copies: what they fill has nothing until they end, and then what was in the
        source all the time.
        """
        for number, move in begun:
            self.under_way[number] = move, dict(self.contents.get((move.src_pool, move.src), {}))
            self.contents[move.dst_pool, move.dst] = {}

    def _write(self, run: Run, spelt: list[int]) -> None:
        for group in self.recurrent:
            self._column(group, run, run.known - 1)[STATE] = spelt[run.known]
            for index in range(len(run.drafts)):
                self.contents[group.pool, run.scratch[group.id][index]] = {
                    STATE: spelt[run.known + index + 1]
                }
        for group in self.attention:
            for position in range(run.start, run.stop):
                self._column(group, run, position)[position % group.block_size] = spelt[
                    position + 1
                ]

    def _column(self, group: Group, run: Run, position: int) -> dict[int, int]:
        page = run.tables[group.id][position // group.block_size]
        assert page != 0, "the null block is nobody's"
        return self.contents.setdefault((group.pool, page), {})

    def _copy(self, moves: list[Move]) -> None:
        images = [dict(self.contents.get((move.src_pool, move.src), {})) for move in moves]
        for move, image in zip(moves, images, strict=True):
            self.contents[move.dst_pool, move.dst] = image

    def _expect(self, content: dict[int, int], place: int, digest: int) -> None:
        self.compared += 1
        assert content.get(place) == digest


def _digests(tokens: list[int]) -> list[int]:
    spelt = [0]
    for token in tokens:
        spelt.append(hash((spelt[-1], token)))
    return spelt


def _engine(header: TraceHeader, sampler: Sampler | None = None) -> tuple[Driver, Symbolic]:
    config = configure(header)
    engine = assemble(header, config, observable_manager(config), "reference")
    device = Symbolic(engine.header.local_groups())
    engine.device, engine.sampler = device, sampler or engine.sampler
    return engine, device


@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name
)
def test_a_device_that_follows_the_steps_has_what_every_run_needs(
    configuration: Configuration,
) -> None:
    for seed in range(SEEDS):
        trace = random_trace(configuration.shape("scheduler"), seed, withdraw=True)
        engine, device = _engine(trace.header)
        result = drive(trace, engine, keep=False)
        assert [finding.sentence for finding in result.findings] == []
        assert device.compared > 1000
        assert device.steps == sorted(set(device.steps))


def test_a_forgotten_copy_leaves_a_run_without_what_it_needs() -> None:
    """The device itself is not blind: it is a test of the steps."""
    trace = random_trace(
        Configuration(layouts.load("full-mamba"), {"num_speculative_tokens": 3}).shape("scheduler"),
        0,
        withdraw=False,
    )
    engine, device = _engine(trace.header)
    device._copy = lambda moves: None  # type: ignore[method-assign]
    result = drive(trace, engine)
    assert [finding.anomaly for finding in result.findings] == ["engine-crashed"]


class Repeating:
    """Generates the prompt over and over, guesses two tokens of which the second is wrong, and
    says what it was asked.
    """

    def __init__(self) -> None:
        self.drafted: list[list[int]] = []

    def draft(self, request: Request, count: int) -> list[int]:
        return [self._next(request, 0), -1][:count]

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        self.drafted.append(drafts)
        return [self._next(request, 0), self._next(request, 1)][: 2 if drafts else 1]

    def _next(self, request: Request, further: int) -> int:
        return request.all_token_ids[(request.num_tokens + further) % request.num_prompt_tokens]


def test_tokens_may_be_submitted_and_a_sampler_of_one_s_own_continues_them() -> None:
    """Token ids go in as they are; what the sampler says comes out, drafts that stand included."""
    header = TraceHeader(
        name="service",
        layout=layouts.load("full-mamba"),
        pages=30,
        level="scheduler",
        options={"num_speculative_tokens": 2},
    )
    sampler = Repeating()
    engine, device = _engine(header, sampler)
    submitted = engine.submit_tokens("a", [7, 8, 9], salt="one")
    assert [(event.r, event.tokens, event.salt) for event in submitted] == [("a", [7, 8, 9], "one")]  # type: ignore[union-attr]
    events = [event for _ in range(4) for event in engine.apply(Step())]
    assert [event.tokens for event in events if isinstance(event, Accept)] == [
        [7],
        [8, 9],
        [7, 8],
        [9, 7],
    ]
    assert sampler.drafted == [[], [8, -1], [7, -1], [9, -1]]
    assert device.steps == [1, 2, 3, 4]
