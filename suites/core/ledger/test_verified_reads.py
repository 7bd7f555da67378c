"""A long read is not looked at whole again and again; whatever happens to a page between two
reads is seen all the same.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachewitness.core.driving import drive
from cachewitness.core.events import (
    Accept,
    Acquire,
    Copy,
    Event,
    Group,
    Header,
    Move,
    Pool,
    Read,
    Release,
    StepBegin,
    StepEnd,
    Submitted,
    Version,
    Write,
    Zero,
)
from cachewitness.core.ledger import reads
from cachewitness.core.ledger.collection import Collector
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import PoolRecords
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace, load
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse
from cachewitness.sessions.mutants.minimal_trace import path_of
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace

SIZE, COLUMNS = 4, 50
TOKENS = SIZE * COLUMNS
HEADER = Header(
    "test",
    "manager",
    [Pool(0, 4 * COLUMNS, [0])],
    [Group(0, "full", SIZE), Group(1, "recurrent", SIZE), Group(2, "full", SIZE)],
)
TABLE = list(range(1, COLUMNS + 1))
HIT = 7
"""The column that something happens to, in the middle of what was read long ago."""
PAGE = TABLE[HIT]
FREE = 2 * COLUMNS


def _write(r: str, pages: list[int], start: int, stop: int, group: int = 0) -> Write:
    return Write(pool=0, group=group, pages=pages, r=r, start=start, stop=stop, step=1)


def _read(
    stop: int = TOKENS, table: list[int] = TABLE, r: str = "r1", start: int = 0, group: int = 0
) -> Read:
    columns = slice(start // SIZE, -(-stop // SIZE))
    return Read(pool=0, group=group, pages=table[columns], r=r, start=start, stop=stop, step=1)


def _invalid(ledger: Ledger, read: Read) -> list[int]:
    return list(ledger.before(read).invalid)


def _ledger(*, same: bool = False) -> Ledger:
    """Return a ledger in which r1 has computed its tokens and read them; r2 is another request,
    or one that begins alike.
    """
    ledger = Ledger(HEADER)
    ledger.apply(Submitted(r="r1", tokens=list(range(TOKENS))))
    ledger.apply(
        Submitted(r="r2", tokens=list(range(TOKENS)) if same else list(range(1000, 1000 + TOKENS)))
    )
    ledger.apply(Acquire(pool=0, group=0, pages=TABLE, holder="r1"))
    ledger.apply(_write("r1", TABLE, 0, TOKENS - 1))
    for stop in (TOKENS - SIZE, TOKENS - 1):
        read = _read(stop)
        assert not ledger.before(read).invalid
        ledger.apply(read)
    return ledger


DAMAGES: dict[str, list[Event]] = {
    "overwritten by another request": [_write("r2", [PAGE], HIT * SIZE, (HIT + 1) * SIZE)],
    "overwritten in part": [_write("r2", [PAGE], HIT * SIZE + 1, HIT * SIZE + 2)],
    "overwritten by the request itself": [_write("r1", [PAGE], (HIT + 1) * SIZE, (HIT + 2) * SIZE)],
    "written as another group's": [_write("r1", [PAGE], HIT * SIZE, (HIT + 1) * SIZE, group=2)],
    "written as a state": [_write("r1", [PAGE], 0, SIZE, group=1)],
    "given back": [Release(pool=0, group=0, pages=[PAGE], holder="r1")],
    "given back for another group": [Release(pool=0, group=2, pages=[PAGE], holder="r1")],
    "given back and taken again": [
        Release(pool=0, group=0, pages=[PAGE], holder="r1"),
        Acquire(pool=0, group=0, pages=[PAGE], holder="r1"),
    ],
    "handed to another request": [
        Release(pool=0, group=0, pages=[PAGE], holder="r1"),
        Acquire(pool=0, group=0, pages=[PAGE], holder="r2"),
        _write("r2", [PAGE], HIT * SIZE, (HIT + 1) * SIZE),
    ],
    "filled with zeros": [Zero(pool=0, pages=[PAGE])],
    "copied over": [Copy(id=1, moves=[Move(TABLE[HIT + 1], PAGE)])],
    "being filled by a copy": [Copy(id=1, moves=[Move(TABLE[HIT + 1], PAGE)], phase="begin")],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_happens_to_a_page_between_two_reads_is_seen(damage: str) -> None:
    """The next read is invalid in just that column; without the damage it is right."""
    for events, expected in (([], []), (DAMAGES[damage], [HIT])):
        ledger = _ledger()
        for event in events:
            ledger.apply(event)
        ledger.apply(_write("r1", TABLE[-1:], TOKENS - 1, TOKENS))
        assert _invalid(ledger, _read()) == expected


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_check_of_the_new_tokens_alone_would_miss_it(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that is told of no change, and looks at what is new in a read alone, sees nothing
    of it.
    """
    for method in ("changes", "parts"):
        monkeypatch.setattr(PoolRecords, method, lambda *_: None)
    ledger = _ledger()
    for event in DAMAGES[damage]:
        ledger.apply(event)
    assert _invalid(ledger, _read(TOKENS - 1)) == []


