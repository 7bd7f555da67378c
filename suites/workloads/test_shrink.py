"""Shrinking finds the smallest trace of known faults, and never anything that does not fail or
is larger.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import (
    Finish,
    Media,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    length_of,
)
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.shrink import SHORT, shrink, shrink_and_tell

SHAPE = Configuration(layouts.load("full-mamba")).shape("manager")
SEEDS = range(4)


def _preempted_with_five_tokens(trace: Trace) -> int:
    """Fail where a request of five or more tokens is preempted."""
    long = {op.r for op in trace.ops if isinstance(op, Submit) and length_of(op.prompt) >= 5}
    return next(
        (index for index, op in enumerate(trace.ops) if isinstance(op, Preempt) and op.r in long),
        -1,
    )


def _two_in_a_step(trace: Trace) -> int:
    """Fail where a step runs seven tokens or more, of two known requests or more, while a third
    waits and the pool is large.
    """
    known: set[str] = set()
    for index, op in enumerate(trace.ops):
        if isinstance(op, Submit):
            known.add(op.r)
        elif isinstance(op, Step) and trace.header.pages >= 6 and len(known) > 2:
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
    assert shrunk.header.pages <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_of_two_shrinks_to_three_requests_and_seven_tokens(seed: int) -> None:
    """Three prompts of one token, one step of seven tokens for two of them, and the least pool
    that matters.
    """
    shrunk = shrink(_failing(_two_in_a_step, seed), _two_in_a_step)
    assert [type(op) for op in shrunk.ops] == [Submit, Submit, Submit, Step]
    assert (_prompts(shrunk.ops), _asked(shrunk.ops), shrunk.header.pages) == (3, 7, 6)


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
    """Whatever the seed: not more operations, prompts or pages, and nothing after the operation
    that fails.
    """
    assert callable(fails)
    for seed in SEEDS:
        trace = _failing(fails, seed)
        shrunk = shrink(trace, fails)
        assert fails(shrunk) == len(shrunk.ops) - 1
        assert len(shrunk.ops) <= len(trace.ops)
        assert _prompts(shrunk.ops) <= _prompts(trace.ops)
        assert shrunk.header.pages <= trace.header.pages


def test_the_same_failure_shrinks_to_the_same_trace() -> None:
    """No chance is involved."""
    trace = _failing(_two_in_a_step, 9)
    assert shrink(trace, _two_in_a_step) == shrink(trace, _two_in_a_step)


def test_a_trace_that_does_not_fail_again_is_left_alone() -> None:
    """Nothing can be said of it, so nothing is taken away."""
    trace = random_trace(SHAPE, 1, withdraw=False)
    assert shrink(trace, lambda _: -1) is trace


@pytest.mark.parametrize("attempts", [0, 1, 20, 5_000])
def test_a_slow_machine_finds_the_same_witness(attempts: int) -> None:
    """What is found depends on the attempts that are left, never on how long each of them takes."""
    trace = _failing(_two_in_a_step, 9)

    def slowly(candidate: Trace) -> int:
        time.sleep(0.005)
        return _two_in_a_step(candidate)

    assert shrink(trace, slowly, attempts) == shrink(trace, _two_in_a_step, attempts)


def test_shrinking_stops_when_its_attempts_are_spent() -> None:
    """With the best so far, which still fails; beside the attempts there are the first run and
    the last clean-up.
    """
    trace = _failing(_two_in_a_step, 9)
    for attempts in (0, 5, 50):
        ran: list[Trace] = []

        def counted(candidate: Trace, ran: list[Trace] = ran) -> int:
            ran.append(candidate)
            return _two_in_a_step(candidate)

        shrunk = shrink(trace, counted, attempts)
        assert len(ran) <= attempts + 2
        assert _two_in_a_step(shrunk) >= 0 and len(shrunk.ops) <= len(trace.ops)


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


def test_groups_and_options_that_do_not_matter_go() -> None:
    """One group is left, and no option; the trace says that its layout is a part of the one it
    came from.
    """
    shape = Configuration(layouts.load("full-swa-mamba"), {"retention_interval": 0}).shape(
        "manager"
    )
    trace = Trace(
        random_trace(shape, 1, withdraw=False).header, [Submit("r1", "a:9"), Preempt("r1")]
    )
    header = shrink(trace, _preempted_with_five_tokens).header
    assert len(header.layout.groups) == 1 and header.layout.name == "part-of-full-swa-mamba"
    assert header.options == {}


def test_a_configuration_that_is_refused_is_no_failure() -> None:
    """Whoever needs two groups keeps two."""

    def fails(candidate: Trace) -> int:
        if len(candidate.header.layout.groups) < 2:
            raise UsageError("one group is too few")
        return _preempted_with_five_tokens(candidate)

    shape = Configuration(layouts.load("full-swa-mamba")).shape("manager")
    trace = Trace(
        random_trace(shape, 1, withdraw=False).header, [Submit("r1", "a:9"), Preempt("r1")]
    )
    assert len(shrink(trace, fails).header.layout.groups) == 2


def test_what_is_generated_becomes_a_part_of_the_prompt() -> None:
    """Nine tokens computed and a preemption: six steps of decoding are spared by a prompt of
    nine.
    """

    def nine(trace: Trace) -> int:
        computed = 0
        for index, op in enumerate(trace.ops):
            computed += sum(tokens for _, tokens in op.run) if isinstance(op, Step) else 0
            if isinstance(op, Preempt) and computed >= 9 and _within_prompts(trace.ops[:index]):
                return index
        return -1

    header = random_trace(SHAPE, 1, withdraw=False).header
    decode: list[Op] = [Step(run=[("r1", 1)]) for _ in range(6)]
    trace = Trace(header, [Submit("r1", "a:3"), Step(run=[("r1", 3)]), *decode, Preempt("r1")])
    assert shrink(trace, nine).ops == [
        Submit("r1", "a:3 @r1:6"),
        Step(run=[("r1", 9)]),
        Preempt("r1"),
    ]


def _within_prompts(ops: list[Op]) -> bool:
    """Whether no step asks for more than the prompt has and a token for each step of one."""
    singles = sum(op.run == [("r1", 1)] for op in ops if isinstance(op, Step))
    return _asked(ops) <= _prompts(ops) + singles


def test_a_text_that_two_prompts_share_is_cut_in_both() -> None:
    """By whole blocks first, so that it ends where it did on the grid."""

    def shared(trace: Trace) -> int:
        prompts = [op.prompt for op in trace.ops if isinstance(op, Submit)]
        return (
            1
            if len(prompts) == 2 and prompts[0] == prompts[1] and length_of(prompts[0]) % 16 == 3
            else -1
        )

    header = random_trace(SHAPE, 1, withdraw=False).header
    trace = Trace(header, [Submit("r1", "a:99"), Submit("r2", "a:99")])
    assert [op.prompt for op in shrink(trace, shared).ops if isinstance(op, Submit)] == [
        "a:3",
        "a:3",
    ]


def test_a_long_witness_says_why_it_is_no_shorter() -> None:
    """Attempts used up, no operation that can go, or a failure that did not come back; nothing
    is said of a short one.
    """
    many = SHORT + 3
    ending = random_trace(SHAPE, 0, withdraw=False).with_ops(
        [Submit("r1", "a:9"), *[Reset()] * (2 * many)]
    )

    def needs(count: int) -> Callable[[Trace], int]:
        return lambda one: (
            len(one.ops) - 1 if sum(isinstance(op, Reset) for op in one.ops) >= count else -1
        )

    long = shrink_and_tell(ending, needs(many))
    assert (len(long.trace.ops), long.why_long) == (
        many,
        "without any one of them it no longer fails",
    )
    assert shrink_and_tell(ending, needs(2)).why_long == ""
    assert shrink_and_tell(ending, needs(many), attempts=3).why_long == "stopped after 3 attempts"
    assert "did not fail again" in shrink_and_tell(ending, lambda _: -1).why_long


def _answers(ops: list[Op]) -> Trace:
    header = random_trace(SHAPE, 1, withdraw=False).header
    return Trace(msgspec.structs.replace(header, level="answers"), ops)


def test_what_an_engine_that_schedules_by_itself_does_wrong_is_asked_in_turn_first() -> None:
    """Requests at once fail one time in ten, in turn every time; so what is left is asked in
    turn, and fails every time.
    """
    lots = iter(range(10_000))

    def both_long(trace: Trace) -> int:
        long = [
            at
            for at, op in enumerate(trace.ops)
            if isinstance(op, Submit) and length_of(op.prompt) >= 40
        ]
        if len(long) < 2:
            return -1
        in_turn = any(isinstance(op, Finish) for op in trace.ops[long[0] : long[1]])
        return long[1] if in_turn or next(lots) % 10 == 9 else -1

    asked: list[Op] = [Submit(f"r{n}", f"a:{n}0", generate=3) for n in range(1, 7)]
    found = shrink(_answers([*asked, *[Step()] * 20]), both_long)
    assert [type(op) for op in found.ops] == [Submit, Finish, Submit]
    assert all(length_of(op.prompt) == 40 for op in found.ops if isinstance(op, Submit))


def test_what_fails_among_others_alone_gets_more_than_one_chance_to_fail_again() -> None:
    """One answer in three is wrong, and none in turn."""
    lots = iter(range(10_000))

    def third(trace: Trace) -> int:
        return (
            2
            if isinstance(trace.ops[-1], Step) and len(trace.ops) > 2 and next(lots) % 3 == 2
            else -1
        )

    ops: list[Op] = [
        Submit("r1", "a:9", generate=3),
        Submit("r2", "a:9", generate=3),
        Step(),
        Step(),
    ]
    assert len(shrink_and_tell(_answers(ops), third).trace.ops) == 3
    assert "did not fail again" in shrink_and_tell(_answers(ops), lambda _: -1).why_long
