"""Furiosa-LLM's reference under the harness: lawful on random workloads, not idle, and faults
planted into it are found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Level,
    Media,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.driver import Driver
from cachewitness.systems.furiosa.reference import NOT_APPLICABLE
from cachewitness.systems.furiosa.reference.engine import open_engine
from cachewitness.systems.furiosa.reference.policy import POLICY, variants
from cachewitness.workloads import layouts
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios.shape import Shape
from cachewitness_reference.furiosa import hybrid_match, manager
from cachewitness_reference.furiosa.config import CacheConfig, Options
from cachewitness_reference.furiosa.manager import HybridCacheManager
from cachewitness_reference.furiosa.radix_tree import RadixTree
from cachewitness_reference.furiosa.request import Request
from cachewitness_reference.furiosa.spec import CHOICES
from cachewitness_reference.primitives import Position

LEVELS: list[Level] = ["manager", "scheduler"]


def layout(block_size: int = 16, window: int = 32) -> Layout:
    """Return the layout of a window beside full attention, with other sizes."""
    even = layouts.load("full-swa")
    groups = [
        replace(g, block_size=block_size, window=window if g.kind == "sliding" else 0)
        for g in even.groups
    ]
    return replace(even, groups=groups)


def traces(level: Level, count: int) -> list[Trace]:
    """Return random traces over several sizes of block and window, and every option."""
    configurations = [
        configuration
        for size in ((16, 32), (16, 21), (4, 11), (2, 2), (1, 3))
        for configuration in variants(layout(*size))
    ]
    return [
        random_trace(
            Shape(configuration.layout, configuration.options, level, "furiosa"),
            seed,
            withdraw=False,
        )
        for seed in range(count)
        for configuration in configurations[seed % 5 :: 5]
    ]


def judged(trace: Trace) -> Result:
    """Run a trace under every checker."""
    return drive(trace, open_engine(trace.header, {}), keep=False)


@pytest.mark.parametrize("level", LEVELS)
def test_random_workloads_are_lawful_and_not_idle(level: Level) -> None:
    """No checker finds anything, and there were hits, evictions and preemptions to look at."""
    activity = Activity()
    for trace in traces(level, 5):
        result = judged(trace)
        assert [f.sentence for f in result.findings] == [], trace.header
        activity.add(result.activity)
    assert activity.hits > 50 and activity.evictions > 1000 and activity.preemptions > 20


def test_every_option_of_the_policy_is_run() -> None:
    """The variants of a layout cover each value of each choice that is an option."""
    run = {
        (key, value)
        for configuration in variants(layout())
        for key, value in configuration.options.items()
    }
    for name, choice in CHOICES.items():
        if name in Options.__dataclass_fields__:
            assert all(
                value == choice.values[0] or (name, value) in run for value in choice.values
            ), name


def test_rules_that_do_not_apply_say_why() -> None:
    """The engine's header has the reasons, and so has the policy."""
    trace = traces("manager", 1)[0]
    assert (
        open_engine(trace.header, {}).describe().not_applicable
        == dict(POLICY.not_applicable)
        == NOT_APPLICABLE
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("full-mamba", {}, "layout 'full-mamba': groups.1..kind 'recurrent'"),
        ("full", {}, "layout 'full': groups: no sliding group"),
        ("full-swa", {"retention_interval": 0}, "option 'retention_interval' is unknown"),
        (
            "full-swa",
            {"expected_average_seq_length": 0},
            "EXPECTED_AVERAGE_SEQ_LENGTH must be a positive integer",
        ),
    ],
)
def test_what_the_policy_has_not_is_refused_in_one_line(
    name: str, options: dict[str, Any], message: str
) -> None:
    """A recurrent group among them."""
    header = TraceHeader(
        name="t", layout=layouts.load(name), pages=50, options=options, policy="furiosa"
    )
    with pytest.raises(UsageError, match=message) as caught:
        open_engine(header, {})
    assert "\n" not in str(caught.value)


def test_the_document_is_the_only_release() -> None:
    """It carries no version."""
    header = traces("manager", 1)[0].header
    assert open_engine(header, {"release": "document"}).describe().engine_version == "document"
    with pytest.raises(UsageError, match="release '1' is unknown; there is 'document' alone"):
        open_engine(header, {"release": "1"})


# --- seeded faults --------------------------------------------------------------------------------


def ignores_holes(patch: pytest.MonkeyPatch) -> None:
    """Resume at the global match, whatever the window has lost."""

    def all_of_it(path: Any, matched: Position, **_: Any) -> hybrid_match.Hit:
        return hybrid_match.Hit(matched, matched, tuple(path))

    patch.setattr(manager, "usable", all_of_it)


