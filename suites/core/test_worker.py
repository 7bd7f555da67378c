"""The worker executes tables in the order of a forward pass and reads what the mathematics of
each kind of layer reads.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cachewitness.core.attention_span import columns, first_needed, needed_lengths, spans_read
from cachewitness.core.events import (
    Copy,
    Event,
    Group,
    Header,
    Move,
    Pool,
    Read,
    Run,
    Settled,
    StepBegin,
    StepEnd,
    Write,
    Zero,
)
from cachewitness.core.worker import NO_COLUMN, Worker
from cachewitness.workloads.notation import parse

groups = st.one_of(
    st.builds(lambda size: Group(0, "full", size), st.integers(1, 5)),
    st.builds(
        lambda size, window: Group(0, "sliding", size, window=window),
        st.integers(1, 5),
        st.integers(1, 12),
    ),
    st.builds(
        lambda size, chunk: Group(0, "chunked", size, chunk=chunk),
        st.integers(1, 5),
        st.integers(1, 12),
    ),
    st.builds(lambda size: Group(0, "recurrent", size), st.integers(1, 5)),
)


def _read_by(group: Group, query: int) -> list[int]:
    """Return the earlier positions that the query at this position attends to, by the definition
    of each mask.
    """
    if group.kind == "sliding":
        return [key for key in range(query) if query - key < group.window]
    if group.kind == "chunked":
        return [key for key in range(query) if key // group.chunk == query // group.chunk]
    return list(range(query))


# --- needs ----------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(groups, st.integers(0, 40))
def test_the_first_needed_position_is_the_first_that_the_mask_shows(
    group: Group, query: int
) -> None:
    """And everything from there to the query is shown; a recurrent layer reads its state alone."""
    first = first_needed(group, query)
    if group.kind == "recurrent":
        assert first == query
    else:
        assert list(range(first, query)) == _read_by(group, query)


@settings(max_examples=300, deadline=None)
@given(groups, st.integers(0, 40))
def test_the_needed_lengths_are_the_blocks_that_the_query_reads(group: Group, query: int) -> None:
    """One key for every block with a position that is read, at its end or at the query; one
    state.
    """
    if group.kind == "recurrent":
        expected = [query] if query else []
    else:
        blocks = {key // group.block_size for key in _read_by(group, query)}
        expected = sorted(min((block + 1) * group.block_size, query) for block in blocks)
    assert needed_lengths(group, query) == expected


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(0, 30), st.integers(1, 30))
def test_columns_are_those_of_the_tokens(size: int, start: int, count: int) -> None:
    """The half-open range of columns in which some token lies."""
    first, last = columns(Group(0, "full", size), start, start + count)
    assert list(range(first, last)) == sorted(
        {position // size for position in range(start, start + count)}
    )


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 40), st.integers(1, 6))
def test_a_window_over_the_answer_shows_the_prompt_whole(
    window: int, prompt: int, start: int, count: int
) -> None:
    """The mask of reference sliding windows: a key is of the prompt, or less than a window in
    front of the query.
    """
    shown = {
        key
        for query in range(start, start + count)
        for key in range(query + 1)
        if key < prompt or query - key < window
    }
    read = spans_read(Group(0, "full", 4, answer_window=window), start, start + count, prompt)
    assert {key for first, last in read for key in range(first, last)} == shown


# --- one run --------------------------------------------------------------------------------------


def _executed(group: Group, start: int, stop: int, table: list[int]) -> list[Event]:
    header = Header("test", "manager", [Pool(0, 100, [0])], [group])
    events: list[Event] = [
        StepBegin(step=1, runs=[Run("r1", start, stop, [table])]),
        StepEnd(step=1),
    ]
    return Worker(header).extend(events)[1:-1]


@settings(max_examples=300, deadline=None)
@given(
    groups.filter(lambda group: group.kind != "recurrent"), st.integers(0, 30), st.integers(1, 10)
)
def test_a_run_writes_its_tokens_and_reads_what_its_queries_see(
    group: Group, start: int, count: int
) -> None:
    """Each position in its own column; null columns before what is seen are neither read nor
    written.
    """
    stop = start + count
    size = group.block_size
    seen = {key for query in range(start, stop) for key in [*_read_by(group, query), query]}
    table = [
        column + 1 if (column + 1) * size > min(seen) else 0 for column in range(-(-stop // size))
    ]
    write, read = _executed(group, start, stop, table)
    assert isinstance(write, Write) and (write.start, write.stop) == (start, stop)
    assert write.pages == [
        position // size + 1
        for position in range(start, stop)
        if position == start or position % size == 0
    ]
    assert isinstance(read, Read) and set(range(read.start, read.stop)) == seen
    assert read.pages == sorted({position // size + 1 for position in seen})
    assert 0 not in read.pages + write.pages


def test_a_state_is_read_behind_the_last_token_and_written_behind_the_last_of_the_chunk() -> None:
    """Column ⌈n / block⌉ − 1 has the state after n tokens; every-block layers write one at each
    boundary on the way.
    """
    group = Group(0, "recurrent", 4)
    table = [11, 12, 13, 14]
    read, write = _executed(group, 4, 10, table)
    assert isinstance(read, Read) and (read.pages, read.start, read.stop) == ([11], 0, 4)
    assert isinstance(write, Write) and (write.pages, write.start, write.stop) == ([13], 4, 10)
    every = _executed(Group(0, "recurrent", 4, snapshots="every-block"), 3, 12, table)
    assert [(event.pages, event.stop) for event in every if isinstance(event, Write)] == [
        ([11], 4),
        ([12], 8),
        ([13], 12),
    ]
    first = _executed(group, 0, 4, table)
    assert [type(event) for event in first] == [Write]


def test_the_state_after_each_draft_is_written_to_a_page_of_its_own() -> None:
    """The column gets the state after the known tokens; attention writes and reads drafts in
    their own columns.
    """
    groups = [Group(0, "recurrent", 4), Group(1, "full", 4)]
    run = Run("r1", 6, 7, [[11, 12], [21, 22, 23]])
    guessing = Run(
        "r1", 6, 9, [[11, 12], [21, 22, 23]], drafts=[70, 80], scratch=[[31, 32, 33], []]
    )
    steps = []
    for one in (run, guessing):
        header = Header("test", "scheduler", [Pool(0, 100, [0])], groups)
        steps.append(Worker(header).extend([StepBegin(step=1, runs=[one]), StepEnd(step=1)])[1:-1])
    writes = [[(e.group, e.pages, e.stop) for e in step if isinstance(e, Write)] for step in steps]
    assert writes[0] == [(0, [12], 7), (1, [22], 7)]
    assert writes[1] == [(0, [12], 7), (0, [31], 8), (0, [32], 9), (1, [22, 23], 9)]
    reads = [[(e.group, e.pages, e.stop) for e in step if isinstance(e, Read)] for step in steps]
    assert reads[0] == [(0, [12], 6), (1, [21, 22], 7)]
    assert reads[1] == [(0, [12], 6), (1, [21, 22, 23], 9)]


def test_a_state_that_is_saved_within_a_chunk_is_written_where_the_run_says() -> None:
    """Beside the state at the chunk's end, and in its own group alone."""
    groups = [Group(0, "recurrent", 4), Group(1, "recurrent", 4)]
    header = Header("test", "scheduler", [Pool(0, 100, [0])], groups)
    run = Run("r1", 0, 10, [[0, 12, 13], [0, 0, 23]], checkpoints=[(0, 12, 8)])
    happened = Worker(header).extend([StepBegin(step=1, runs=[run]), StepEnd(step=1)])
    writes = [
        (event.group, event.pages, event.stop) for event in happened if isinstance(event, Write)
    ]
    assert writes == [(0, [12], 8), (0, [13], 10), (1, [23], 10)]


