"""The runtime: rows, joining, eviction, and system prompts that are captured and restored at one
position.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.tensorrt_edge.compaction import RowMove
from cachewitness_reference.tensorrt_edge.config import (
    Config,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from cachewitness_reference.tensorrt_edge.runtime import Request, Runtime, RuntimeOptions, Step
from cachewitness_reference.tensorrt_edge.spec import AXES, RELEASES, RULES
from suites.support.tensorrt_edge import refused

LONGEST = 64
SYSTEM = list(range(100, 116))


def runtime(rows: int = 4, **options: Any) -> Runtime:
    """Return a runtime over a hybrid cache of so many rows."""
    kv = KVConfig(1, rows, LONGEST, (KVLayerConfig(1, 64),))
    config = Config(
        (LayerType.MAMBA, LayerType.ATTENTION), kv, MambaConfig(1, rows, 1, 8, 8, 8, 4), rows
    )
    return Runtime(HybridCachePolicy(config), RuntimeOptions(**options))


def asks(r: str, own: int = 4, system: int = len(SYSTEM), **identity: Any) -> Request:
    """Return a request: a system prompt of so many tokens, and `own` tokens of its own."""
    return Request(
        r, SYSTEM[:system] + [ord(r[0]) * 1000 + i for i in range(own)], system, **identity
    )


def steps(engine: Runtime, number: int = 1, asked: Any = None, budget: int = 0) -> list[Step]:
    """Run steps; a request whose tokens are all computed generates another."""
    done = []
    for _ in range(number):
        step = engine.begin_step(asked, budget)
        engine.end_step(step)
        for r in step.chunks:
            request = engine.requests[r]
            if request.computed == len(request.tokens):
                request.tokens.append(7)
        done.append(step)
    return done


def chunks(done: list[Step]) -> list[dict[str, tuple[int, int]]]:
    return [dict(step.chunks) for step in done]


# --- rows -----------------------------------------------------------------------------------------


def test_requests_get_rows_in_the_order_in_which_they_wait() -> None:
    """Two rows for three requests: the third joins when a row is free."""
    engine = runtime(rows=2, system_prompts=0)
    for r in ("a", "b", "c"):
        engine.add(asks(r))
    assert chunks(steps(engine)) == [{"a": (0, 20), "b": (0, 20)}]
    engine.end("a")
    (step,) = steps(engine)
    assert step.moves.states == (RowMove(1, 0),)
    assert chunks([step]) == [{"b": (20, 21), "c": (0, 20)}]
    assert [request.request_id for request in engine.running()] == ["b", "c"]
    assert engine.cache.get_kv_cache_lengths() == [21, 20]


def test_a_static_batch_is_joined_by_nobody() -> None:
    """Upstream handles one batch after the other: c waits until both are done."""
    engine = runtime(rows=2, system_prompts=0, joining="static")
    for r in ("a", "b", "c"):
        engine.add(asks(r))
    steps(engine)
    engine.end("a")
    assert chunks(steps(engine)) == [{"b": (20, 21)}]
    engine.end("b")
    assert chunks(steps(engine)) == [{"c": (0, 20)}]


def test_who_waits_computes_nothing_and_keeps_nothing() -> None:
    engine = runtime(rows=1, system_prompts=0)
    engine.add(asks("a"))
    engine.add(asks("b"))
    steps(engine)
    assert engine.requests["b"].slot is None and engine.requests["b"].computed == 0
    engine.end("b")
    engine.end("a")
    assert engine.waiting == [] and engine.running() == []


@pytest.mark.parametrize(
    ("survivors", "moves"), [("ascending", {(1, 0), (3, 1)}), ("descending", {(3, 0)})]
)
def test_ended_rows_are_evicted_before_the_next_step(
    survivors: str, moves: set[tuple[int, int]]
) -> None:
    """Rows 0 and 2 of four end: 1 and 3 move together, in either order, and go on from their own
    lengths.
    """
    engine = runtime(system_prompts=0, survivors=survivors)
    for number, r in enumerate(("a", "b", "c", "d")):
        engine.add(asks(r, own=number + 1))
    steps(engine)
    engine.end("a")
    engine.end("c")
    (step,) = steps(engine)
    assert {tuple(move) for move in step.moves.kv} == moves
    assert chunks([step]) == [{r: (n, n + 1) for r, n in (("b", 18), ("d", 20))}]


def test_a_preempted_request_waits_first_and_computes_again() -> None:
    """What it generated included; the longest system prompt that is cached is found again."""
    engine = runtime(rows=1)
    engine.add(asks("a"))
    engine.add(asks("b"))
    steps(engine, 3)
    generated = len(engine.requests["a"].tokens)
    engine.preempt("a")
    assert [request.request_id for request in engine.waiting] == ["a", "b"]
    assert chunks(steps(engine)) == [{"a": (16, generated)}]


def test_a_step_computes_what_is_asked_or_what_its_budget_allows() -> None:
    """Rows first, then those that wait, in order."""
    engine = runtime(system_prompts=0)
    engine.add(asks("a"))
    assert chunks(steps(engine, budget=15)) == [{"a": (0, 15)}]
    engine.add(asks("b"))
    assert chunks(steps(engine, budget=15)) == [{"a": (15, 20), "b": (0, 10)}]
    assert chunks(steps(engine, asked=[("b", 3), ("a", 1)])) == [{"b": (10, 13), "a": (20, 21)}]
    assert chunks(steps(engine, asked=[])) == [{}]


def test_a_request_that_can_never_run_is_refused() -> None:
    engine = runtime()
    assert "65 tokens are not in range [1, maxSequenceLength 64]" in refused(
        engine.add, asks("a", own=LONGEST - 15)
    )
    assert "0 tokens" in refused(engine.add, Request("b", []))
    text = "The reuse length shall be larger than 0 and not exceed the input length."
    assert text in refused(engine.add, Request("c", [1, 2], system_prompt=3))
    assert engine.requests == {} and engine.waiting == []


def test_nobody_computes_beyond_the_end_of_its_row() -> None:
    engine = runtime(system_prompts=0)
    engine.add(asks("a", own=LONGEST - 16))
    assert chunks(steps(engine, 2)) == [{"a": (0, LONGEST)}, {}]


# --- system prompts -------------------------------------------------------------------------------


def test_a_system_prompt_is_captured_where_it_ends() -> None:
    """The prefill stops there once, even if it was asked to run on, and the capture is of
    exactly that position.
    """
    engine = runtime()
    engine.add(asks("a"))
    done = steps(engine, 2)
    assert chunks(done) == [{"a": (0, 16)}, {"a": (16, 20)}]
    assert [len(step.saves) for step in done] == [1, 0]
    (saved,) = engine.prompts.saved.values()
    assert saved.snapshot is not None and saved.snapshot.position == 16


def test_a_later_request_restores_exactly_that_much_and_goes_on_from_there() -> None:
    """Effective reuse is L, not L - 1, and no token is applied twice."""
    engine = runtime()
    engine.add(asks("a"))
    steps(engine, 2)
    engine.add(asks("b"))
    (step,) = steps(engine)
    assert [
        (saved.snapshot.position, request.request_id)
        for saved, request in step.restores
        if saved.snapshot
    ] == [(16, "b")]
    assert step.chunks["b"] == (16, 20) and step.saves == []
    assert engine.cache.get_kv_cache_lengths() == [21, 20]


def test_a_capture_is_found_only_after_its_step_has_run() -> None:
    """Two requests of one step both compute; one of them captures."""
    engine = runtime()
    engine.add(asks("a"))
    engine.add(asks("b"))
    (step,) = steps(engine)
    assert (
        chunks([step]) == [{"a": (0, 16), "b": (0, 20)}]
        and len(step.saves) == 1
        and step.restores == []
    )


def test_a_system_prompt_that_is_the_whole_input_is_captured_before_its_last_token_as_well() -> (
    None
):
    """A replay computes the last token for its logits, from the state before it; a longer
    request goes on from the end.
    """
    engine = runtime()
    engine.add(asks("a", own=0))
    assert chunks(steps(engine, 2)) == [{"a": (0, 15)}, {"a": (15, 16)}]
    assert sorted(
        saved.snapshot.position for saved in engine.prompts.saved.values() if saved.snapshot
    ) == [15, 16]
    engine.add(asks("b", own=0))
    engine.add(asks("c"))
    (step,) = steps(engine)
    assert step.chunks["b"] == (15, 16) and step.chunks["c"] == (16, 20)


def test_who_replays_the_last_token_captures_one_token_earlier() -> None:
    """As upstream's drafting wants it: S(15) beside 15 tokens, and token 15 is computed by
    everybody.
    """
    engine = runtime(replay_last_token=True)
    engine.add(asks("a"))
    assert chunks(steps(engine, 2)) == [{"a": (0, 15)}, {"a": (15, 20)}]
    engine.add(asks("b"))
    assert steps(engine)[0].chunks["b"] == (15, 20)


def test_nothing_is_captured_without_a_system_prompt() -> None:
    engine = runtime()
    engine.add(asks("a", system=0))
    steps(engine)
    assert not engine.prompts.saved


def test_one_token_that_is_the_whole_input_can_only_be_gone_on_from() -> None:
    """There is no state before it to replay it from."""
    engine = runtime()
    engine.add(asks("a", system=1, own=0))
    engine.add(asks("b", system=1, own=0))
    steps(engine)
    assert [
        saved.snapshot.position for saved in engine.prompts.saved.values() if saved.snapshot
    ] == [1]
    engine.add(asks("c", system=1))
    assert steps(engine)[0].chunks["c"] == (1, 5)


@pytest.mark.parametrize(
    "other",
    [
        {"lora": "tuned"},
        {"salt": "mine"},
        {"media": ((4, 2, "cat"),)},
        {"media": ((0, 40, "cat"),)},
    ],
)
def test_another_identity_is_another_system_prompt(other: dict[str, Any]) -> None:
    """The key is the tokens and the LoRA weights, and by our choice salt and media."""
    engine = runtime()
    engine.add(asks("a"))
    steps(engine, 2)
    engine.add(asks("b", **other))
    assert steps(engine)[0].restores == []
    assert len(engine.prompts.saved) == 2
    engine.add(asks("c", **other))
    assert len(steps(engine)[0].restores) == 1


def test_media_behind_the_system_prompt_does_not_matter() -> None:
    engine = runtime()
    engine.add(asks("a", media=((16, 2, "cat"),)))
    steps(engine, 2)
    engine.add(asks("b", media=((17, 2, "dog"),)))
    assert len(steps(engine)[0].restores) == 1


def test_another_length_of_the_same_text_is_another_system_prompt() -> None:
    """There is no shorter hit: states exist at the captured length alone."""
    engine = runtime()
    engine.add(asks("a"))
    steps(engine, 2)
    engine.add(asks("b", system=12))
    assert steps(engine)[0].restores == []


def test_captures_are_bounded_and_the_one_used_longest_ago_makes_room() -> None:
    """Two places: a and b are captured, a is used again, c takes the place of b."""
    engine = runtime(rows=1, system_prompts=2)
    salts = ["a", "b", "a", "c"]
    for number, salt in enumerate(salts):
        engine.add(asks(f"{number}", salt=salt))
        steps(engine, 2)
        engine.end(f"{number}")
    assert [key.salt for key in engine.prompts.saved] == ["a", "c"]
    assert sorted(saved.place for saved in engine.prompts.saved.values()) == [0, 1]


def test_a_capture_in_use_makes_no_room() -> None:
    """One place: while b restores what is there, c computes on without capturing."""
    engine = runtime(system_prompts=1)
    engine.add(asks("a"))
    steps(engine, 2)
    engine.add(asks("b"))
    engine.add(asks("c", salt="other"))
    (step,) = steps(engine)
    assert len(step.restores) == 1 and step.saves == [] and step.chunks["c"] == (0, 20)
    engine.add(asks("d", salt="third"))
    assert len(steps(engine)[0].saves) == 1


def test_without_places_nothing_is_captured() -> None:
    engine = runtime(system_prompts=0)
    engine.add(asks("a"))
    assert chunks(steps(engine)) == [{"a": (0, 20)}] and not engine.prompts.saved


def test_forgotten_captures_leave_their_places() -> None:
    engine = runtime(system_prompts=1)
    for salt in ("a", "b"):
        engine.add(asks(salt, salt=salt))
        steps(engine, 2)
        engine.prompts.forget_all()
        assert not engine.prompts.saved
    engine.add(asks("c"))
    assert len(steps(engine)[0].saves) == 1


# --- the specification ----------------------------------------------------------------------------


def test_every_rule_says_where_it_comes_from() -> None:
    """What is ours says so, and what is left out is marked."""
    assert all(
        rule.name == name and rule.source and rule.summary.endswith(".")
        for name, rule in RULES.items()
    )
    assert {name for name, rule in RULES.items() if not rule.implemented} == {
        "speculation",
        "fp8-scales",
        "paged-context-cache",
        "bounded-windows",
    }
    assert all(AXES.values()) and RELEASES[0] == "0.7"
