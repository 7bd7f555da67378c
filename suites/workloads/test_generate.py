"""Random traces are the same for the same seed, hit boundaries, and use every operation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from cachewitness.core import trace_format as trace
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Level,
    Media,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    UpdateWeights,
    Vocabulary,
    length_of,
)
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import OPERATIONS, random_trace, write_gallery
from cachewitness.workloads.near_misses import SentPrompt, near_miss, spliced
from cachewitness.workloads.scenarios.shape import Shape
from cachewitness.workloads.source import Seeded

NAMES = ["full", "full-mamba", "full-swa-mamba", "full-mamba-unequal"]
SEEDS = range(50)


def _shape(name: str = "full-swa-mamba", level: Level = "manager") -> Shape:
    return Configuration(layouts.load(name)).shape(level)


def _traces(shape: Shape, *, withdraw: bool = False) -> list[Trace]:
    return [random_trace(shape, seed, withdraw=withdraw) for seed in SEEDS]


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_a_trace(name: str) -> None:
    """The same seed gives the same bytes, another seed others."""
    first, again = ([trace.dump(one) for one in _traces(_shape(name))] for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first)
    assert random_trace(_shape(name), 7, withdraw=False).header.seed == 7


@pytest.mark.parametrize("name", NAMES)
def test_lengths_lie_at_the_boundaries_of_every_group(name: str) -> None:
    """Shared prefixes end at, one before or one behind a block of some group; whole prompts do
    so at least now and then.
    """
    shape = _shape(name)
    submitted = [op.prompt for one in _traces(shape) for op in one.ops if isinstance(op, Submit)]
    for group in shape.layout.groups:
        edges = {rest % group.block_size for rest in (-1, 0, 1)}
        shared = Counter(length_of(prompt.split()[0]) % group.block_size for prompt in submitted)
        assert all(shared[rest] > len(submitted) // 10 for rest in edges), (group, shared)
        whole = Counter(length_of(prompt) % group.block_size for prompt in submitted)
        assert all(whole[rest] >= 10 for rest in edges), (group, whole)


def test_chunks_lie_at_boundaries_too() -> None:
    """Steps end on, before and behind blocks, and single tokens are frequent."""
    asked = Counter(
        tokens
        for one in _traces(_shape("full-mamba"))
        for op in one.ops
        if isinstance(op, Step)
        for _, tokens in op.run
    )
    assert {15, 16, 17, 31, 32, 33} <= set(asked)
    assert asked[1] > sum(asked.values()) // 10


@pytest.mark.parametrize("level", ["manager", "scheduler"])
def test_every_operation_occurs(level: Level) -> None:
    """Over fifty seeds nothing is missing: both resets, every part of an identity, withdrawals
    if asked for.
    """
    ops = [op for one in _traces(_shape(level=level), withdraw=True) for op in one.ops]
    kinds = {type(op) for op in ops}
    assert kinds == {Submit, Step, Finish, Abort, Preempt, Reset, UpdateWeights}
    assert {op.running for op in ops if isinstance(op, Reset)} == {True, False}
    submitted = [op for op in ops if isinstance(op, Submit)]
    assert all(any(getattr(op, part) for op in submitted) for part in ("salt", "adapter", "media"))
    assert level != "manager" or any(op.withdraw for op in ops if isinstance(op, Step))
    assert not any(
        op.withdraw for one in _traces(_shape()) for op in one.ops if isinstance(op, Step)
    )


def test_prompts_are_shared_and_repeated() -> None:
    """Most traces have an exact replay, and one prompt that begins with another."""
    replays = extensions = 0
    for one in _traces(_shape()):
        prompts = [op.prompt for op in one.ops if isinstance(op, Submit)]
        replays += len(set(prompts)) < len(prompts)
        extensions += any(other.startswith(prompt + " ") for prompt in prompts for other in prompts)
    assert replays > len(SEEDS) // 2 and extensions > len(SEEDS) // 2


def test_a_trace_is_well_formed() -> None:
    """Every request is submitted once, before it is named; all end; images lie inside their
    prompts; a pool holds something.
    """
    for one in _traces(_shape(), withdraw=True):
        live: set[str] = set()
        known: set[str] = set()
        for op in one.ops:
            if isinstance(op, Submit):
                assert op.r not in known
                assert all(item.at + item.length <= length_of(op.prompt) for item in op.media)
                known.add(op.r)
                live.add(op.r)
            elif isinstance(op, Finish | Abort):
                live.remove(op.r)
            elif isinstance(op, Step):
                assert {r for r, _ in op.run} | {*op.withdraw, *op.cancel} <= live
                live -= {*op.cancel}
        assert not live and one.header.pages > 4
        assert len(one.ops) >= OPERATIONS


SENT = SentPrompt("A:8 r1[3]:4", "one", "tuned", (Media(2, 3, "cat-3"), Media(6, 3, "dog-3")))


def test_a_near_miss_differs_in_one_place_or_part() -> None:
    """One or two neighbouring tokens, the salt and the adapter, or the images: never two of
    these; all three are drawn.
    """
    changed = Counter[str]()
    for seed in range(300):
        other = near_miss(Seeded(seed), SENT, [8], "x")
        words = Vocabulary()
        tokens = words.tokens(SENT.prompt)
        others = words.tokens(other.prompt)
        places = [
            at for at, (one, two) in enumerate(zip(tokens, others, strict=True)) if one != two
        ]
        parts = [
            places,
            (SENT.salt, SENT.adapter) != (other.salt, other.adapter),
            SENT.media != other.media,
        ]
        assert sum(map(bool, parts)) == 1
        assert not places or (7 <= places[0] <= 9 and places[-1] - places[0] <= 1)
        ends = [0, *(item.at + item.length for item in other.media)]
        assert (
            all(end <= item.at for end, item in zip(ends, other.media, strict=False))
            and ends[-1] <= other.length
        )
        changed.update(
            name for name, part in zip(("tokens", "names", "images"), parts, strict=True) if part
        )
    assert all(changed[name] > 30 for name in ("tokens", "names", "images"))


def test_names_that_join_to_one_text_are_drawn() -> None:
    """Salt and adapter change places, or become one name; two tokens change a sum of powers of
    the base by nothing.
    """
    drawn = {
        (other.salt, other.adapter)
        for seed in range(300)
        for other in [near_miss(Seeded(seed), SENT, [], "x")]
    }
    assert {
        ("tuned", "one"),
        ("onetuned", ""),
        ("", "tunedone"),
        ("", "tuned"),
        ("one", ""),
    } <= drawn
    assert spliced("A:3 B[2]:3", 2, ("x:1", "y:1")) == "A:2 x:1 y:1 B[3]:2"


def test_a_gallery_has_many_images_of_one_length() -> None:
    """Behind the same tokens, at one place; nothing else tells the requests apart."""
    trace = write_gallery(_shape(), Seeded(1), name="gallery")
    submitted = [op for op in trace.ops if isinstance(op, Submit)]
    assert len({op.prompt for op in submitted}) == 1
    assert len({op.media[0].hash for op in submitted}) == len(submitted) >= 64
    assert len({(op.media[0].at, op.media[0].length) for op in submitted}) == 1


def test_traces_are_of_swarms_and_of_crowds() -> None:
    """Some have no preemption, some many; at least one has 64 live requests, and clients go away
    while a step is scheduled.
    """
    traces = [random_trace(_shape(), seed, withdraw=False) for seed in range(150)]
    preempted = [sum(isinstance(op, Preempt) for op in one.ops) for one in traces]
    assert preempted.count(0) > 20 and max(preempted) >= 8
    assert max(_live_max(one) for one in traces) == 64
    cancelled = [any(op.cancel for op in one.ops if isinstance(op, Step)) for one in traces]
    assert [("cancel" in one.header.needs) for one in traces] == cancelled and sum(cancelled) > 20


@pytest.mark.parametrize("delay", [0, 2])
def test_a_tier_serves_what_the_device_lost(delay: int) -> None:
    """Whether copies take time or not, most traces over a second tier have the device lose what
    it cached, several times.
    """
    shape = replace(_shape(level="scheduler"), options={"tier_pages": 16, "tier_delay": delay})
    lost = [
        sum(isinstance(op, Reset) and op.tier == "local" for op in one.ops)
        for one in _traces(shape)
    ]
    assert sum(times >= 3 for times in lost) > len(SEEDS) // 2


def _live_max(one: Trace) -> int:
    live, most = 0, 0
    for op in one.ops:
        live += isinstance(op, Submit)
        live -= len(op.cancel) if isinstance(op, Step) else isinstance(op, Finish | Abort)
        most = max(most, live)
    return most
