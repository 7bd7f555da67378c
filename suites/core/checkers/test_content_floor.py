"""The second reuse floor: a cache that keeps nothing, or drops what it need not, is told so
whatever it declares.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.content_floor import ContentFloor
from cachewitness.core.driving import check, drive
from cachewitness.core.engine import Engine
from cachewitness.core.events import Event, Header
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Op, Preempt, Step, Submit, Trace, TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.fault_tools import core, wrap
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.workloads import layouts
from cachewitness.workloads.capabilities import fitting
from cachewitness.workloads.notation import parse
from cachewitness.workloads.scenarios.shape import Script

Plant = Callable[[Any], None]


class Undeclared:
    """An engine that does not say how its keys end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        header = engine.describe()
        pools = [msgspec.structs.replace(pool, eviction=None) for pool in header.pools]
        self._header = msgspec.structs.replace(header, pools=pools)

    def describe(self) -> Header:
        return self._header

    def apply(self, op: Op) -> list[Event]:
        return self._engine.apply(op)

    def close(self) -> None:
        self._engine.close()


def judged(trace: Trace, plant: Plant | None = None) -> Result:
    engine = policies.get(trace.header.policy).open(trace.header, {})
    if plant:
        plant(engine)
    return drive(trace, Undeclared(engine), [ContentFloor()])


def one_after_another(policy: str, prompts: int = 3) -> Trace:
    """Return a trace in which prompts that begin alike come one after another, with room for
    all.
    """
    shape = policies.get(policy).configurations()[0].shape("manager")
    script = Script(shape, "repeated", "the same prompt again and again", "")
    for number in range(prompts):
        script.serve(f"r{number}", f"p:{3 * shape.unit} q:{1 + number}", decode=1)
    return script.trace(pages=80)


# --- what is found --------------------------------------------------------------------------------


def nothing_is_keyed(engine: Any) -> None:
    wrap(
        core(engine),
        "allocate_slots",
        lambda original, *a, **k: original(*a, **{**k, "delay_cache_blocks": True}),
    )


def everything_is_forgotten_when_nobody_runs(engine: Any) -> None:
    def end(original: Any, r: str, *, finished: bool) -> None:
        original(r, finished=finished)
        if not engine.running():
            engine.adapter.manager.manager.reset_prefix_cache()
            engine.diff.settle()

    wrap(engine.adapter, "end", end)


def nothing_is_stored(engine: Any) -> None:
    wrap(engine.adapter.manager, "store", lambda original, request: None)


INERT = [
    ("vllm", nothing_is_keyed),
    ("vllm", everything_is_forgotten_when_nobody_runs),
    ("furiosa", nothing_is_stored),
]


@pytest.mark.parametrize(("policy", "plant"), INERT)
def test_a_cache_that_never_reuses_is_found_though_it_declares_nothing(
    policy: str, plant: Plant
) -> None:
    """Such a run ended as vacuous, because no key was ever there to be judged by."""
    trace = one_after_another(policy)
    assert judged(trace).findings == []
    result = judged(trace, plant)
    assert {finding.anomaly for finding in result.findings} == {"forgotten-prefix"}
    assert "nobody was given" in result.findings[0].sentence


@pytest.mark.parametrize("policy", [name for name in policies.names() if name != "tensorrt_edge"])
def test_a_lawful_cache_passes_even_if_it_does_not_say_how_its_keys_end(policy: str) -> None:
    """No order of eviction, no handing out of pages is unlawful for an engine that declared
    none.
    """
    plan = Plan(policy, policies.get(policy).levels, Restriction([], {}, historic=False), 7)
    operations = 0
    opportunities = 0
    for number in count():
        if operations > 700:
            break
        try:
            trace = plan.draw(number)[1]
            result = judged(
                fitting(trace, policies.get(policy).open(trace.header, {}).describe().capabilities)
            )
        except UsageError:
            continue
        assert [finding.sentence for finding in result.findings] == []
        operations += result.activity.operations
        opportunities += result.tallies[0].opportunities
    assert opportunities > 0


def test_a_page_is_not_free_if_it_was_handed_out_in_the_same_operation() -> None:
    """Two free pages of the window's pool are not enough for r15; what a request had begun is
    kept there without a key.
    """
    options = {"expected_average_seq_length": 64, "hit_granularity": "block"}
    header = TraceHeader("t", layouts.load("full-swa"), 18, policy="furiosa", options=options)
    ops: list[Op] = [
        Submit("r15", "A:63 A[62]:1 A[64]:1"),
        Submit("r16", "B:1"),
        Submit("r17", "B:62 r14:2"),
        Step([("r16", 1), ("r17", 64)]),
        Step([("r17", 1)], cancel=["r16"]),
        Preempt("r17"),
        Step([("r15", 65), ("r17", 1)]),
    ]
    result = judged(Trace(header, ops))
    assert result.activity.evictions > 0 and result.findings == []


# --- histories ------------------------------------------------------------------------------------

