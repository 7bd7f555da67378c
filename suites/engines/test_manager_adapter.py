"""At manager level the harness schedules as vLLM does: what a trace asks becomes steps, tokens
and lives of requests.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Counts,
    Event,
    Finished,
    Preempted,
    Release,
    ResetDone,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
    Version,
)
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Preempt,
    Reset,
    Step,
    Submit,
    TraceHeader,
    UpdateWeights,
    Vocabulary,
)
from cachewitness.systems.vllm.reference.engine import open_engine
from cachewitness.workloads import layouts


def engine(layout: str = "full", pages: int = 40, **options: Any) -> Any:
    return open_engine(TraceHeader("t", layouts.load(layout), pages, options=options), {})


def begun(events: list[Event]) -> StepBegin:
    (begin,) = [event for event in events if isinstance(event, StepBegin)]
    return begin


def spans(events: list[Event]) -> list[tuple[str, int, int]]:
    return [(run.r, run.start, run.stop) for run in begun(events).runs]


def test_tokens_asked_are_capped_by_those_that_exist() -> None:
    """A step of 100 tokens computes a prompt of 20; the next one the token that it sampled."""
    built = engine()
    built.apply(Submit("a", "x:20"))
    assert spans(built.apply(Step([("a", 100)]))) == [("a", 0, 20)]
    assert spans(built.apply(Step([("a", 100)]))) == [("a", 20, 21)]


def test_sampled_tokens_are_the_scripted_text() -> None:
    """The first tokens sampled are the first of the request's text, which prompts can name as
    @r.
    """
    built = engine()
    built.apply(Submit("a", "x:16"))
    accepts = [e for _ in range(3) for e in built.apply(Step([("a", 16)])) if isinstance(e, Accept)]
    vocabulary = Vocabulary()
    vocabulary.tokens("x:16")
    assert [token for accept in accepts for token in accept.tokens] == vocabulary.tokens("@a:3")
    assert [accept.upto for accept in accepts] == [17, 18, 19]


def test_streams_can_be_shared() -> None:
    """Two requests that sample from one text sample the same tokens."""
    built = engine()
    for r in ("a", "b"):
        built.apply(Submit(r, "x:16", stream="s"))
    tokens = [e.tokens for e in built.apply(Step([("a", 16), ("b", 16)])) if isinstance(e, Accept)]
    assert tokens[0] == tokens[1]


def test_chunks_end_where_a_state_is_kept() -> None:
    """With recurrent groups a chunk of 40 tokens ends on a block of 16, and the last boundary
    before the end is met.
    """
    built = engine("full-mamba", retention_interval=0)
    built.apply(Submit("a", "x:60"))
    assert [spans(built.apply(Step([("a", 40)])))[0][1:] for _ in range(3)] == [
        (0, 32),
        (32, 48),
        (48, 60),
    ]


def test_without_pages_a_request_does_not_run() -> None:
    """A request that does not fit waits; it is asked for, and does not run."""
    built = engine(pages=5)
    for r in ("a", "b"):
        built.apply(Submit(r, f"{r}:48"))
    begin = begun(built.apply(Step([("a", 48), ("b", 48)])))
    assert begin.asked == [("a", 48), ("b", 48)]
    assert [run.r for run in begin.runs] == ["a"]


def test_withdrawn_requests_hold_nothing_and_start_again() -> None:
    """A withdrawn request is not in the step, gives back what it took before the step begins,
    and then starts anew.
    """
    built = engine()
    for r in ("a", "b"):
        built.apply(Submit(r, f"{r}:32"))
    events = built.apply(Step([("a", 32), ("b", 32)], withdraw=["b"]))
    begin = begun(events)
    (end,) = [event for event in events if isinstance(event, StepEnd)]
    assert ([run.r for run in begin.runs], end.withdrawn) == (["a"], ["b"])
    before = events[: events.index(begin)]
    taken = [page for e in before if isinstance(e, Acquire) and e.holder == "b" for page in e.pages]
    dropped = [
        page for e in before if isinstance(e, Release) and e.holder == "b" for page in e.pages
    ]
    assert taken == dropped
    assert taken
    assert {e.reason for e in before if isinstance(e, Unpublish)} == {"withdraw"}
    assert spans(built.apply(Step([("b", 32)]))) == [("b", 0, 32)]


def test_withdrawal_takes_along_who_shares() -> None:
    """Who adopted blocks of the withdrawn request in the same step is withdrawn with it: they
    will not be written.
    """
    built = engine()
    built.apply(Submit("a", "x:32"))
    built.apply(Submit("b", "x:32 y:8"))
    events = built.apply(Step([("a", 32), ("b", 40)], withdraw=["a"]))
    (end,) = [event for event in events if isinstance(event, StepEnd)]
    assert (end.withdrawn, begun(events).runs) == (["a", "b"], [])


def test_life_events_come_before_the_drops_they_cause() -> None:
    """Preemption and the end are told first, then what they give back."""
    built = engine()
    for r in ("a", "b"):
        built.apply(Submit(r, f"{r}:32"))
    built.apply(Step([("a", 32), ("b", 32)]))
    assert [type(e) for e in built.apply(Preempt("a"))[:2]] == [Preempted, Release]
    assert [type(e) for e in built.apply(Finish("b"))[:2]] == [Finished, Release]


def test_preempted_requests_compute_generated_tokens_again() -> None:
    """After a preemption the prompt and what was sampled is computed again, hits aside."""
    built = engine(enable_caching=False)
    built.apply(Submit("a", "x:20"))
    for _ in range(3):
        built.apply(Step([("a", 20)]))
    built.apply(Preempt("a"))
    assert spans(built.apply(Step([("a", 100)]))) == [("a", 0, 23)]


def test_preempting_who_waits_changes_nothing() -> None:
    """A waiting request has nothing to lose, and no event says so."""
    built = engine()
    built.apply(Submit("a", "x:20"))
    assert built.apply(Preempt("a")) == []


def test_reset_is_refused_while_blocks_are_held() -> None:
    """A reset fails while somebody runs, and succeeds when it is told to preempt first."""
    built = engine()
    built.apply(Submit("a", "x:32"))
    built.apply(Step([("a", 32)]))
    assert built.apply(Reset()) == [ResetDone(step=1, ok=False)]
    events = built.apply(Reset(running=True))
    assert (type(events[0]), events[-1]) == (Preempted, ResetDone(step=1, ok=True))


def test_new_weights_end_every_key() -> None:
    """New weights: everybody is preempted, every key unpublished for that reason, and the
    version told last.
    """
    built = engine()
    built.apply(Submit("a", "x:32"))
    built.apply(Step([("a", 32)]))
    events = built.apply(UpdateWeights(7))
    keys = [e for e in events if isinstance(e, Unpublish)]
    assert type(events[0]) is Preempted
    assert ([e.length for e in keys], {e.reason for e in keys}) == ([16, 32], {"version"})
    assert events[-2:] == [ResetDone(step=1, ok=True), Version(step=1, weights=7)]


def test_names_must_be_known_and_new() -> None:
    """A trace that names a request too early or twice is refused in one line."""
    built = engine()
    with pytest.raises(UsageError, match="'a' is named before it is submitted"):
        built.apply(Step([("a", 1)]))
    built.apply(Submit("a", "x:8"))
    with pytest.raises(UsageError, match="'a' is submitted twice"):
        built.apply(Submit("a", "x:8"))


def test_a_prompt_that_is_too_long_is_refused_as_the_front_end_does() -> None:
    """A request of so many tokens as a sequence may have, or of none, ends as it comes; one
    token less is taken in.
    """
    built = engine(max_model_len=64)
    assert [type(event) for event in built.apply(Submit("long", "x:64"))] == [Submitted, Aborted]
    assert [type(event) for event in built.apply(Submit("fits", "x:63"))] == [Submitted]


def test_who_has_ended_is_left_alone() -> None:
    """Operations on a request that has ended do nothing: a shrunk trace stays a trace."""
    built = engine()
    built.apply(Submit("a", "x:8"))
    built.apply(Abort("a"))
    assert built.apply(Finish("a")) == []
    assert built.apply(Step([("a", 8)])) == []


def test_a_request_finishes_at_the_longest_model_length() -> None:
    """A request that has max_model_len tokens is over: it gives its blocks back, and who asks
    for it is not heard.
    """
    built = engine(max_model_len=18)
    built.apply(Submit("a", "x:16"))
    events = [event for _ in range(4) for event in built.apply(Step([("a", 16)]))]
    assert [event.upto for event in events if isinstance(event, Accept)] == [17, 18]
    assert [type(event) for event in events if isinstance(event, Finished | StepBegin)] == [
        StepBegin,
        StepBegin,
        Finished,
    ]
    assert isinstance(events[-1], Counts) and events[-1].held == 0
