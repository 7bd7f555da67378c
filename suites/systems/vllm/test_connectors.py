"""vLLM's own connectors under every checker: clean releases pass, and what is loaded and stored in
them is not little.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import LEFT_WINDOW, ROUNDED_UP, Finding
from cachewitness.core.driving import drive
from cachewitness.core.events import (
    Acquire,
    Copy,
    Hit,
    KvStored,
    Publish,
    Release,
    ResetDone,
    StepBegin,
    StepEnd,
)
from cachewitness.core.ledger.records import GIVEN_BACK, OFFERED_AGAIN
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
    load,
)
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.systems.vllm.configurations import connector_configurations
from cachewitness.systems.vllm.connectors.scheduler import ConnectedScheduler
from cachewitness.systems.vllm.kind import VllmEngine
from cachewitness.workloads import layouts
from cachewitness.workloads.capabilities import fitting
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import SCENARIOS
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

SEEDS = 3
CONNECTORS = ["simple", "offloading", "multi"]
VARIANTS = ["simple-lazy", "offloading-chunks", "offloading-outputs", "offloading-sync"]


def tell(
    connector: str, ops: list[Op], layout: str = "full", pages: int = 40, **options: Any
) -> Result:
    header = TraceHeader("t", layouts.load(layout), pages, level="scheduler", options=options)
    return drive(
        Trace(header, ops), parse(f"vllm:source={SOURCE},connector={connector}").open(header)
    )


def without_resets_of_the_memory(trace: Trace) -> Trace:
    """Return the trace less what vLLM 0.33 is known to do wrong with `OffloadingConnector`
    (docs/systems/vllm-notes.md).
    """
    return Trace(
        trace.header, [op for op in trace.ops if not (isinstance(op, Reset) and op.tier != "local")]
    )


def reported_for_another(finding: Finding, connector: str) -> bool:
    """Whether a finding is what vLLM 0.33 is known to tell routers of blocks that left a window
    (docs/systems/vllm-notes.md).
    """
    known = ("false-key-event", LEFT_WINDOW)
    return (finding.anomaly, finding.cause) == known and connector != "offloading"


def served_again(connector: str, between: list[Op], **options: Any) -> Result:
    """Serve a prompt, wait until it is stored, lose what the device has, and serve it again."""
    stored: list[Op] = [
        Submit("r1", "a:70"),
        *[Step()] * 8,
        Finish("r1"),
        *[Step()] * 4,
        Reset(running=True, tier="local"),
    ]
    return tell(connector, [*stored, Submit("r2", "a:70"), *between, *[Step()] * 9], **options)


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize(
    "configuration", connector_configurations(), ids=lambda configuration: configuration.name
)
def test_a_clean_release_passes_and_its_memory_is_hit(
    configuration: Configuration, connector: str
) -> None:
    activity = Activity()
    media = set[str]()
    for seed in range(SEEDS):
        trace = without_resets_of_the_memory(
            random_trace(configuration.shape("scheduler"), seed, withdraw=False)
        )
        result = drive(
            trace, parse(f"vllm:source={SOURCE},connector={connector}").open(trace.header)
        )
        findings = [one for one in result.findings if not reported_for_another(one, connector)]
        assert [finding.sentence for finding in findings] == []
        activity.add(result.activity)
        media |= {event.medium for event in result.history.events if isinstance(event, KvStored)}
    assert min(activity.hits, activity.from_tier, activity.loaded_tokens, activity.preemptions) > 0
    assert media == {"", "CPU"}


@pytest.mark.parametrize("connector", VARIANTS)
def test_chunks_of_two_blocks_and_lazy_stores_and_synchronous_loads_pass_and_are_hit(
    connector: str,
) -> None:
    activity = Activity()
    for configuration in connector_configurations():
        for seed in range(SEEDS):
            trace = without_resets_of_the_memory(
                random_trace(configuration.shape("scheduler"), seed, withdraw=False)
            )
            result = drive(
                trace, parse(f"vllm:source={SOURCE},connector={connector}").open(trace.header)
            )
            assert [finding.sentence for finding in result.findings] == []
            activity.add(result.activity)
    assert activity.from_tier > SEEDS


@pytest.mark.parametrize("connector", ["simple", "offloading"])
def test_a_request_whose_load_fails_is_ended_where_that_is_the_policy(connector: str) -> None:
    """The policy is declared, so nothing is wrong with it; who goes on to compute would be found
    by what it reads.
    """
    aborted_by_engine = 0
    for configuration in connector_configurations()[:4]:
        for seed in range(SEEDS):
            trace = without_resets_of_the_memory(
                random_trace(configuration.shape("scheduler"), seed, withdraw=False)
            )
            result = drive(
                trace,
                parse(f"vllm:source={SOURCE},connector={connector},load_failure=fail").open(
                    trace.header
                ),
            )
            assert [finding.sentence for finding in result.findings] == []
            aborted_by_engine += result.activity.aborted_by_engine
    assert aborted_by_engine > 0


def test_a_load_in_the_step_that_needs_it_is_over_before_its_runs() -> None:
    """It waits for no other step, whatever copies take otherwise."""
    events = served_again("offloading-sync", [], tier_delay=3).history.events
    (loaded,) = [event for event in events if isinstance(event, Hit) and event.tier == "cpu"]
    runs = [
        (event.step, run.start)
        for event in events
        if isinstance(event, StepBegin)
        for run in event.runs
        if run.r == "r2"
    ]
    assert runs[0] == (loaded.step, 64)


def test_a_chunk_of_two_blocks_is_served_whole() -> None:
    """Of 80 tokens that were stored in blocks of 16, two chunks of 32 come back; the fifth block
    is half a chunk.
    """
    stored: list[Op] = [
        Submit("r1", "a:81"),
        *[Step()] * 8,
        Finish("r1"),
        *[Step()] * 4,
        Reset(running=True, tier="local"),
    ]
    result = tell("offloading-chunks", [*stored, Submit("r2", "a:81"), *[Step()] * 9])
    (hit,) = [
        event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
    ]
    assert result.findings == [] and (hit.tier, hit.resume) == ("cpu", 64)


def test_the_example_connector_serves_a_prompt_again_that_was_computed_in_one_step() -> None:
    """What it was written for: prompts of one length, nothing on the device."""
    stored: list[Op] = [
        Submit("r1", "a:70"),
        *[Step()] * 3,
        Finish("r1"),
        Step(),
        Reset(running=True, tier="local"),
    ]
    result = tell(
        "example", [*stored, Submit("r2", "a:70"), *[Step()] * 3], max_num_batched_tokens=128
    )
    (hit,) = [
        event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
    ]
    assert result.findings == [] and (hit.tier, hit.resume) == ("cpu", 64)


def test_the_example_connector_leaves_the_salt_out() -> None:
    """What was found in vLLM 0.33.0 (docs/systems/vllm-notes.md)."""
    stored: list[Op] = [
        Submit("r1", "a:70"),
        *[Step()] * 6,
        Finish("r1"),
        Step(),
        Reset(running=True, tier="local"),
    ]
    result = tell(
        "example",
        [*stored, Submit("r2", "a:70", salt="x"), *[Step()] * 6],
        max_num_batched_tokens=128,
    )
    assert "cross-identity-hit" in {finding.anomaly for finding in result.findings}


def test_the_example_connector_takes_back_what_the_device_has_already() -> None:
    """A folder of 32 tokens is found where the device has 48, and what is loaded beyond that is −16
    tokens.

    So operators are told of 48 tokens that the device had, and the request goes on behind 32.
    """
    served = [
        [Submit(f"r{i}", f"a:{length}"), Step(), Step(), Finish(f"r{i}"), Step()]
        for i, length in enumerate((33, 49))
    ]
    result = tell(
        "example",
        [op for ops in served for op in ops] + [Submit("r2", "a:49"), Step()],
        max_num_batched_tokens=128,
    )
    assert [finding.anomaly for finding in result.findings] == ["lost-hit", "false-statistics"]


def test_the_example_connector_counts_the_prompt_alone_of_who_comes_back() -> None:
    """What was found in vLLM 0.33.0: the device has the whole prompt, the connector counts less."""
    ops: list[Op] = [Submit("r1", "a:16"), Step(), Preempt("r1"), Step()]
    found = tell("example", ops).findings
    assert [finding.anomaly for finding in found] == ["lost-hit", "false-statistics"]
    assert tell("example", [Submit("r1", "a:17"), *ops[1:]]).findings == []


def test_the_example_connector_saves_a_prompt_again_with_more_blocks() -> None:
    """Of a prompt that is computed in chunks it saves the first chunk's blocks, and all of them
    when the prompt comes again; a prompt that ends behind them loads all.
    """
    ops: list[Op] = [
        Submit("r1", "a:97"),
        *[Step()] * 6,
        Finish("r1"),
        Step(),
        Submit("r2", "a:97"),
        *[Step()] * 3,
        Finish("r2"),
        Step(),
        Reset(running=True, tier="local"),
        Submit("r3", "a:98"),
        *[Step()] * 3,
    ]
    result = tell("example", ops, max_num_batched_tokens=32)
    (hit,) = [
        event for event in result.history.events if isinstance(event, Hit) and event.r == "r3"
    ]
    assert result.findings == [] and (hit.tier, hit.resume) == ("cpu", 96)


def test_the_example_connector_is_refused_over_several_groups() -> None:
    with pytest.raises(UsageError, match="not SupportsHMA"):
        tell("example", [], layout="full-swa")


def test_a_connector_that_takes_off_more_than_there_is_has_failed() -> None:
    """As its answer, which is ours here, would have a request begin in front of its first token."""
    ops: list[Op] = [Submit("r1", "a:9"), Step()]
    header = TraceHeader("t", layouts.load("full"), 40, level="scheduler")
    engine = parse(f"vllm:source={SOURCE},connector=simple").open(header)
    assert isinstance(engine, VllmEngine) and isinstance(engine.adapter, ConnectedScheduler)
    connector = engine.adapter.scheduler.connector
    connector.get_num_new_matched_tokens = lambda request, computed: (-16, False)
    (finding,) = drive(Trace(header, ops), engine).findings
    assert finding.anomaly == "engine-crashed" and "r1 from token -16" in finding.sentence


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("layout", ["full", "full-swa-mamba"])
def test_a_hit_says_from_where_each_block_was_loaded(layout: str, connector: str) -> None:
    """The second request resumes at the last boundary, and every group has its last block from
    the connector's memory.
    """
    result = served_again(connector, [], layout=layout, tier_delay=2)
    hit = [event for event in result.history.events if isinstance(event, Hit)][-1]
    groups = len(layouts.load(layout).groups)
    assert result.findings == [] and (hit.r, hit.tier, hit.resume) == ("r2", "cpu", 64)
    assert all(row[-1] >= 0 for row in hit.pages[groups:])


def test_of_several_connectors_each_is_loaded_from() -> None:
    """The pages of the second child lie behind those of the first."""
    sources: set[bool] = set()
    for seed in range(SEEDS):
        trace = random_trace(connector_configurations()[0].shape("scheduler"), seed, withdraw=False)
        events = drive(
            trace, parse(f"vllm:source={SOURCE},connector=multi").open(trace.header)
        ).history.events
        loads = [
            move
            for event in events
            if isinstance(event, Copy)
            for move in event.moves
            if move.src_pool == 1
        ]
        sources |= {move.src >= int(trace.header.options["tier_pages"]) for move in loads}
    assert sources == {False, True}


def test_a_request_waits_for_its_load_and_runs_behind_it() -> None:
    events = served_again("simple", [], tier_delay=3).history.events
    (loaded,) = [event for event in events if isinstance(event, Hit) and event.tier == "cpu"]
    runs = [
        (event.step, run.start)
        for event in events
        if isinstance(event, StepBegin)
        for run in event.runs
        if run.r == "r2"
    ]
    assert runs[0] == (loaded.step + 3, 64)


def test_a_load_that_fails_is_computed_again() -> None:
    """Of one group, what lies before the block that failed is kept; of several, nothing is."""
    for layout, start in (("full", 32), ("full-mamba", 0)):
        ops: list[Op] = [Step(), Step(fail=[2])]
        result = served_again("simple", ops, layout=layout, tier_delay=3)
        begun = [event for event in result.history.events if isinstance(event, StepBegin)]
        runs = [run.start for event in begun for run in event.runs if run.r == "r2"]
        assert result.findings == [] and runs[0] in (start, 64)
        assert any(
            event.phase == "fail" for event in result.history.events if isinstance(event, Copy)
        )


def test_a_request_that_is_preempted_between_two_steps_comes_back_in_the_next() -> None:
    """The reset lets the step in flight end first, so vLLM admits it at once and its worker
    needs all of its tokens.
    """
    ops: list[Op] = [
        Submit("r1", "a:9"),
        *[Step()] * 4,
        Preempt("r1"),
        Reset(tier="local"),
        Step(),
        Step(),
    ]
    result = tell("simple", ops, async_depth=1)
    runs = [
        event.step for event in result.history.events if isinstance(event, StepBegin) and event.runs
    ]
    assert result.findings == [] and runs == [1, 2, 3, 4, 5, 6]


def test_who_goes_while_blocks_are_loaded_leaves_them_to_the_copy() -> None:
    result = served_again("simple", [Step(), Abort("r2")], tier_delay=3)
    moves = [
        event
        for event in result.history.events
        if isinstance(event, Acquire | Release) and event.holder.startswith("store:")
    ]
    assert result.findings == [] and [type(event) for event in moves] == [Acquire, Release]
    assert moves[0].pages == moves[1].pages


@pytest.mark.parametrize("number", [3, 47])
def test_a_block_that_is_filled_in_the_last_step_of_its_request_is_stored(number: int) -> None:
    """Drafts take a request over the end of a block and to its greatest length at once, and vLLM
    forgets it with that step.
    """
    _, trace = Plan(
        "vllm", ("scheduler",), Restriction([], {"tier_pages": 24}, historic=False), seed=0
    ).draw(number)
    engine = parse(f"vllm:source={SOURCE},connector=simple").open(trace.header)
    assert (
        "max_model_len" in trace.header.options and "num_speculative_tokens" in trace.header.options
    )
    assert drive(fitting(trace, engine.describe().capabilities), engine).findings == []


@pytest.mark.parametrize(
    "op", [Reset(running=True), Reset(), UpdateWeights(1)], ids=["running", "idle", "weights"]
)
def test_a_reset_ends_the_copies_under_way_first(op: Op) -> None:
    result = served_again("simple", [Step(), op, Step(), Submit("r3", "a:70")], tier_delay=3)
    assert result.findings == []


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_reset_of_the_memory_alone_leaves_the_device_what_it_has(connector: str) -> None:
    ops: list[Op] = [
        Submit("r1", "a:70"),
        *[Step()] * 6,
        Finish("r1"),
        *[Step()] * 4,
        Reset(tier="cpu"),
        Submit("r2", "a:70"),
    ]
    result = tell(connector, [*ops, *[Step()] * 3])
    (hit,) = [
        event for event in result.history.events if isinstance(event, Hit) and event.r == "r2"
    ]
    assert result.findings == [] and (hit.tier, hit.resume) == ("local", 64)


def test_blocks_that_others_have_are_stored_after_a_reset_of_the_connector() -> None:
    """What was found in vLLM 0.33.0: another request reads them later. Without the reset the
    same trace passes.
    """
    trace = load(fixtures() / "findings" / "offload-after-a-reset-of-the-connector.jsonl")
    found = drive(
        trace, parse(f"vllm:source={SOURCE},connector=offloading").open(trace.header)
    ).findings
    assert {finding.anomaly for finding in found} == {"partial-commit", "stale-hit"}
    assert {finding.cause for finding in found} == {OFFERED_AGAIN}
    clean = without_resets_of_the_memory(trace)
    assert (
        drive(
            clean, parse(f"vllm:source={SOURCE},connector=offloading").open(clean.header)
        ).findings
        == []
    )


def test_who_ends_within_its_prompt_is_aborted_and_not_stopped() -> None:
    """VLLM stops nobody before a token was generated; of who has stopped, the connector stores
    every block with tokens.

    Of the 32 tokens of b, 31 have been computed.
    """
    ops: list[Op] = [
        Submit("a", "a:49"),
        Submit("b", "b:32"),
        Step(budget=80),
        Finish("b"),
        Step(),
        Step(),
    ]
    result = tell("offloading", ops, max_num_batched_tokens=96, tier_pages=48, tier_delay=2)
    assert [finding.sentence for finding in result.findings] == []
    assert not any(
        event.r == "b" and event.length == 32
        for event in result.history.events
        if isinstance(event, Publish)
    )


def test_a_second_reset_before_the_next_step_counts_as_refused() -> None:
    """`OffloadingConnector` asserts that it has nothing to flush, which the first one left it;
    vLLM's client is told so.
    """
    ops: list[Op] = [
        Submit("a", "a:16"),
        Step(),
        Reset(),
        Reset(running=True, tier="cpu"),
        Step(),
        Reset(tier="cpu"),
    ]
    result = tell("offloading", ops, pages=3, tier_pages=48, tier_delay=2)
    done = [
        event.ok
        for event in result.history.events
        if isinstance(event, ResetDone) and event.tier == "cpu"
    ]
    assert result.findings == [] and done == [True, False, True]


def test_a_longer_prefix_in_the_memory_takes_the_place_of_a_tail_on_the_device() -> None:
    """Hits may end inside a block: the device has 8 tokens of the first, the memory both; no
    block is taken from both.
    """
    options = {"retention_interval": None, "hash_block_size": 4, "tier_pages": 40, "tier_delay": 2}
    shape = Configuration(layouts.load("full-mamba"), options).shape("scheduler")
    trace = next(story for story in SCENARIOS if story.name == "tail-here-rest-there").trace(shape)
    result = drive(trace, parse(f"vllm:source={SOURCE},connector=simple").open(trace.header))
    found = {
        event.r: (event.tier, event.resume)
        for event in result.history.events
        if isinstance(event, Hit)
    }
    assert found["b"] == ("local", 0) and found["c"] == ("cpu", 44) and result.findings == []


@pytest.mark.parametrize(
    ("finding", "policy", "anomaly"),
    [
        ("keys-over-a-failed-load", "recompute", "uncommitted-hit"),
        ("stored-behind-a-failed-load", "fail", "partial-commit"),
    ],
)
def test_a_load_that_fails_within_its_step_leaves_something_behind(
    finding: str, policy: str, anomaly: str
) -> None:
    """What was found in vLLM 0.33.0. Without the failure the same traces pass."""
    trace = load(fixtures() / "findings" / f"{finding}.jsonl")
    engine = parse(
        f"vllm:source={SOURCE},connector=offloading-sync,load_failure={policy},sync_failures=yes"
    )
    assert drive(trace, engine.open(trace.header)).findings[0].anomaly == anomaly
    sound = trace.with_ops(
        msgspec.structs.replace(op, fail=[]) if isinstance(op, Step) else op for op in trace.ops
    )
    assert drive(sound, engine.open(trace.header)).findings == []


def test_who_waits_for_a_load_that_fails_is_given_up_and_its_keys_end() -> None:
    """Nobody else hits them; the next request loads the same from the memory."""
    ops: list[Op] = [
        Submit("a", "doc:33"),
        Step(),
        Step(),
        Finish("a"),
        Step(),
        Step(),
        Reset(tier="local"),
    ]
    ops += [Submit("b", "doc:33 b:1"), Step(fail=[0]), Submit("c", "doc:33 c:1"), Step(), Step()]
    result = tell(
        "offloading-sync,load_failure=fail,sync_failures=yes", ops, tier_pages=40, tier_delay=1
    )
    ends = [
        (event.r, event.resume, event.tier)
        for event in result.history.events
        if isinstance(event, Hit)
    ]
    assert ends[1:] == [("b", 32, "cpu"), ("c", 32, "cpu")] and result.findings == []
    assert [
        event.withdrawn
        for event in result.history.events
        if isinstance(event, StepEnd) and event.withdrawn
    ] == [["b"]]


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        (
            "nixl",
            (
                "vllm has no connector 'nixl'; known are example, offloading, offloading-chunks,"
                " offloading-outputs, "
            ),
        ),
        ("simple,load_failure=retry", "load_failure is recompute or fail, not 'retry'"),
    ],
)
def test_what_is_not_driven_is_refused_in_one_line(connector: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tell(connector, [])


@pytest.mark.parametrize(("depth", "resets"), [(0, True), (1, False)])
def test_with_steps_in_flight_vllm_cannot_reset_over_the_requests_that_it_preempts_for_that(
    depth: int, resets: bool
) -> None:
    """What vLLM does: their blocks are given back when the step is over, so it raises. Here
    steps end before a reset.
    """
    header = TraceHeader(
        "t",
        layouts.load("full"),
        40,
        level="scheduler",
        options={"async_depth": depth, "tier_pages": 40},
    )
    engine: Any = parse(f"vllm:source={SOURCE},connector=offloading").open(header)
    for op in (Submit("a", "s:40"), Step(), Step()):
        engine.apply(op)
    assert "session" not in engine.describe().capabilities
    if resets:
        assert engine.adapter.scheduler.reset_prefix_cache(reset_running_requests=True)
        return
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        engine.adapter.scheduler.reset_prefix_cache(reset_running_requests=True)


def test_a_block_that_left_a_window_is_told_for_another_request() -> None:
    """It was found by key events of the connector; `offloading` passes the same."""
    trace = load(fixtures() / "findings" / "simple-tells-a-block-for-another.jsonl")
    for connector, anomalies in {"simple": ["false-key-event"], "offloading": []}.items():
        engine = parse(f"vllm:source={SOURCE},connector={connector}").open(trace.header)
        findings = drive(trace, engine).findings
        assert [finding.anomaly for finding in findings] == anomalies
        assert {finding.cause for finding in findings} <= {LEFT_WINDOW}


@pytest.mark.parametrize(
    ("options", "number", "known"),
    [
        ({"retention_interval": None}, 220003, ("state-position-skew", ROUNDED_UP)),
        (
            {"retention_interval": 32, "num_speculative_tokens": 3, "async_depth": 1},
            0,
            ("fabricated-snapshot", GIVEN_BACK),
        ),
    ],
    ids=["a state beyond the hit", "a state whose block is somebody else's"],
)
def test_states_of_unequal_blocks_that_the_connector_stores_or_loads_wrongly(
    options: dict[str, Any], number: int, known: tuple[str, str]
) -> None:
    """What was found in vLLM 0.33.0 with outputs; `simple` passes the same."""
    shape = Configuration(layouts.load("full-mamba-unequal"), options).shape("scheduler")
    trace = random_trace(shape, number, withdraw=False)
    for connector, found in {"offloading-outputs": True, "simple": False}.items():
        engine = parse(f"vllm:source={SOURCE},connector={connector}").open(trace.header)
        findings = drive(trace, engine).findings
        assert (known in [(one.anomaly, one.cause) for one in findings]) == found