LATE = COLUMNS - 2
"""A column that is not remembered."""


@pytest.mark.parametrize(
    "damage",
    [Zero(pool=0, pages=TABLE[:1]), _write("r1", TABLE[:1], LATE * SIZE + 2, (LATE + 1) * SIZE)],
    ids=["zeros", "tokens"],
)
def test_what_happens_to_the_rest_of_a_page_is_seen(damage: Event) -> None:
    """The first page has half a block that is read, beside tokens of a late column, which are
    the newest that it holds.
    """
    ledger = _ledger()
    ledger.apply(_write("r1", TABLE[:1], LATE * SIZE, LATE * SIZE + 2))
    assert _invalid(ledger, _read(TOKENS - 1, start=2)) == []
    ledger.apply(damage)
    assert _invalid(ledger, _read(TOKENS - 1, start=2)) == [0]


def test_a_read_that_begins_earlier_is_looked_at_again() -> None:
    """Half of the first block is right; a read that needs all of it is not."""
    ledger = _ledger()
    ledger.apply(_write("r2", TABLE[:1], 0, 2))
    assert _invalid(ledger, _read(TOKENS - 1, start=2)) == []
    assert _invalid(ledger, _read(TOKENS - 1)) == [0]


def test_a_request_that_became_shorter_is_looked_at_again() -> None:
    """Tokens are taken off again, as drafts are that fell: what is left of the prefix is read as
    ever.
    """
    ledger = _ledger()
    cut = COLUMNS - 10
    ledger.apply(Accept(r="r1", upto=cut * SIZE + 1, tokens=[cut * SIZE]))
    assert _invalid(ledger, _read(cut * SIZE + 1)) == []
    ledger.apply(Accept(r="r1", upto=TOKENS, tokens=list(range(5000, 5000 + TOKENS - cut * SIZE))))
    assert _invalid(ledger, _read(TOKENS - 1)) == list(range(cut, COLUMNS))


def test_a_page_that_a_step_still_copies_from_is_seen_to_be_lost() -> None:
    """Given back while a step in flight copies from it, and taken and written anew too early:
    the end of the step ends it.
    """
    ledger = _ledger()
    ledger.apply(StepBegin(step=1, copies=[Move(PAGE, FREE)]))
    ledger.apply(Release(pool=0, group=0, pages=[PAGE], holder="r1"))
    ledger.apply(Acquire(pool=0, group=0, pages=[PAGE], holder="r1"))
    assert _invalid(ledger, _read(TOKENS - 1)) == []
    ledger.apply(StepEnd(step=1))
    assert _invalid(ledger, _read(TOKENS - 1)) == [HIT]


def test_nothing_is_remembered_of_prefixes_whose_numbers_are_given_away() -> None:
    """When the ledger forgets prefixes, what was verified goes too: its number may come to stand
    for another prefix.
    """
    ledger = _ledger()
    assert ledger.records[0].verified
    Collector(ledger).collect()
    assert not ledger.records[0].verified


def test_another_page_in_the_table_is_seen() -> None:
    """Nothing happens to any page, but the table names another one that holds other tokens."""
    ledger = _ledger()
    ledger.apply(Acquire(pool=0, group=0, pages=[FREE], holder="r1"))
    assert _invalid(ledger, _read(table=[*TABLE[:HIT], FREE, *TABLE[HIT + 1 :]])) == [
        HIT,
        COLUMNS - 1,
    ]


def test_another_prefix_over_the_same_pages_is_seen() -> None:
    """Preempted without giving anything back, and computed anew under other weights: every block
    is another's.
    """
    ledger = _ledger()
    ledger.apply(Version(weights=1))
    ledger.requests.preempt("r1")
    assert _invalid(ledger, _read(TOKENS - 1)) == list(range(COLUMNS))


def test_what_was_invalid_once_is_looked_at_again() -> None:
    """A page that does not hold what is read stays invalid for every read after, and is right
    when it is written.
    """
    ledger = _ledger()
    ledger.apply(Zero(pool=0, pages=[PAGE]))
    for _ in range(2):
        read = _read(TOKENS - 1)
        assert _invalid(ledger, read) == [HIT]
        ledger.apply(read)
    ledger.apply(_write("r1", [PAGE], HIT * SIZE, (HIT + 1) * SIZE))
    assert _invalid(ledger, _read(TOKENS - 1)) == []


