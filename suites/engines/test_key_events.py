"""Events for routers, read from a cache of vLLM's shape and from a real vLLM."""

from __future__ import annotations

import pytest

from cachewitness.core.driving import drive
from cachewitness.core.events import KvCleared, KvRemoved, KvStored, KvUnreadable
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Level
from cachewitness.engines.key_events import KeyEventReader
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.reference.policy import default_configurations
from cachewitness.workloads.generate import random_trace
from cachewitness_reference.primitives import BlockHash, GroupId
from cachewitness_reference.vllm.events import AllBlocksCleared, BlockRemoved, BlockStored
from suites.support.real_vllm import REAL, SOURCE

ONE = BlockHash(b"1")
TWO = BlockHash(b"2")
PARENT = BlockHash(b"0")


def test_hashes_become_names_that_are_the_same_in_every_run() -> None:
    reader = KeyEventReader()
    stored = BlockStored([ONE, TWO], PARENT, [1, 2, 3, 4], 2, GroupId(1))
    events = reader.read([stored, BlockRemoved([TWO], GroupId(1)), AllBlocksCleared()], 7)
    assert events == [
        KvStored(
            step=7, hashes=["h1", "h2"], tokens=[1, 2, 3, 4], block_size=2, group=1, parent="h3"
        ),
        KvRemoved(step=7, hashes=["h2"], group=1),
        KvCleared(step=7),
    ]


def test_a_salt_that_is_the_adapters_name_is_still_a_salt() -> None:
    """Extra keys have no tags: the adapter comes first if there is one, items are pairs, and the
    salt is what is left.
    """
    keys = [("tuned", ("cat", 1), "tuned"), ("tuned", ("cat", -1))]
    stored = BlockStored([ONE, TWO], None, [1, 2, 3, 4], 2, GroupId(0), "tuned", keys)
    (event,) = KeyEventReader().read([stored], 1)
    assert isinstance(event, KvStored)
    assert (event.salt, event.adapter, event.media) == (
        "tuned",
        "tuned",
        [[("cat", 1)], [("cat", -1)]],
    )


@pytest.mark.parametrize(
    ("keys", "salt", "media"),
    [
        ([("cat",)], "('cat',)", []),
        ([("cat", 1, "image")], "('cat', 1, 'image')", []),
        ([("cat", "one")], "('cat', 'one')", []),
        ([7, "salt"], "7 salt", []),
        (7, "7", []),
        ([("cat", 1), b"digest"], "b'digest'", [[("cat", 1)]]),
    ],
)
def test_extra_keys_of_another_shape_are_what_tells_blocks_apart(
    keys: object, salt: str, media: list[list[tuple[str, int]]]
) -> None:
    """A fork may put there what it likes: nothing raises, and the checker holds it against the
    request, which has no such salt.
    """
    stored = BlockStored([ONE], None, [1, 2], 2, GroupId(0), "", [keys])  # type: ignore[list-item]
    (event,) = KeyEventReader().read([stored], 1)
    assert isinstance(event, KvStored)
    assert (event.salt, event.media) == (salt, media)


class Moved:
    """An event of a fork, which no router knows."""


class OlderRemoved:
    """An event that lacks what routers read."""

    block_hashes = (ONE,)


OlderRemoved.__name__ = "BlockRemoved"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Moved(), "Moved is none of BlockStored, BlockRemoved and AllBlocksCleared"),
        (3, "int is none of BlockStored"),
        (OlderRemoved(), "BlockRemoved cannot be read: 'BlockRemoved' object has no attribute"),
    ],
)
def test_an_event_that_no_router_reads_is_named_and_the_others_are_read(
    event: object, why: str
) -> None:
    unread, cleared = KeyEventReader().read([event, AllBlocksCleared()], 1)
    assert isinstance(unread, KvUnreadable) and unread.why.startswith(why)
    assert cleared == KvCleared(step=1)


def _run(engine: str, layout: str, level: Level, seed: int = 0) -> Result:
    """Run a random trace on real vLLM."""
    configuration = next(
        one
        for one in default_configurations()
        if one.name.startswith(layout) and one.runs_at(level)
    )
    trace = random_trace(configuration.shape(level), seed, withdraw=False)
    return drive(trace, parse(f"vllm:source={SOURCE}{engine}").open(trace.header))


@pytest.mark.parametrize(
    "level", [pytest.param("manager", marks=REAL), pytest.param("scheduler", marks=REAL)]
)
def test_a_real_vllm_tells_routers_of_every_key(level: Level) -> None:
    kinds: set[type] = set()
    for seed in range(4):
        result = _run("", "full-mamba", level, seed)
        tally = next(tally for tally in result.tallies if tally.checker == "key-events")
        assert tally.opportunities > 0 and tally.findings == 0
        assert tally.excused["key_events gaps"] > 0
        kinds.update(type(event) for event in result.history.events)
    assert {KvStored, KvRemoved, KvCleared} <= kinds


@pytest.mark.parametrize("layout", [pytest.param("full-mamba", marks=REAL)])
def test_what_its_events_leave_open_is_reported_on_demand(layout: str) -> None:
    """vllm-project/vllm#44451; without groups that are pruned nothing is left open."""
    assert {
        finding.anomaly for finding in _run(",key_events=strict", layout, "manager").findings
    } == {"malformed-key-event"}
    assert not _run(",key_events=strict", "full", "manager").findings


@pytest.mark.parametrize(
    "level", [pytest.param("manager", marks=REAL), pytest.param("scheduler", marks=REAL)]
)
def test_routers_are_told_of_hits_on_demand(level: Level) -> None:
    """Full attention's are told right; of pruned groups 0.33 tells blocks that have no key
    (vllm-project/vllm#57358).
    """
    stored = {}
    for engine in ("", ",key_events=full"):
        result = _run(engine, "full", level)
        assert not result.findings
        stored[engine] = sum(isinstance(event, KvStored) for event in result.history.events)
    assert stored[",key_events=full"] > stored[""]
    assert {
        finding.anomaly for finding in _run(",key_events=full", "full-mamba", level).findings
    } == {"false-key-event"}
