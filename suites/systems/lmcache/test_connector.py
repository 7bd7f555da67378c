"""LMCache's own connector behind vLLM's scheduler: clean where it is known to be, hit, and its
faults and findings are found.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`; LMCache is the installed one
(`ci/stage_lmcache.sh` has both).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness._util.data import fixtures
from cachewitness._util.errors import EngineMissing
from cachewitness.core.checkers.locks import WAITED
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import Finish, Op, Reset, Step, Submit, Trace, TraceHeader, load
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from cachewitness.workloads.capabilities import fitting
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.lmcache.connector_faults import FAULTS
from suites.support.real_vllm import REAL, SOURCE

needs_lmcache = pytest.mark.skipif(
    find_spec("lmcache") is None, reason="needs lmcache; ci/stage_lmcache.sh has it"
)
BOTH = [*REAL, pytest.mark.lmcache, needs_lmcache]

SEEDS = 3
NAMED = {
    "fabricated-snapshot",
    "leak",
    "lost-hit",
    "partial-commit",
    "stale-hit",
    "state-position-skew",
}


def configurations() -> list[Configuration]:
    """Return those on which it is run: each kind of group, memories of many sizes, copies that
    end with their step.
    """
    full, window, state, three = (
        layouts.load(name) for name in ("full", "full-swa", "full-mamba", "full-swa-mamba")
    )
    fine = layouts.load("full-swa-unequal")
    unequal = layouts.load("full-mamba-unequal")
    return [
        Configuration(full, {"tier_pages": 16}),
        Configuration(full, {"tier_pages": 32, "num_speculative_tokens": 3}),
        Configuration(full, {"tier_pages": 64, "use_eagle": True}),
        Configuration(window, {"retention_interval": None, "tier_pages": 12}),
        Configuration(fine, {"retention_interval": 0, "tier_pages": 60}),
        Configuration(state, {"retention_interval": None, "tier_pages": 48, "async_depth": 1}),
        Configuration(
            state, {"retention_interval": 0, "tier_pages": 64, "num_speculative_tokens": 2}
        ),
        Configuration(unequal, {"retention_interval": None, "tier_pages": 96}),
        Configuration(three, {"retention_interval": 0, "tier_pages": 60}),
    ]


SLOW = Configuration(layouts.load("full"), {"tier_pages": 16, "tier_delay": 3})
"""Copies that last: no more than a preemption takes blocks from under them, where nothing leaves a
window."""


def run(trace: Trace, connector: str = "lmcache", mutant: str = "") -> Result:
    engine = parse(
        f"vllm:source={SOURCE},connector={connector}{mutant and ',mutant='}{mutant}"
    ).open(trace.header)
    try:
        return drive(fitting(trace, engine.describe().capabilities), engine)
    finally:
        engine.close()


def traces(configuration: Configuration, seeds: int = SEEDS) -> Iterator[Trace]:
    yield from (
        random_trace(configuration.shape("scheduler"), seed, withdraw=False)
        for seed in range(seeds)
    )


def preempted() -> Trace:
    """Return a trace in which a request loses its blocks while they are stored, and another one
    writes them at once.

    Random traces do not show that a preemption is not waited for: of twelve on full attention none
    does.
    """
    options = {"tier_pages": 32, "tier_delay": 3}
    header = TraceHeader("preempted", layouts.load("full"), 6, level="scheduler", options=options)
    return Trace(header, [Submit("r1", "a:47"), Submit("r2", "b:32"), *[Step()] * 7])


def tell(
    ops: list[Op], layout: str = "full", pages: int = 40, connector: str = "lmcache", **options: Any
) -> Result:
    return run(
        Trace(
            TraceHeader("t", layouts.load(layout), pages, level="scheduler", options=dict(options)),
            ops,
        ),
        connector,
    )


def anomalies(result: Result) -> set[str]:
    return {finding.anomaly for finding in result.findings}


def unlisted(result: Result) -> list[str]:
    """Return what `fixtures/expected/vllm-0.33-lmcache.txt` does not list of locks."""
    return [
        one.sentence
        for one in result.findings
        if not (one.anomaly == "leak" and WAITED in one.sentence)
    ]


def finding(name: str) -> Trace:
    return load(fixtures() / "findings" / f"{name}.jsonl")


def with_options(trace: Trace, **options: Any) -> Trace:
    return Trace(replace(trace.header, options={**trace.header.options, **options}), trace.ops)


class Leaving(dict[str, Any]):
    """Who is to be let go of later, and how many have been."""

    count = 0

    def __setitem__(self, r: str, request: Any) -> None:
        self.count += 1
        super().__setitem__(r, request)


AWAY = TraceHeader("away", layouts.load("full"), 40, level="scheduler", options={"tier_pages": 16})
DIES = {
    "look-up": Trace(AWAY, [*[Step()] * 7, Submit("r1", "a:33"), *[Step()] * 6]),
    "store": Trace(AWAY, [*[Step()] * 6, Submit("r1", "a:33"), *[Step()] * 8]),
    "retrieve": Trace(
        AWAY,
        [
            Submit("r1", "a:33"),
            *[Step()] * 3,
            Finish("r1"),
            Step(),
            Reset(tier="local"),
            *[Step()] * 2,
            Submit("r2", "a:33"),
        ]
        + [Step()] * 8,
    ),
}
"""By what the server is at when it goes away with the seventh step; a look-up comes with the
eighth."""
STORED: list[Op] = [
    Submit("r1", "a:70"),
    *[Step()] * 8,
    Finish("r1"),
    *[Step()] * 4,
    Reset(running=True, tier="local"),
]
"""A prompt is served and stored, and the device forgets it."""


def test_faults_are_in_the_connector_and_say_what_finds_them() -> None:
    assert len(FAULTS) >= 8 and all(
        fault.engines == ("vllm",) and fault.level == "scheduler" for fault in FAULTS
    )
    assert {fault.anomaly for fault in FAULTS} == NAMED


@pytest.mark.skipif(find_spec("lmcache") is not None, reason="LMCache is installed")
@pytest.mark.parametrize("here", [pytest.param(None, marks=REAL)])
def test_without_lmcache_one_line_says_what_installs_it(here: None) -> None:
    with pytest.raises(
        EngineMissing, match=r"lmcache cannot be imported: .*; ci/stage_lmcache.sh installs 0\.5\.6"
    ):
        tell([])


class TestInstalled:
    """What needs the installed LMCache, and a vLLM."""

    pytestmark = BOTH

    @pytest.mark.parametrize(
        "configuration", configurations(), ids=lambda configuration: configuration.name
    )
    def test_it_passes_and_is_hit(self, configuration: Configuration) -> None:
        activity = Activity()
        for trace in traces(configuration):
            result = run(trace)
            assert unlisted(result) == []
            activity.add(result.activity)
        assert (
            min(activity.hits, activity.from_tier, activity.loaded_tokens, activity.preemptions) > 0
        )

    def test_generated_tokens_are_stored_where_that_is_asked_for(self) -> None:
        served: list[Op] = [
            Submit("r1", "a:33"),
            *[Step()] * 40,
            Finish("r1"),
            *[Step()] * 2,
            Reset(running=True, tier="local"),
        ]
        again = [*served, Submit("r2", "a:33 @r1:35"), Step(), Step()]
        resumed = {
            connector: [
                event.resume
                for event in tell(again, connector=connector).history.events
                if isinstance(event, Hit)
            ][-1]
            for connector in ("lmcache", "lmcache-outputs")
        }
        assert resumed == {"lmcache": 32, "lmcache-outputs": 64}

    @pytest.mark.parametrize("layout", ["full", "full-swa"])
    def test_generated_tokens_are_stored_behind_drafts(self, layout: str) -> None:
        """What rejected drafts wrote is not stored; of states see below."""
        options = {"tier_pages": 48, "num_speculative_tokens": 3}
        activity = Activity()
        for trace in traces(Configuration(layouts.load(layout), options)):
            result = run(trace, "lmcache-outputs")
            assert unlisted(result) == []
            activity.add(result.activity)
        assert min(activity.from_tier, activity.loaded_tokens, activity.drafts_accepted) > 0
        assert activity.drafts > activity.drafts_accepted

    @pytest.mark.parametrize("layout", ["full", "full-swa", "full-mamba", "full-swa-mamba"])
    def test_a_hit_says_from_where_each_block_was_loaded(self, layout: str) -> None:
        """The last block of every group came from LMCache's memory, by its bytes."""
        result = tell([*STORED, Submit("r2", "a:70"), *[Step()] * 9], layout)
        hit = [event for event in result.history.events if isinstance(event, Hit)][-1]
        groups = len(layouts.load(layout).groups)
        assert result.findings == [] and (hit.r, hit.tier, hit.resume) == ("r2", "cpu", 64)
        assert all(row[-1] >= 0 for row in hit.pages[groups:])

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
    def test_a_fault_is_killed_as_named_and_the_same_trace_passes_without_it(
        self, fault: Mutant
    ) -> None:
        for trace in chain(
            [preempted()], traces(SLOW, 2), *(traces(one, 6) for one in configurations())
        ):
            found = {
                (finding.anomaly, finding.checker)
                for finding in run(trace, mutant=fault.name).findings
            }
            if (fault.anomaly, fault.checker) in found and run(trace).findings == []:
                return
        pytest.fail(f"{fault.name} survived")

    # --- what was found in LMCache 0.5.6 (docs/systems/lmcache-notes.md) ---

    def test_an_abort_that_would_stop_the_scheduler_is_told_later(self) -> None:
        """In random traces some are; the scheduler goes on, and every operation is carried out."""
        waited = 0
        for trace in traces(
            Configuration(layouts.load("full"), {"tier_pages": 48, "tier_delay": 4})
        ):
            engine: Any = parse(f"vllm:source={SOURCE},connector=lmcache").open(trace.header)
            engine.adapter._leaving = leaving = Leaving()
            trace = fitting(trace, engine.describe().capabilities)
            result = drive(trace, engine)
            engine.close()
            assert (anomalies(result), result.activity.operations) == (set(), len(trace.ops))
            waited += leaving.count
        assert waited > 0

    def test_a_reset_keeps_what_a_waiting_request_has_looked_up(self) -> None:
        """The prompt of r2 finds no room beside r3, but it was looked up, and what was found
        stays.
        """
        full: list[Op] = [*STORED, Submit("r3", "b:90"), Step(), Step()]
        waits: list[Op] = [
            Submit("r2", "a:70"),
            Step(),
            Reset(tier="cpu"),
            Finish("r3"),
            *[Step()] * 6,
        ]
        comes: list[Op] = [
            Step(),
            Reset(tier="cpu"),
            Submit("r2", "a:70"),
            Finish("r3"),
            *[Step()] * 6,
        ]
        assert anomalies(tell([*full, *waits], pages=9, connector="lmcache-strict")) == {
            "stale-hit"
        }
        assert anomalies(tell([*full, *comes], pages=9, connector="lmcache-strict")) == set()
        assert anomalies(tell([*full, *waits], pages=9)) == set()

    def test_what_a_request_looked_up_that_ends_while_it_waits_stays_locked(self) -> None:
        """The prompt of r2 finds no room beside r3; if it joins before it ends nothing is found."""
        full: list[Op] = [*STORED, Submit("r3", "b:90"), Step(), Step(), Submit("r2", "a:70")]
        ends: list[Op] = [Step(), Finish("r2"), Step(), Finish("r3"), *[Step()] * 12]
        joins: list[Op] = [Step(), Finish("r3"), *[Step()] * 6, Finish("r2"), *[Step()] * 12]
        (found,) = {one.line.split(";")[1] for one in tell([*full, *ends], pages=9).findings}
        assert found == f" r2 {WAITED}"
        assert anomalies(tell([*full, *joins], pages=9)) == set()

    @pytest.mark.parametrize(
        ("chunk", "found"), [("lmcache", set()), ("lmcache-chunks", {"stale-hit"})]
    )
    def test_a_chunk_of_two_blocks_is_stored_without_the_state_at_its_end(
        self, chunk: str, found: set[str]
    ) -> None:
        ops: list[Op] = [Submit("r1", "a:81"), Step(budget=48), *[Step()] * 3, Finish("r1"), Step()]
        again: list[Op] = [Reset(running=True, tier="local"), Submit("r2", "a:81"), *[Step()] * 4]
        assert anomalies(tell([*ops, *again], "full-mamba", connector=chunk)) >= found

    def test_an_adapter_is_not_in_a_key(self) -> None:
        header = TraceHeader("t", layouts.load("full"), 40, level="scheduler", options={})
        ops: list[Op] = [*STORED, Submit("r2", "a:70", adapter="tuned"), *[Step()] * 4]
        engine = parse(f"vllm:source={SOURCE},connector=lmcache").open(header)
        assert "adapter" not in engine.describe().capabilities
        assert "cross-identity-hit" in anomalies(drive(Trace(header, ops), engine))
        engine.close()

    def test_a_store_is_not_waited_for_when_its_block_leaves_a_window(self) -> None:
        """A copy that ends with its step passes; a preemption is waited for, see the fault that
        leaves that out.
        """
        trace = finding("lmcache-store-behind-a-window")
        assert "stale-hit" in anomalies(run(trace))
        assert anomalies(run(with_options(trace, tier_delay=1))) == set()

    def test_a_hit_inside_a_unit_has_a_state_stored_when_its_block_is_another_s(self) -> None:
        """Without the hit of 4 tokens the chunk is stored in time."""
        trace = finding("lmcache-store-of-a-block-that-was-freed")
        assert anomalies(run(trace)) == {"fabricated-snapshot", "stale-hit"}
        assert anomalies(run(trace.with_ops(trace.ops[3:]))) == set()

    def test_a_state_that_drafts_have_passed_is_stored_when_its_block_is_another_s(self) -> None:
        """Without drafts, and where prompts alone are stored, the trace passes."""
        trace = finding("lmcache-state-passed-by-drafts")
        assert anomalies(run(trace, "lmcache-outputs")) == {"fabricated-snapshot"}
        assert anomalies(run(trace)) == set()
        assert (
            anomalies(run(with_options(trace, num_speculative_tokens=0), "lmcache-outputs"))
            == set()
        )

    @pytest.mark.parametrize("what", DIES)
    def test_a_server_that_dies_costs_no_answer(self, what: str) -> None:
        """In the middle of look-ups, of stores and of loads: what it was to bring is computed."""
        engine: Any = parse(f"vllm:source={SOURCE},connector=lmcache-dies").open(DIES[what].header)
        assert anomalies(drive(DIES[what], engine)) == set()
        asked: Counter[str] = engine.adapter.connector._sides[0].asked
        assert asked[what] > 0, asked

    def test_an_imitated_server_that_stands_still_and_goes_on_ends_nothing(self) -> None:
        """Every operation is carried out and judged, and what it does to blocks of others is all
        that is found.
        """
        asked: Counter[str] = Counter()
        for configuration in (
            Configuration(layouts.load(name), {"tier_pages": 32}) for name in ("full", "full-mamba")
        ):
            for trace in traces(configuration):
                engine: Any = parse(f"vllm:source={SOURCE},connector=lmcache-stalls").open(
                    trace.header
                )
                trace = fitting(trace, engine.describe().capabilities)
                result = drive(trace, engine)
                asked += engine.adapter.connector._sides[0].asked
                engine.close()
                assert result.activity.operations == len(trace.ops)
                assert anomalies(result) <= {*NAMED, "aliased-write"}
        assert min(asked[what] for what in ("look-up", "store")) > 0, asked