def test_what_another_request_gives_back_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prefix that two requests share: one ends, and the read of the other looks at its last
    blocks alone.
    """
    ledger = _ledger(same=True)
    ledger.apply(Acquire(pool=0, group=0, pages=TABLE[:-1], holder="r2"))
    for r in ("r1", "r2"):
        read = _read(TOKENS - SIZE, r=r)
        assert not ledger.before(read).invalid
        ledger.apply(read)
    looked: list[int] = []
    whole = reads._invalid_from
    monkeypatch.setattr(
        reads, "_invalid_from", lambda column, *rest: looked.append(column) or whole(column, *rest)
    )
    ledger.apply(Release(pool=0, group=0, pages=TABLE[:-1], holder="r2"))
    assert _invalid(ledger, _read(TOKENS - 1)) == []
    assert looked == [COLUMNS - 1 - reads.OPEN]


def _judged(trace: Trace, engine: str, long: int, opened: int) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "LONG", long)
        patch.setattr(reads, "OPEN", opened)
        return drive(trace, parse(engine).open(trace.header), keep=False)


def _assert_alike(trace: Trace, engine: str) -> None:
    whole = _judged(trace, engine, 1 << 30, 0)
    for opened in (0, 1):
        remembering = _judged(trace, engine, 0, opened)
        assert remembering.findings == whole.findings
        assert remembering.tallies == whole.tallies


@pytest.mark.parametrize(
    "policy", ["vllm", "openvino_genai", "lmcache", "furiosa", "tensorrt_edge"]
)
def test_every_fault_is_found_as_if_every_read_were_looked_at_whole(policy: str) -> None:
    """The smallest trace of every seeded fault of a policy that needs no tensors: findings and
    opportunities are the same.
    """
    mutants = [
        one for one in all_mutants().values() if one.policy == policy and one.engine == "reference"
    ]
    assert mutants
    for one in mutants:
        _assert_alike(load(path_of(one)), f"reference:mutant={one.name}")


LAYOUTS: dict[str, dict[str, object]] = {
    "full-swa-mamba": {"retention_interval": 64},
    "full-mamba": {},
    "full": {},
}


@pytest.mark.parametrize(
    "mutant",
    [
        "",
        "window-freed-early",
        "touch-after-allocate",
        "shared-block-freed-twice",
        "reset-keeps-keys",
    ],
)
def test_random_traces_are_judged_as_if_every_read_were_looked_at_whole(mutant: str) -> None:
    """With preemptions, resets, withdrawn steps, on every kind of group."""
    for seed, (layout, options) in enumerate(LAYOUTS.items()):
        shape = Configuration(layouts.load(layout), options).shape("manager")
        trace = random_trace(shape, seed, withdraw=True, operations=120)
        _assert_alike(trace, f"reference:mutant={mutant}" if mutant else "reference")


PAGES = st.integers(1, 6)
TEXTS = ["r1", "r2"]


def _writes(r: str, column: int, group: int, page: int, first: int, count: int) -> Write:
    start = column * SIZE + first
    return _write(r, [page], start, min(start + count, (column + 1) * SIZE), group)


R = st.sampled_from(TEXTS)
STOPS = st.integers(SIZE, 4 * SIZE)
ACTIONS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        _writes,
        R,
        st.integers(0, 3),
        st.sampled_from([0, 0, 2]),
        PAGES,
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    st.builds(lambda r, page: Acquire(pool=0, group=0, pages=[page], holder=r), R, PAGES),
    st.builds(lambda r, page: Release(pool=0, group=0, pages=[page], holder=r), R, PAGES),
    st.builds(lambda page: Zero(pool=0, pages=[page]), PAGES),
    st.builds(lambda src, dst: Copy(id=1, moves=[Move(src, dst)]), PAGES, PAGES),
    st.builds(lambda r, stop, table: _read(stop, table, r), R, STOPS, st.permutations(range(1, 7))),
    st.builds(
        lambda r, start, stop: _read(stop, [1, 2, 3, 4], r, min(start, stop - 1)),
        R,
        st.integers(0, 6),
        STOPS,
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_any_order_of_events_is_judged_as_if_every_read_were_looked_at_whole(
    script: list[Event],
) -> None:
    """Two requests that share their first two blocks, six pages, and no sense at all in what
    happens to them.
    """
    answers: list[list[list[int]]] = []
    for long in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reads, "LONG", long)
            patch.setattr(reads, "OPEN", 0)
            answers.append(_invalid_reads(script))
    assert answers[0] == answers[1]


def _invalid_reads(script: list[Event]) -> list[list[int]]:
    ledger = Ledger(HEADER)
    for r in TEXTS:
        ledger.apply(
            Submitted(
                r=r,
                tokens=[
                    token if token < 2 * SIZE else token + 100 * (r == "r2")
                    for token in range(5 * SIZE)
                ],
            )
        )
        ledger.apply(Acquire(pool=0, group=0, pages=[1, 2, 3, 4], holder=r))
    ledger.apply(_write("r1", [1, 2, 3, 4], 0, 4 * SIZE))
    found = []
    for event in script:
        if isinstance(event, Read):
            found.append(_invalid(ledger, event))
        ledger.apply(event)
    return found
