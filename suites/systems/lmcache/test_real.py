"""The installed LMCache as a second tier: it passes where it is set up as its document says, and
faults in it are found.

The tests need the package `lmcache` and torch (`ci/stage_lmcache.sh`).
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Finish, Op, Reset, Step, Submit, Trace, TraceHeader, load
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.lmcache.kind import configurations as further
from cachewitness.systems.lmcache.reference import policy
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.lmcache.faults import FAULTS, NAME
from suites.support.real_engines import LMCACHE as REAL

SEEDS = 8
OF_WORKERS = [fault.name for fault in FAULTS if re.search("worker|reader", fault.name)]
"""Faults that show where there are several workers."""
APART = {"separate_object_groups": True}


def sound() -> list[Configuration]:
    """Return the configurations in which no state can be left out of a chunk: one block in a
    chunk, groups apart.
    """
    driven = [
        one
        for one in policy.configurations()
        if not {"async_depth", "num_speculative_tokens", "engines"} & {*one.options}
    ]
    plain = [one for one in driven if one.options.get("chunk_size", 16) == 16]
    return [
        one
        for one in plain
        if one.options.get("separate_object_groups") or len(one.layout.groups) == 1
    ]


def traces(configuration: Configuration) -> list[Trace]:
    """Return random traces without adapters, which LMCache's keys do not know."""
    every = [
        random_trace(configuration.shape("scheduler"), seed, withdraw=False)
        for seed in range(SEEDS)
    ]
    return [
        trace
        for trace in every
        if not any(isinstance(op, Submit) and op.adapter for op in trace.ops)
    ]


def tell(ops: list[Op], layout: str = "full", **options: object) -> Result:
    header = TraceHeader(
        "t", layouts.load(layout), 60, level="scheduler", policy="lmcache", options=dict(options)
    )
    return drive(Trace(header, ops), parse(NAME).open(header))


def served_again(prompt: str, *, second: Submit, **options: object) -> Result:
    """Serve a prompt, lose what the device has, and serve another request."""
    first: list[Op] = [
        Submit("r1", prompt),
        *[Step()] * 4,
        Finish("r1"),
        Step(),
        Reset(tier="local"),
    ]
    return tell([*first, second, *[Step()] * 4], **options)


def test_every_fault_says_in_advance_what_finds_it() -> None:
    assert len(FAULTS) >= 10 and {fault.engines for fault in FAULTS} == {(NAME,)}
    assert {fault.checker for fault in FAULTS} >= {
        "identity",
        "safety-law",
        "reuse-floor",
        "engine",
    }


