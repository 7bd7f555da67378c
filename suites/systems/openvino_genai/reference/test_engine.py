"""OpenVINO GenAI's policy as an engine: lawful over random traces, and what OpenVINO's own ways
look like to the checkers.

Each fault planted here is what the release does, named in the package's docstring as a difference:
the checkers find it, so the reference may not do it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Aborted, Grow, Header, Hit, StepBegin
from cachewitness.core.result import Result
from cachewitness.core.trace_format import GroupSpec, Layout, Step, Submit, Trace, TraceHeader
from cachewitness.engines.driver import Driver
from cachewitness.systems.openvino_genai.reference.engine import open_engine
from cachewitness.systems.openvino_genai.reference.policy import configurations
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_reference.openvino_genai.block_manager import BlockManager
from cachewitness_reference.openvino_genai.orchestrator import CacheOrchestrator
from cachewitness_reference.openvino_genai.sequence import Identity, Sequence, SequenceGroup
from cachewitness_reference.primitives import Position
from suites.support.sampled import fewer, sampled

LEVELS: tuple[Any, ...] = ("manager", "scheduler")
UNLIMITED = 18446744073709551615


def configuration(layout: str = "full-mamba", **options: Any) -> Configuration:
    return Configuration(layouts.load(layout), options, "openvino_genai")


def built(layout: Layout, pages: int = 64, level: Any = "scheduler", **options: Any) -> Driver:
    header = TraceHeader("t", layout, pages, level=level, policy="openvino_genai", options=options)
    return open_engine(header, {})


def results(
    where: Configuration, seeds: Iterable[int], levels: tuple[Any, ...] = LEVELS
) -> list[Result]:
    traces = [
        random_trace(where.shape(level), seed, withdraw=False) for level in levels for seed in seeds
    ]
    return [drive(trace, open_engine(trace.header, {})) for trace in traces]


def activity(found: list[Result]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for result in found:
        counts.update(
            {
                name: getattr(result.activity, name)
                for name in ("hits", "restored", "evictions", "preemptions")
            }
        )
        for event in result.history.events:
            if isinstance(event, StepBegin):
                counts["copied"] += len(event.copies)
                counts["set back"] += sum(
                    run.start > 0 for run in event.runs if run.stop - run.start > 1
                )
            if isinstance(event, Hit):
                counts["inside a block"] += event.resume % 16 > 0
            counts["grown"] += isinstance(event, Grow)
    return counts


@pytest.mark.parametrize("where", sampled(configurations()), ids=lambda where: where.name)
def test_lawful_on_every_configuration(where: Configuration) -> None:
    """Nothing is found, and where prefixes are cached they are hit and evicted."""
    found = results(where, range(fewer(12, 6)))
    assert [finding.sentence for result in found for finding in result.findings] == []
    counts = activity(found)
    if where.options.get("enable_prefix_caching", "num_kv_blocks" not in where.options):
        assert (
            counts["hits"] and counts["evictions"] and counts["copied"] and counts["inside a block"]
        )
        assert bool(counts["restored"]) == any(
            group.kind == "recurrent" for group in where.layout.groups
        )
    else:
        assert (
            not counts["hits"]
            and counts["preemptions" if where.options.get("num_kv_blocks", 1) else "grown"]
        )


def test_states_are_restored_and_requests_give_way_at_both_levels() -> None:
    for level in LEVELS:
        counts = activity(results(configuration("full-mamba-unequal"), range(12), (level,)))
        assert counts["restored"] and counts["preemptions"] and counts["set back"]


# --- OpenVINO's own ways --------------------------------------------------------------------------


def keys_of_the_future(patch: pytest.MonkeyPatch) -> None:
    """Key a block under the length that it will have, though the step computes a part of it."""
    original = BlockManager.register

    def register(self: BlockManager, sequence: Sequence, start: int, stop: int) -> None:
        whole = -(-stop // self.block_size) * self.block_size
        original(self, sequence, start, min(whole, len(sequence.tokens)))

    patch.setattr(BlockManager, "register", register)


def state_of_the_whole_prompt(patch: pytest.MonkeyPatch) -> None:
    """Resume one token before the end of a prompt with the state after all of it."""
    original = CacheOrchestrator._longest

    def longest(self: CacheOrchestrator, sequence: Sequence, length: int) -> Position:
        size = self.kv.block_size
        whole = Position(length)
        there = self.kv.longest_run(sequence, length) == length // size and self.kv.holds(
            sequence, whole
        )
        return (
            whole
            if there and self.la is not None and self.la.holds(sequence, whole)
            else original(self, sequence, length)
        )

    patch.setattr(CacheOrchestrator, "_longest", longest)


def no_copy_in_prompts(patch: pytest.MonkeyPatch) -> None:
    """Write a prompt's chunk into a block that others hold."""
    original = BlockManager._shared_target

    def shared_target(self: BlockManager, table: Any, start: int, stop: int) -> Any:
        return original(self, table, start, stop) if stop - start == 1 else None

    patch.setattr(BlockManager, "_shared_target", shared_target)