def window_one_short(patch: pytest.MonkeyPatch) -> None:
    """Keep and ask for two tokens less than the window reaches back."""
    patch.setattr(CacheConfig, "tail", property(lambda self: max(self.layers.window - 3, 1)))


def writes_into_a_shared_block(patch: pytest.MonkeyPatch) -> None:
    """Go on inside the block that a hit ends in, instead of in a copy."""
    patch.setattr(HybridCacheManager, "_copy_last_block", lambda self, request: None)


def stored_before_the_pass(patch: pytest.MonkeyPatch) -> None:
    """Store what was scheduled at once, tokens that no pass has computed among them."""
    complete = HybridCacheManager.complete

    def early(self: HybridCacheManager, request: Request, num_tokens: int) -> None:
        ahead = min(request.num_tokens, len(request.global_blocks) * self.block_size)
        computed, request.num_computed = request.num_computed, ahead
        self.store(request)
        request.num_computed = computed
        complete(self, request, num_tokens)

    patch.setattr(HybridCacheManager, "complete", early)


def one_tree_for_all(patch: pytest.MonkeyPatch) -> None:
    """Let every identity share one tree."""
    init = Request.__init__

    def anonymous(self: Request, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.identity = ("", "")

    patch.setattr(Request, "__init__", anonymous)


def never_matches(patch: pytest.MonkeyPatch) -> None:
    """Be safe, and of no use."""
    patch.setattr(RadixTree, "match", lambda self, identity, symbols, limit: [])


def keeps_the_window(patch: pytest.MonkeyPatch) -> None:
    """Forget to give the blocks of a finished request back."""
    free = HybridCacheManager.free

    def leaky(self: HybridCacheManager, request: Request) -> None:
        if request.global_blocks:
            self.global_pool.hold(request.global_blocks[0])
        free(self, request)

    patch.setattr(HybridCacheManager, "free", leaky)


@pytest.mark.parametrize(
    ("fault", "anomaly"),
    [
        (ignores_holes, "window-hole"),
        (window_one_short, "premature-release"),
        (writes_into_a_shared_block, "aliased-write"),
        (stored_before_the_pass, "partial-commit"),
        (one_tree_for_all, "cross-identity-hit"),
        (never_matches, "lost-hit"),
        (keeps_the_window, "leak"),
    ],
)
def test_a_seeded_fault_is_found_by_its_name(
    fault: Callable[[pytest.MonkeyPatch], None], anomaly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the random workloads that pass without it."""
    fault(monkeypatch)
    found = set()
    for trace in traces("scheduler", 8):
        found |= {finding.anomaly for finding in judged(trace).findings}
        if anomaly in found:
            return
    pytest.fail(f"found {sorted(found)}, not {anomaly}")


def test_an_engine_answers_for_its_policy() -> None:
    """The registry's entry builds what the traces run on, on configurations that are all
    accepted.
    """
    for configuration in POLICY.configurations():
        shape = configuration.shape("scheduler")
        assert isinstance(POLICY.open(random_trace(shape, 1, withdraw=False).header, {}), Driver)


def test_a_tail_without_a_key_is_no_free_page() -> None:
    """With hits on blocks alone, the entry of a partial block is kept and cannot be hit; the engine
    counts it as cached.

    Whoever needs a page then has the least recently used entries evicted, and with the first of a
    tree all behind it.
    """
    header = TraceHeader(
        "tails",
        Layout("tails", [GroupSpec("full", 16), GroupSpec("sliding", 16, window=32)]),
        19,
        policy="furiosa",
        options={
            "expected_average_seq_length": 64,
            "hit_granularity": "block",
            "out_of_window": "freed",
        },
    )
    ops: list[Op] = [
        *[
            Submit("a", "A:33", media=[Media(27, 21, "cat")]),
            Submit("b", "b:1"),
            Submit("c", "b:1 c:12"),
            Step([("c", 13)]),
        ],
        *[
            Step([("a", 1), ("b", 1), ("c", 1)]),
            Submit("d", "A:46 @a:1 d:1"),
            Step([("c", 1), ("d", 48)]),
        ],
        *[
            Step([("a", 16), ("c", 1)]),
            Step([("a", 16), ("c", 1), ("d", 1)]),
            Finish("d"),
            Finish("a"),
        ],
        *[Submit("e", "e:1"), Submit("f", "A:17"), Step([("e", 1), ("f", 1)])],
    ]
    result = drive(Trace(header, ops), open_engine(header, {}))
    assert result.activity.evictions > 4 and result.findings == []
