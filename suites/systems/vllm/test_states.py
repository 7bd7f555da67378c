"""The worker's moves of recurrent states: whatever stands of the drafts, a step begins with the
state after its last token.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Group, Header, Move, Pool, Run
from cachewitness.systems.vllm.states import WorkerStates

SIZE, DRAFTS, FIRST = 4, 3, 100


class Request:
    """A request whose row has a page of its own in every column; remembers after how many tokens
    each page is the state.
    """

    def __init__(self) -> None:
        self.states = WorkerStates(
            Header("test", "scheduler", [Pool(0, 300, [0])], [Group(0, "recurrent", SIZE)])
        )
        self.row = [FIRST + column for column in range(60)]
        self.after: dict[int, int] = {}
        self.length = 0

    def step(self, count: int, drafts: int, stood: int) -> None:
        """Compute so many known tokens and drafts, of which some stand; check what is read."""
        start = self.length
        known = self.length + count
        run = Run("r", start, known + drafts, [self.row], [7] * drafts)
        run, before, behind = self.states.settle(run, [self.row], stood + 1)
        self.copy(before)
        (table,) = run.tables
        if start:
            assert self.after[table[(start - 1) // SIZE]] == start
        self.after[table[-(-known // SIZE) - 1]] = known
        for index, page in enumerate(run.scratch[0] if drafts else ()):
            self.after[page] = known + index + 1
        self.copy(behind)
        self.length = known + stood

    def copy(self, moves: list[Move]) -> None:
        """Make copies, all at once."""
        self.after |= {move.dst: self.after[move.src] for move in moves}


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, DRAFTS), st.integers(0, DRAFTS)), max_size=30),
)
def test_a_step_reads_the_state_after_the_last_token_and_boundaries_are_in_their_columns(
    prompt: int, steps: list[tuple[int, int]]
) -> None:
    """Whatever was guessed, and whatever stood of it."""
    request = Request()
    request.step(prompt, 0, 0)
    for drafts, stood in steps:
        passed = request.length // SIZE
        request.step(1, drafts, min(drafts, stood))
        for column in range(passed, request.length // SIZE):
            assert request.after[request.row[column]] == (column + 1) * SIZE


def test_a_request_that_comes_back_begins_where_its_hit_ends() -> None:
    """What was remembered of it is over: the state that it goes on from lies in the column of
    its hit.
    """
    request = Request()
    request.step(6, 0, 0)
    request.step(1, 3, 2)
    request.states.admit(["r"])
    request.length = 4
    request.after = {request.row[0]: 4}
    request.step(5, 0, 0)


def test_a_row_that_is_too_short_for_a_state_is_an_error_with_its_request() -> None:
    """The scheduler gave fewer blocks than the drafts need."""
    request = Request()
    with pytest.raises(
        EngineFailure, match="told 2 columns of r to its worker; a state belongs into column 2"
    ):
        request.states.lay_out(Run("r", 4, 8, [[1, 2]], [7, 7, 7]), [[1, 2]])