def set_back_by_kv_alone(patch: pytest.MonkeyPatch) -> None:
    """Preempt in part by KV tokens, and go on from whatever state is left."""

    def roll_back(
        self: CacheOrchestrator, group: SequenceGroup, enough: Callable[[], bool]
    ) -> Position:
        position = group.num_processed
        while position > 0 and not enough():
            position = Position((position - 1) // self.kv.block_size * self.kv.block_size)
            self.kv.truncate(group.sequences[0], position)
        if position == 0:
            self.free(group)
        return position

    patch.setattr(CacheOrchestrator, "roll_back", roll_back)


def tokens_alone_are_hashed(patch: pytest.MonkeyPatch) -> None:
    """Hash neither salt nor adapter nor media."""
    patch.setattr(Identity, "extra", lambda self, start, stop: ())


@pytest.mark.parametrize(
    ("fault", "where", "levels", "anomaly"),
    [
        (
            keys_of_the_future,
            configuration(cache_interval_multiplier=4),
            LEVELS,
            "fabricated-snapshot",
        ),
        (keys_of_the_future, configuration("full"), LEVELS, "partial-commit"),
        (state_of_the_whole_prompt, configuration(), LEVELS, "state-position-skew"),
        (no_copy_in_prompts, configuration(cache_interval_multiplier=4), LEVELS, "aliased-write"),
        (
            set_back_by_kv_alone,
            configuration("full-mamba-unequal"),
            LEVELS[1:],
            "state-position-skew",
        ),
        (tokens_alone_are_hashed, configuration(), LEVELS, "cross-identity-hit"),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "name", None)),
)
def test_openvinos_own_ways_are_found(
    fault: Callable[[pytest.MonkeyPatch], None],
    where: Configuration,
    levels: tuple[Any, ...],
    anomaly: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each on random traces that were not written for it; the one that finds it passes without
    it.
    """
    with monkeypatch.context() as patch:
        fault(patch)
        found = (
            (level, seed)
            for seed in range(80 // len(levels))
            for level in levels
            if anomaly
            in {
                finding.anomaly
                for result in results(where, [seed], (level,))
                for finding in result.findings
            }
        )
        level, seed = next(found)
    (clean,) = results(where, [seed], (level,))
    assert clean.findings == []


# --- what a trace's layout becomes ----------------------------------------------------------------


def pools(engine: Driver) -> list[int]:
    return [pool.pages for pool in engine.describe().pools]


def test_pages_are_a_budget_that_openvinos_rule_splits() -> None:
    """64 pages, a state every 1, 2 or 4 KV blocks: 32 + 32, 42 + 21 with one over, 51 + 13."""
    layout = layouts.load("full-mamba")
    assert pools(built(layout)) == [32, 32]
    assert pools(built(layout, cache_interval_multiplier=2)) == [42, 21]
    assert pools(built(layout, cache_interval_multiplier=4)) == [51, 13]


def test_without_prefix_caching_states_come_off_first() -> None:
    layout = layouts.load("full-mamba")
    assert pools(built(layout, enable_caching=False, max_num_seqs=6)) == [58, 6]
    assert pools(built(layout, enable_caching=False, max_num_batched_tokens=UNLIMITED)) == [63, 1]


def test_groups_of_a_kind_show_one_table_in_pools_of_their_own() -> None:
    """Of three recurrent groups each has as many states; the recurrent block size is the
    checkpoint interval.
    """
    layout = Layout(
        "t",
        [
            GroupSpec("recurrent", 8),
            GroupSpec("full", 4),
            GroupSpec("recurrent", 8),
            GroupSpec("sliding", 4, 6),
        ],
    )
    engine = built(layout, 60)
    assert [group.block_size for group in engine.describe().groups] == [8, 4, 8, 4]
    assert pools(engine) == [10, 20, 10, 20]
    engine.apply(Submit("r1", "a:20"))
    (run,) = next(event for event in engine.apply(Step()) if isinstance(event, StepBegin)).runs
    assert run.tables[0] == run.tables[2] and run.tables[1] == run.tables[3]
    assert [len(table) for table in run.tables] == [3, 5, 3, 5]


def described(**options: Any) -> Header:
    return built(layouts.load("full-mamba"), **options).describe()


def test_what_does_not_apply_is_said() -> None:
    assert not described().not_applicable
    assert set(described(enable_caching=False).not_applicable) == {
        "no-fabricated-snapshots",
        "replay-boundary-retained",
    }
    assert set(built(layouts.load("full")).describe().not_applicable) == {"no-fabricated-snapshots"}


def test_a_request_that_does_not_fit_is_dropped_and_said_to_be_aborted() -> None:
    """A prompt larger than both pools takes all there is; the next step can do nothing for it."""
    layout = layouts.load("full-mamba")
    header = TraceHeader("t", layout, 8, level="scheduler", policy="openvino_genai")
    trace = Trace(header, [Submit("r1", "a:200"), Step(), Step(), Submit("r2", "b:20"), Step()])
    result = drive(trace, open_engine(header, {}))
    assert not result.findings
    assert [event.r for event in result.history.events if isinstance(event, Aborted)] == ["r1"]
    assert [
        [run.r for run in event.runs]
        for event in result.history.events
        if isinstance(event, StepBegin)
    ][-1] == ["r2"]


@pytest.mark.parametrize(
    ("layout", "pages", "options", "message"),
    [
        (
            [GroupSpec("full", 16), GroupSpec("sliding", 8, 9)],
            64,
            {},
            "one block table for all attention groups",
        ),
        ([GroupSpec("recurrent", 16)], 64, {}, "one block table for all attention groups"),
        (
            [GroupSpec("full", 16), GroupSpec("recurrent", 24)],
            64,
            {},
            "a multiple of the KV block size",
        ),
        (
            [GroupSpec("full", 16), GroupSpec("recurrent", 16), GroupSpec("recurrent", 32)],
            64,
            {},
            "all recurrent groups",
        ),
        ([GroupSpec("full", 16), GroupSpec("recurrent", 16)], 1, {}, "1 pages leave no KV block"),
        (
            [GroupSpec("full", 16)],
            64,
            {"retention_interval": 0},
            "option 'retention_interval' is unknown",
        ),
        ([GroupSpec("full", 16)], 64, {"max_num_seqs": -1}, "max_num_seqs: "),
        ([GroupSpec("full", 16)], 64, {"max_model_len": "long"}, "option 'max_model_len'"),
        (
            [GroupSpec("full", 16)],
            64,
            {"num_linear_attention_blocks": 3},
            "num_linear_attention_blocks",
        ),
        (
            [GroupSpec("full", 16), GroupSpec("recurrent", 16)],
            64,
            {"cache_interval_multiplier": 2**58},
            "cache_interval_multiplier: ",
        ),
        (
            [GroupSpec("full", 16), GroupSpec("recurrent", 16)],
            64,
            {"cache_interval_multiplier": 0},
            "greater than 0",
        ),
    ],
)
def test_what_openvino_has_no_place_for_is_refused_in_one_line(
    layout: list[GroupSpec], pages: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        built(Layout("odd", layout), pages, **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_release_is_refused() -> None:
    header = TraceHeader("t", layouts.load("full"), 64, policy="openvino_genai")
    with pytest.raises(UsageError, match="release '2025' is unknown"):
        open_engine(header, {"release": "2025"})