HEADER = """
pool 0: 9 pages, null 0
group 0: full block 4
rules: alignment 4
submit r1 a:{tokens}
hit r1 0
acquire r1 | 1 2 3 4
step 1: r1 0..{tokens} | 1 2 3 4
finish r1
release r1
counts 0: free 8 held 0 cached 0
"""


def found(text: str, tokens: int = 13) -> list[str]:
    history = parse(HEADER.format(tokens=tokens) + text)
    return [finding.sentence for finding in check(history, [ContentFloor()]).findings]


def test_the_sentence_names_the_pages_and_who_computed_what_is_in_them() -> None:
    (sentence,) = found(
        "submit r2 a:13\nhit r2 0\nacquire r2 | 5 6 7 8\nstep 2: r2 0..13 | 5 6 7 8\n"
    )
    assert (
        sentence
        == "Let r2 be admitted in step 2. What it needs to resume at 12 was computed by r1, which"
        " finished, and lies in pages 1, 2, 3 still: nobody was given that since. However it"
        " resumes at 0 and computes 12 tokens again: a contradiction."
    )


def test_it_counts_as_there_if_the_request_itself_is_given_the_pages() -> None:
    """Whether its look-up is reported before that or after it."""
    for pair in ("hit r2 0\nacquire r2 | 4 3 2 1", "acquire r2 | 4 3 2 1\nhit r2 0"):
        assert found(f"submit r2 a:13\n{pair}\nstep 2: r2 0..13 | 4 3 2 1\n")


def test_what_somebody_else_was_given_in_the_same_operation_is_gone() -> None:
    """Whichever of the two the engine reports first."""
    r3 = "acquire r3 | 1"
    for lines in (f"{r3}\nhit r3 0\nhit r2 0", f"hit r2 0\nhit r3 0\n{r3}"):
        text = (
            f"submit r2 a:13\nsubmit r3 b:3\n{lines}\nacquire r2 | 5 6 7 8\n"
            "step 2: r2 0..13 | 5 6 7 8; r3 0..3 | 1\n"
        )
        assert found(text) == []


def test_what_lies_in_front_of_a_page_that_was_given_away_is_still_owed() -> None:
    given = "submit r2 b:3\nhit r2 0\nacquire r2 | 3\nstep 2: r2 0..3 | 3\n"
    (sentence,) = found(
        given + "submit r3 a:13\nhit r3 4 | 1\nacquire r3 | 1 5 6 7\nstep 3: r3 4..13 | 1 5 6 7\n"
    )
    assert "resume at 8" in sentence and "computes 4 tokens again" in sentence


LAWFUL = {
    "a reset": "reset ok\nsubmit r2 a:13\nhit r2 0\n",
    "new weights": "reset ok\nversion 1\nsubmit r2 a:13\nhit r2 0\n",
    "another salt": "submit r2 a:13 salt=x\nhit r2 0\n",
    "another prompt": "submit r2 b:13\nhit r2 0\n",
    "no whole block in front of the last token": "submit r2 a:4\nhit r2 0\n",
}


@pytest.mark.parametrize("why", LAWFUL)
def test_nothing_is_owed(why: str) -> None:
    assert found(LAWFUL[why]) == []


def test_a_block_that_a_prompt_fills_to_its_end_is_kept_by_some_caches_alone() -> None:
    longer = "submit r2 a:12 b:5\nhit r2 8 | 1 2\n"
    assert found(longer, tokens=12) == [] and found(longer, tokens=13)


# --- runs that end early --------------------------------------------------------------------------


def dies_at_the_third(engine: Any) -> None:
    def add(original: Any, submit: Any, tokens: list[int], shared: int) -> None:
        if submit.r == "r2":
            raise MemoryError("no room for another request")
        original(submit, tokens, shared)

    wrap(engine.adapter, "add", add)


def test_a_death_in_the_middle_is_what_is_found_and_nothing_is_owed_for_it() -> None:
    trace = one_after_another("vllm")
    result = judged(trace, dies_at_the_third)
    assert [finding.anomaly for finding in result.findings] == ["engine-crashed"]
    assert result.tallies[0].opportunities == 1, "the second request was looked up, the third never"


def test_a_run_in_which_nothing_comes_twice_has_no_opportunity() -> None:
    """So it ends as vacuous, and is not taken for a cache that reuses."""
    result = judged(one_after_another("vllm", prompts=1), nothing_is_keyed)
    assert (result.findings, result.tallies[0].opportunities) == ([], 0)


def test_a_run_that_is_stopped_at_any_operation_owes_nothing_more() -> None:
    """Each beginning of a lawful run passes, with no more opportunities than the whole."""
    trace = one_after_another("furiosa")
    seen = [0]
    for length in range(1, len(trace.ops) + 1):
        result = judged(Trace(trace.header, trace.ops[:length]))
        assert result.findings == [] and result.tallies[0].opportunities >= seen[-1]
        seen.append(result.tallies[0].opportunities)
    assert seen[-1] == 2