def test_tokens_that_are_mirrored_are_written_twice_before_anybody_reads() -> None:
    """Into the page of the table, and into a further page of the same group; what is not
    mirrored lies in one place alone.
    """
    header = Header("test", "scheduler", [Pool(0, 100, [0])], [Group(0, "full", 4)])
    run = Run("r1", 2, 7, [[1, 2]], mirrors=[(0, 51, 2, 4), (0, 52, 4, 6)])
    happened = Worker(header).extend([StepBegin(step=1, runs=[run]), StepEnd(step=1)])[1:-1]
    writes = [
        (event.pages, event.start, event.stop) for event in happened if isinstance(event, Write)
    ]
    assert writes == [([1, 2], 2, 7), ([51], 2, 4), ([52], 4, 6)]
    assert isinstance(happened[-1], Read)


def test_a_run_that_is_settled_when_it_runs_takes_the_place_of_what_was_scheduled() -> None:
    """Two drafts before it fell, so it starts two tokens earlier; states are moved around it
    once that is known.
    """
    header = Header("test", "scheduler", [Pool(0, 100, [0])], [Group(0, "full", 4)])
    begin = StepBegin(
        step=1, runs=[Run("r1", 8, 9, [[1, 2, 3]]), Run("r2", 0, 4, [[4]])], copies=[Move(6, 7)]
    )
    settled = Settled(
        step=1, runs=[Run("r1", 6, 7, [[1, 2, 3]])], before=[Move(7, 8)], after=[Move(8, 9)]
    )
    happened = Worker(header).extend([begin, settled, StepEnd(step=1)])[2:-1]
    assert [event.moves for event in happened if isinstance(event, Copy)] == [
        [Move(6, 7)],
        [Move(7, 8)],
        [Move(8, 9)],
    ]
    assert [type(event) for event in happened] == [Copy, Copy, Write, Write, Read, Read, Copy]
    assert [(e.r, e.start, e.stop) for e in happened if isinstance(e, Write)] == [
        ("r1", 6, 7),
        ("r2", 0, 4),
    ]


