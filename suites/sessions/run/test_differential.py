"""What an engine is free in, the reference follows: it never diverges from itself, whatever
pages the other hands out.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from cachewitness.cli import invoke
from cachewitness.core.events import Event, Publish, Submitted, Unpublish
from cachewitness.core.trace_format import Level, Trace, save
from cachewitness.engines import policy as policies
from cachewitness.engines import registry
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import core as core_of
from cachewitness.parity.answers.prefixes import Keys, Prefixes
from cachewitness.sessions.run.lockstep import NAME, followed, incomparable, lockstep
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.permuted import permuted
from suites.support.sampled import sampled

SEEDS = (11, 12)
LEVELS: tuple[Level, ...] = ("manager", "scheduler")


@cache
def _cases() -> list[tuple[Level, Configuration]]:
    """Return the configurations of every policy that has a reference which follows, at the
    levels at which they run.
    """
    return [
        (level, configuration)
        for policy in followed()
        for level in LEVELS
        if level in policies.get(policy).levels
        for configuration in policies.get(policy).configurations()
        if configuration.runs_at(level)
    ]


def _id(case: object) -> str:
    return f"{case.policy}-{case.name}" if isinstance(case, Configuration) else str(case)


def _trace(level: Level, configuration: Configuration, seed: int) -> Trace:
    return random_trace(configuration.shape(level), seed, withdraw=seed % 2 == 0)


def _named(name: str) -> Configuration:
    return next(one for one in policies.get("vllm").configurations() if one.name == name)


@pytest.mark.parametrize(("level", "configuration"), sampled(_cases(), 2), ids=_id)
def test_the_reference_does_what_the_reference_does(
    level: Level, configuration: Configuration
) -> None:
    """Beside itself, operation by operation."""
    for seed in sampled(SEEDS, 2, len(configuration.name)):
        trace = _trace(level, configuration, seed)
        result = lockstep(trace, registry.parse("reference").open(trace.header))
        assert [finding.sentence for finding in result.findings] == []
        assert next(tally for tally in result.tallies if tally.checker == NAME).opportunities > 15


@pytest.mark.parametrize(("level", "configuration"), sampled(_cases(), 2, 1), ids=_id)
def test_other_free_choices_are_no_divergence(level: Level, configuration: Configuration) -> None:
    """The look-alike of `divergence`: pages, victims and duplicates are drawn, so that those of
    the two differ.
    """
    for seed in sampled(SEEDS, 2, len(configuration.name) + 1):
        trace = _trace(level, configuration, seed)
        engine, _ = permuted(trace.header, seed)
        assert [finding.sentence for finding in lockstep(trace, engine).findings] == []


@pytest.mark.parametrize("policy", followed())
def test_the_choices_that_are_drawn_are_choices(policy: str) -> None:
    """There is something to choose in each policy, and what is chosen decides what happens."""
    made: Counter[str] = Counter()
    for level, configuration in sampled([case for case in _cases() if case[1].policy == policy], 4):
        trace = _trace(level, configuration, SEEDS[0])
        engine, drawn = permuted(trace.header, SEEDS[0])
        lockstep(trace, engine)
        made.update(drawn.made)
    assert made["victim"] > 0


def test_other_victims_are_other_keys() -> None:
    """An engine with other victims is not the reference in disguise: other prefixes lose their
    keys.
    """
    trace = _trace("manager", _named("full"), SEEDS[0])
    plain = registry.parse("reference").open(trace.header)
    (other, _) = permuted(trace.header, 1)
    happened = [
        [event for op in trace.ops for event in engine.apply(op)] for engine in (plain, other)
    ]
    ended = [
        [(e.group, e.length) for e in events if isinstance(e, Unpublish)] for events in happened
    ]
    assert ended[0] != ended[1]


def test_one_key_more_is_a_divergence() -> None:
    """The anomaly itself: the engine keeps what its release would not."""
    trace = _trace("manager", _named("full-mamba[retention_interval=0]"), SEEDS[0])
    mutant = registry.parse("reference:mutant=denser-than-interval").open(trace.header)
    assert "divergence" in [finding.anomaly for finding in lockstep(trace, mutant).findings]


def test_pages_that_are_not_zeroed_are_a_divergence() -> None:
    """What the ledger cannot see: a kernel reads whole pages, so leftovers of another group's
    layers must be wiped.
    """
    trace = _trace("manager", _named("full-mamba[retention_interval=0]"), SEEDS[0])
    engine = registry.parse("reference").open(trace.header)
    assert isinstance(engine, Driver)
    core = core_of(engine)
    take = core.take_new_block_ids
    core.take_new_block_ids = lambda: take()[:0]
    (finding,) = [
        finding for finding in lockstep(trace, engine).findings if finding.checker == NAME
    ]
    assert "pages (zeroed, copied, stored)" in finding.sentence


def test_an_eviction_without_need_is_a_divergence() -> None:
    """Which cached page goes is free; that one goes while a page without a key is free is not."""
    trace = _trace("manager", _named("full"), SEEDS[0])
    engine = registry.parse("reference").open(trace.header)
    assert isinstance(engine, Driver)
    pool = core_of(engine).block_pool
    own = pool.get_new_blocks

    def keyed_first(count: int) -> list[object]:
        for page in [
            block.block_id
            for block in pool.free_block_queue.values()
            if block.block_hash is not None
        ]:
            pool.free_block_queue.move_to_end(page, last=False)
        taken: list[object] = own(count)
        return taken

    pool.get_new_blocks = keyed_first
    (sentence,) = [
        finding.sentence for finding in lockstep(trace, engine).findings if finding.checker == NAME
    ]
    assert "unpublished keys" in sentence


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("reference", "reference is what it compares with; plant a fault"),
        ("reference:release=0.30", "reference is what it compares with; plant a fault"),
        ("reference:mutant=block-leaked", ""),
        ("vllm", ""),
    ],
)
def test_what_cannot_be_compared_says_why(engine: str, why: str) -> None:
    """The reference without a fault would be compared with itself."""
    assert incomparable(registry.parse(engine), "vllm").startswith(why)
    assert bool(incomparable(registry.parse(engine), "vllm")) == bool(why)


def test_an_engine_of_another_policy_is_not_called_the_reference() -> None:
    """An engine that follows nobody's rules is left out for that, not for being what the
    differential compares with.
    """
    kind = registry.EngineKind(
        "radix", "a tree", ("manager",), registry.parse("reference").kind.open, replays=False
    )
    why = incomparable(registry.EngineSpec(kind, {}, "radix"), "vllm")
    assert "replays=False" in why and "compares with" not in why


def test_a_replay_of_the_reference_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line says it in one line, with exit code 4."""
    path = tmp_path / "t.jsonl"
    save(_trace("manager", _named("full"), 1), path)
    assert invoke(["replay", str(path), "--engine", "reference", "--differential"]) == 4
    assert "is what it compares with; plant a fault" in capsys.readouterr().err


