"""Shrinking finds the smallest trace of known faults, and never anything that does not fail or is larger."""

from __future__ import annotations

import time

import pytest

from harness import layouts
from harness.cells import Cell
from harness.generate import random_trace
from harness.shrink import shrink
from harness.trace import Media, Op, Preempt, Step, Submit, Trace, length_of

SHAPE = Cell(layouts.load("full-mamba")).shape("manager")
SEEDS = range(4)


def _preempted_with_five_tokens(trace: Trace) -> int:
    """Fail where a request of five or more tokens is preempted."""
    long = {op.r for op in trace.ops if isinstance(op, Submit) and length_of(op.prompt) >= 5}
    return next((index for index, op in enumerate(trace.ops) if isinstance(op, Preempt) and op.r in long), -1)


def _two_in_a_step(trace: Trace) -> int:
    """Fail where a step runs seven tokens or more, of two known requests or more, while a third waits and the pool is large."""
    known: set[str] = set()
    for index, op in enumerate(trace.ops):
        if isinstance(op, Submit):
            known.add(op.r)
        elif isinstance(op, Step) and trace.header.slots >= 6 and len(known) > 2:
            run = [(r, tokens) for r, tokens in op.run if r in known]
            if len(run) > 1 and sum(tokens for _, tokens in run) >= 7:
                return index
    return -1


def _salted(trace: Trace) -> int:
    """Fail where a request with a salt is submitted after one with an image."""
    seen = False
    for index, op in enumerate(trace.ops):
        if isinstance(op, Submit):
            if seen and op.salt:
                return index
            seen = seen or bool(op.media)
    return -1


def _asked(ops: list[Op]) -> int:
    return sum(tokens for op in ops if isinstance(op, Step) for _, tokens in op.run)


def _prompts(ops: list[Op]) -> int:
    return sum(length_of(op.prompt) for op in ops if isinstance(op, Submit))


def _failing(fails: object, seed: int) -> Trace:
    assert callable(fails)
    for number in range(seed * 1000, seed * 1000 + 1000):
        trace = random_trace(SHAPE, number, withdraw=False, operations=40)
        if fails(trace) >= 0:
            return trace
    raise AssertionError("no random trace fails so")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_preemption_shrinks_to_its_two_operations(seed: int) -> None:
    """A prompt of five tokens and the preemption: there is no smaller trace that fails so."""
    shrunk = shrink(_failing(_preempted_with_five_tokens, seed), _preempted_with_five_tokens)
    assert [type(op) for op in shrunk.ops] == [Submit, Preempt]
    assert _prompts(shrunk.ops) == 5
    assert shrunk.header.slots <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_of_two_shrinks_to_three_requests_and_seven_tokens(seed: int) -> None:
    """Three prompts of one token, one step of seven tokens for two of them, and the least pool that matters."""
    shrunk = shrink(_failing(_two_in_a_step, seed), _two_in_a_step)
    assert [type(op) for op in shrunk.ops] == [Submit, Submit, Submit, Step]
    assert (_prompts(shrunk.ops), _asked(shrunk.ops), shrunk.header.slots) == (3, 7, 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_does_not_matter_of_an_identity_goes(seed: int) -> None:
    """The salt and the image stay where they are needed, and nowhere else."""
    shrunk = shrink(_failing(_salted, seed), _salted)
    first, second = shrunk.ops
    assert isinstance(first, Submit) and isinstance(second, Submit)
    assert (first.salt, bool(first.media), bool(second.salt), second.media) == ("", True, True, [])
    assert (first.adapter, second.adapter, _prompts(shrunk.ops)) == ("", "", 2)


@pytest.mark.parametrize("fails", [_preempted_with_five_tokens, _two_in_a_step, _salted])
def test_the_result_fails_at_its_last_operation_and_is_no_larger(fails: object) -> None:
    """Whatever the seed: not more operations, prompts or slots, and nothing after the operation that fails."""
    assert callable(fails)
    for seed in SEEDS:
        trace = _failing(fails, seed)
        shrunk = shrink(trace, fails)
        assert fails(shrunk) == len(shrunk.ops) - 1
        assert len(shrunk.ops) <= len(trace.ops)
        assert _prompts(shrunk.ops) <= _prompts(trace.ops)
        assert shrunk.header.slots <= trace.header.slots


def test_the_same_failure_shrinks_to_the_same_trace() -> None:
    """No chance is involved."""
    trace = _failing(_two_in_a_step, 9)
    assert shrink(trace, _two_in_a_step) == shrink(trace, _two_in_a_step)


def test_a_trace_that_does_not_fail_again_is_left_alone() -> None:
    """Nothing can be said of it, so nothing is taken away."""
    trace = random_trace(SHAPE, 1, withdraw=False)
    assert shrink(trace, lambda _: -1) is trace


def test_shrinking_stops_when_its_time_is_up() -> None:
    """With the best so far, which still fails."""
    trace = _failing(_two_in_a_step, 9)

    def slowly(candidate: Trace) -> int:
        time.sleep(0.02)
        return _two_in_a_step(candidate)

    started = time.monotonic()
    shrunk = shrink(trace, slowly, seconds=0.1)
    assert time.monotonic() - started < 1.0
    assert _two_in_a_step(shrunk) >= 0
    assert len(shrunk.ops) <= len(trace.ops)


def test_steps_in_a_row_become_one() -> None:
    """What counts is how much was asked, not in how many steps."""

    def seven_in_all(trace: Trace) -> int:
        total = 0
        for index, op in enumerate(trace.ops):
            if isinstance(op, Step):
                total += sum(tokens for _, tokens in op.run)
                if total >= 7:
                    return index
        return -1

    header = random_trace(SHAPE, 1, withdraw=False).header
    steps: list[Op] = [Step(run=[("r1", 2)]) for _ in range(9)]
    trace = Trace(header, [Submit("r1", "a:30", media=[Media(0, 1, "cat")]), *steps])
    assert shrink(trace, seven_in_all).ops == [Step(run=[("r1", 7)])]