def test_stores_come_after_everything_else() -> None:
    """Zeros, copies, what the runs read and write, stores."""
    header = Header(
        "test", "scheduler", [Pool(0, 100, [0]), Pool(1, 9, tier="cpu")], [Group(0, "full", 4)]
    )
    begin = StepBegin(
        step=1,
        runs=[Run("r1", 0, 4, [[1]])],
        copies=[Move(2, 3)],
        zeros=[(0, [1])],
        stores=[Move(1, 8, 0, 1)],
    )
    happened = Worker(header).extend([begin, StepEnd(step=1)])[1:-1]
    assert [type(event) for event in happened] == [Zero, Copy, Write, Read, Copy]
    assert isinstance(happened[-1], Copy) and happened[-1].moves == [Move(1, 8, 0, 1)]


def test_copies_that_take_time_begin_around_the_runs_and_end_behind_them() -> None:
    """A load begins before the runs and a store after them; each ends, or fails, under the
    number of its begin.
    """
    header = Header(
        "test", "scheduler", [Pool(0, 100, [0]), Pool(1, 9, tier="cpu")], [Group(0, "full", 4)]
    )
    store = Move(1, 8, 0, 1)
    load = Move(7, 2, 1, 0)
    first = StepBegin(step=1, runs=[Run("r1", 0, 4, [[1]])], begun=[(5, store), (6, load)])
    second = StepBegin(step=2, runs=[Run("r1", 4, 5, [[1, 3]])], ended=[6], failed=[5])
    happened = [
        e
        for e in Worker(header).extend([first, StepEnd(step=1), second, StepEnd(step=2)])
        if e.step
    ]
    assert [e.phase if isinstance(e, Copy) else type(e).__name__ for e in happened] == [
        *("StepBegin", "begin", "Write", "Read", "begin", "StepEnd"),
        *("StepBegin", "Write", "Read", "end", "fail", "StepEnd"),
    ]
    copies = [e for e in happened if isinstance(e, Copy)]
    assert [e.moves for e in copies] == [[load], [store], [load], [store]]
    assert [e.id for e in copies[2:]] == [e.id for e in copies[:2]]


def test_a_table_that_is_too_short_is_said_to_have_no_column() -> None:
    """The worker does not hide it, and does not take another column's page."""
    write, read = _executed(Group(0, "full", 4), 0, 10, [5])
    assert isinstance(write, Write) and write.pages == [5, NO_COLUMN, NO_COLUMN]
    assert isinstance(read, Read) and read.pages == [5, NO_COLUMN, NO_COLUMN]


# --- a step ---------------------------------------------------------------------------------------

HYBRID = """\
pool 0: 20 pages, null 0
pool 1: 4 pages, tier cpu
group 0: full block 4
group 1: recurrent block 4
group 2: full block 4 pool 1
submit r1 a:9
submit r2 b:9
"""


def test_a_step_zeroes_copies_reads_states_writes_and_then_attends() -> None:
    """The order of a forward pass, over all requests of the step; a group of another tier takes
    no part.
    """
    step = "step 1: r1 4..8 | 1 2 | 3 4; r2 0..4 | 5 | 6; copy 7>1; zero 0/2\n"
    events = [
        event for event in parse(HYBRID + step).events if not isinstance(event, StepBegin | StepEnd)
    ][2:]
    order = [
        (type(event), getattr(event, "group", None), getattr(event, "r", None)) for event in events
    ]
    assert order == [
        (Zero, None, None),
        (Copy, None, None),
        (Read, 1, "r1"),
        (Write, 1, "r1"),
        (Write, 0, "r1"),
        (Write, 1, "r2"),
        (Write, 0, "r2"),
        (Read, 0, "r1"),
        (Read, 0, "r2"),
    ]


def test_steps_execute_when_they_end_and_withdrawn_requests_never() -> None:
    """Two steps in flight: nothing happens before the first one ends."""
    lines = (
        "begin 1: r1 0..4 | 1 | 3; r2 0..4 | 5 | 6\nbegin 2: r1 4..8 | 1 2 | 3 4\n"
        "end 1 withdraw r2\nend 2\n"
    )
    events = parse(HYBRID + lines).events[2:]
    executed = [(type(event).__name__, event.step, getattr(event, "r", "")) for event in events]
    assert executed == [
        ("StepBegin", 1, ""),
        ("StepBegin", 2, ""),
        *[("Write", 1, "r1"), ("Write", 1, "r1"), ("Read", 1, "r1"), ("StepEnd", 1, "")],
        *[
            ("Read", 2, "r1"),
            ("Write", 2, "r1"),
            ("Write", 2, "r1"),
            ("Read", 2, "r1"),
            ("StepEnd", 2, ""),
        ],
    ]


def test_a_step_ends_once() -> None:
    """An end without a beginning executes nothing."""
    events = parse(HYBRID + "end 4\n").events
    assert isinstance(events[-1], StepEnd) and len(events) == 3


def test_a_run_of_nobody_is_left_to_who_follows_the_events() -> None:
    """An engine may name a request that nobody submitted; the worker passes it on, and the
    validator refuses it.
    """
    group = Group(0, "full", 4, answer_window=2)
    assert [event for event in _executed(group, 0, 3, [1]) if isinstance(event, Read)]