# --- keys without pages ---------------------------------------------------------------------------


def _submitted(r: str, tokens: list[int], salt: str = "") -> Event:
    return Submitted(r=r, tokens=tokens, salt=salt)


def test_a_prefix_is_called_after_the_request_that_was_asked_about_first() -> None:
    """Requests that agree in the first tokens, the salt and the images name one prefix."""
    prefixes = Prefixes()
    prefixes.learn(
        [
            _submitted("a", [1, 2, 3]),
            _submitted("b", [1, 2, 4]),
            _submitted("c", [1, 2, 3], salt="x"),
        ]
    )
    assert [prefixes.name(r, 2) for r in "abc"] == ["a", "a", "c"]
    assert [prefixes.name(r, 3) for r in "abc"] == ["a", "b", "c"]


def test_a_key_that_ends_and_begins_in_one_operation_is_no_change() -> None:
    """Whether a page that is evicted and keyed as the same again shows it depends on the page
    alone.
    """
    prefixes = Prefixes()
    keys = Keys(prefixes)
    prefixes.learn([_submitted("a", [1, 2, 3]), _submitted("b", [1, 2, 4])])
    assert keys.changes([Publish(group=0, page=3, r="a", length=2)]) == ([(0, "a", 2)], [])
    again = [Unpublish(group=0, page=3, length=2), Publish(group=0, page=5, r="b", length=2)]
    assert keys.changes(again) == ([], [])
    assert keys.changes([Unpublish(group=0, page=5)]) == ([], [(0, "a", 2)])