class TestInstalled:
    """What needs the installed LMCache."""

    pytestmark = REAL

    @pytest.mark.parametrize(
        "configuration", [*sound(), *further()], ids=lambda configuration: configuration.name
    )
    def test_one_block_in_a_chunk_and_groups_apart_pass_and_are_hit(
        self, configuration: Configuration
    ) -> None:
        loaded = 0
        for trace in traces(configuration):
            result = drive(trace, parse(NAME).open(trace.header))
            assert [finding.sentence for finding in result.findings] == []
            loaded += result.activity.from_tier
        assert loaded > 0

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
    def test_a_fault_is_found_as_named_and_the_same_trace_passes_without_it(
        self, fault: Mutant
    ) -> None:
        killed = False
        configurations = further() if fault.name in OF_WORKERS else sound()
        for trace in (trace for configuration in configurations for trace in traces(configuration)):
            found = drive(trace, parse(f"{NAME}:mutant={fault.name}").open(trace.header)).findings
            killed = (fault.anomaly, fault.checker) in {
                (finding.anomaly, finding.checker) for finding in found
            }
            if killed:
                assert drive(trace, parse(NAME).open(trace.header)).findings == []
                break
        assert killed

    @pytest.mark.parametrize("layout", ["full", "full-mamba", "full-swa", "full-swa-mamba"])
    def test_a_prompt_comes_back_from_the_pages_that_it_was_stored_in(self, layout: str) -> None:
        result = served_again("a:70", second=Submit("r2", "a:70"), layout=layout, **APART)
        (hit,) = [
            event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
        ]
        assert result.findings == [] and (hit.tier, hit.resume) == ("cpu", 64)

    def test_an_adapter_is_not_in_a_key(self) -> None:
        result = served_again("a:70", second=Submit("r2", "a:70", adapter="tuned"))
        assert "cross-identity-hit" in {finding.anomaly for finding in result.findings}

    @pytest.mark.parametrize(
        ("chunk", "anomalies"),
        [
            pytest.param(16, set(), id="a block"),
            pytest.param(32, {"fabricated-snapshot"}, id="two blocks"),
        ],
    )
    def test_a_chunk_whose_last_state_is_null_is_stored_if_another_of_its_blocks_is_not(
        self, chunk: int, anomalies: set[str]
    ) -> None:
        """A step that ends 48 tokens in leaves a state there and none after 64, where the second
        chunk of 32 ends.
        """
        trace = load(fixtures() / "findings" / "lmcache-null-block-stored-as-a-state.jsonl")
        result = tell(
            [*trace.ops],
            layout=trace.header.layout.name,
            **{**trace.header.options, "chunk_size": chunk},
        )
        assert {finding.anomaly for finding in result.findings} == anomalies

    @pytest.mark.parametrize(
        ("module", "call", "step"),
        [
            ("lookup.LookupModule", "lookup", 2),
            ("lookup.LookupModule", "wait_prefetch_status", 2),
            ("lmcache_driven_transfer.LMCacheDrivenTransferModule", "store", 2),
            ("lmcache_driven_transfer.LMCacheDrivenTransferModule", "retrieve", 10),
        ],
    )
    def test_a_call_of_lmcache_that_raises_is_a_verdict(
        self, module: str, call: str, step: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The operation in whose middle it raised is named."""

        def gone(*arguments: object) -> None:
            raise ConnectionError("the server is gone")

        monkeypatch.setattr(f"lmcache.v1.multiprocess.modules.{module}.{call}", gone)
        (found,) = served_again(
            "a:70", second=Submit("r2", "a:70"), layout="full-mamba", **APART
        ).findings
        assert found.anomaly == "engine-crashed"
        assert (
            f"operation {step} (step)" in found.sentence and "the server is gone" in found.sentence
        )

    @pytest.mark.parametrize("latent", [False, True])
    @pytest.mark.parametrize("layout", ["full", "full-mamba"])
    def test_every_worker_gets_its_own(self, layout: str, latent: bool) -> None:
        result = served_again(
            "a:70", second=Submit("r2", "a:70"), layout=layout, **APART, workers=3, latent=latent
        )
        (hit,) = [
            event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
        ]
        assert result.findings == [] and (hit.tier, hit.resume) == ("cpu", 64)

    def test_what_one_worker_has_not_stored_is_no_hit(self) -> None:
        """The second of two stores is not made, so the first worker's alone is there."""
        result = served_again("a:70", second=Submit("r2", "a:70"), workers=2, lost=2)
        hits = [
            event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
        ]
        assert result.findings == [] and [hit.resume for hit in hits] == [0]

    def test_latent_attention_alone_is_stored_by_one_worker(self) -> None:
        """Of two stores one is not made, were there two: there is one, and it is for all."""
        result = served_again("a:70", second=Submit("r2", "a:70"), workers=2, lost=2, latent=True)
        (hit,) = [
            event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
        ]
        assert result.findings == [] and (hit.tier, hit.resume) == ("cpu", 64)

    def test_with_nothing_stored_a_run_has_checked_nothing(self) -> None:
        report = Runner(
            parse(f"{NAME}:caching=off"),
            [Configuration(layouts.load("full"), {"tier_pages": 48}, "lmcache")],
        ).run([suite for suite in SUITES if suite.name == "scheduler-random"])
        assert report.failures == [] and report.activity.hits > 0
        assert report.activity.from_tier == 0 and report.vacuous == [
            "nothing was loaded by LMCache"
        ]

    @pytest.mark.parametrize(
        ("name", "value"), [("workers", 0), ("lost", -1), ("latent", "yes"), ("workers", True)]
    )
    def test_a_wrong_option_is_refused_in_one_line(self, name: str, value: object) -> None:
        with pytest.raises(UsageError, match=f"option '{name}={value}' must be"):
            tell([], **{name: value})

    def test_the_engine_s_name_may_say_them(self) -> None:
        header = TraceHeader("t", layouts.load("full"), 60, level="scheduler", policy="lmcache")
        engine: Any = parse(f"{NAME}:workers=2,latent=true").open(header)
        assert len(engine.device.workers) == 2
        engine.close()
        with pytest.raises(UsageError, match=r"option 'workers=many' must be a number of workers"):
            parse(f"{NAME}:workers=many").open(header)

    @pytest.mark.parametrize("options", [{}, {"separate_object_groups": False}])
    def test_states_in_one_object_with_attention_are_refused_in_one_line(
        self, options: dict[str, bool]
    ) -> None:
        with pytest.raises(UsageError, match=r"requires 'separate_object_groups=true' for a"):
            tell([], layout="full-mamba", **options)
        tell([], layout="full-mamba", **APART)
        tell([], layout="full-swa", **options)

    def test_a_step_in_flight_is_refused_in_one_line(self) -> None:
        with pytest.raises(
            UsageError, match=r"option 'async_depth=1' is not driven with the installed LMCache"
        ):
            tell([], async_depth=1)
