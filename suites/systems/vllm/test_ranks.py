"""Ranks that tpu-inference's DPScheduler shares requests out to, one of them observed: as released
nothing is found but what is listed, each of the faults in its code is, and another way of choosing
a rank passes.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit, StepBegin
from cachewitness.core.result import Result
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.ranks import ranks_named
from cachewitness.workloads import layouts
from cachewitness_reference.vllm_extended.config import Options
from suites.support.checkout import ROOT
from suites.support.real_vllm import REAL, SOURCE

TPU = os.environ.get("CACHEWITNESS_TPU_INFERENCE", "")
INTERFACE = Path(SOURCE) / "vllm" / "v1" / "core" / "sched" / "interface.py"
pytestmark = [
    *REAL,
    pytest.mark.skipif(
        not TPU or not SOURCE or "def has_request(" in INTERFACE.read_text(encoding="utf-8"),
        reason=(
            "CACHEWITNESS_TPU_INFERENCE does not name a folder that holds `tpu_inference`, or vLLM"
            " asks its schedulers for more than DPScheduler has; ci/stage_vllm.sh runs this with"
            " vLLM 0.32"
        ),
    ),
]
MODULE = "tpu_inference.core.sched.dp_scheduler"
LISTED = ROOT / "ci" / "plug_ins" / "tpu-inference-0.32.0-ranks.txt"
FILE = Path(TPU) / "tpu_inference" / "core" / "sched" / "dp_scheduler.py"

BOTH: list[Op] = [
    *(Submit(r, f"{r}:70") for r in "abcd"),
    *[Step()] * 3,
    *(Submit(f"{r}2", f"{r}:70 {r}2:20") for r in "abcd"),
    *[Step()] * 3,
    Abort("b"),
    *(Finish(r) for r in ("a", "c", "d", "a2", "c2")),
    *[Step()] * 2,
    *(Submit(f"{r}3", f"{r}:70 {r}3:5") for r in "abcd"),
    *[Step()] * 3,
]
"""Four texts on two ranks, each asked for again while it runs, and when it is over."""
RESET: list[Op] = [
    *(Submit(r, f"{r}:70") for r in "ab"),
    *[Step()] * 2,
    *(Finish(r) for r in "ab"),
    Step(),
    Reset(),
    *(Submit(f"{r}2", f"{r}:70") for r in "ab"),
    *[Step()] * 2,
    Reset(),
    *(Finish(f"{r}2") for r in "ab"),
]
"""A reset while nobody is there, and one while somebody is, on both ranks."""
ALONE: list[Op] = [
    Submit("a", "a:70"),
    *[Step()] * 3,
    Reset(),
    Submit("a2", "a:70"),
    *[Step()] * 2,
    Finish("a"),
    Step(),
]
"""A reset while somebody is on one rank, and nobody on the other."""


TWICE: list[Op] = [
    *(Submit(r, f"{r}:70") for r in "ab"),
    *[Step()] * 4,
    *(Preempt(r) for r in "ab"),
    *[Step()] * 8,
    *(Finish(r) for r in "ab"),
    Step(),
]
"""Requests of both ranks lose their place while they answer, and come back."""
TIGHT: list[Op] = [
    *(Submit(r, f"{r}:70") for r in "abcd"),
    *[Step()] * 16,
    *(Finish(r) for r in "ab"),
    *[Step()] * 4,
]
"""A rank's second request makes room for its first one, and comes back when that is over."""
HELD_BACK: list[Op] = [
    *(Submit(r, f"{r}:70") for r in "ab"),
    *[Step()] * 4,
    Submit("c", "c:20"),
    *[Step()] * 2,
    *(Finish(r) for r in "ab"),
    *[Step()] * 9,
]
"""With a step in flight on both ranks a request is held back, until one of them runs nobody."""
IDLE: list[Op] = [*(Submit(r, f"{r}:70") for r in "ab"), *[Step()] * 3, Finish("b"), *[Step()] * 8]
"""One rank goes on alone."""


class Run(NamedTuple):
    """A trace for two ranks, and what is asked of the engine besides."""

    ops: Sequence[Op] = BOTH
    options: tuple[tuple[str, int], ...] = ()
    pages: int = 40
    environment: tuple[tuple[str, str], ...] = ()


class Change(NamedTuple):
    """A change of DPScheduler's source that is lawful, and what is run with it."""

    old: str = ""
    new: str = ""
    run: Run = Run()


class Fault(NamedTuple):
    """A change of DPScheduler's source, and what it is found as."""

    anomaly: str
    old: str
    new: str
    run: Run = Run()


IN_FLIGHT = (("async_depth", 1),)
DRAFTS = (("num_speculative_tokens", 2),)
RESET_ALL = """range(self.dp_size):
            self._send_command(rank, SchedulerCommand.RESET_PREFIX_CACHE,
                               (reset_running_requests, reset_connector))

        all_success = True
        for rank in range(self.dp_size):"""
FAULTS = {
    "all requests are said to be on one rank": Fault(
        "engine-crashed",
        "            assigned_dp_rank[req_id] = self.assigned_dp_rank[req_id]",
        "            assigned_dp_rank[req_id] = 0",
    ),
    "new blocks are told in another order": Fault(
        "use-after-free",
        "            combined_new_block_ids.extend(cached_data.new_block_ids)",
        "            combined_new_block_ids[:0] = cached_data.new_block_ids",
    ),
    "places are told in another order": Fault(
        "partial-commit",
        "            combined_num_computed_tokens.extend(\n",
        "            combined_num_computed_tokens[:0] = list(\n",
    ),
    "who comes back is told as if it had stayed": Fault(
        "stale-hit",
        "            combined_resumed_req_ids.extend(cached_data.resumed_req_ids)",
        "            pass",
        Run(TIGHT, pages=12),
    ),
    "who is over is told of the last rank alone": Fault(
        "engine-crashed",
        "            combined_finished_req_ids.update(output.finished_req_ids)",
        "            combined_finished_req_ids = set(output.finished_req_ids)",
    ),
    "room is made for the tokens of the last rank": Fault(
        "engine-crashed",
        """max(
                max_scheduled_tokens_per_rank,
                output.total_num_scheduled_tokens)""",
        "output.total_num_scheduled_tokens",
        Run(IDLE),
    ),
    "tokens are taken by a rank's own numbers": Fault(
        "engine-crashed",
        "[g.req_id_to_index[rid] for rid in req_ids]",
        "[*range(len(req_ids))]",
    ),
    "who goes is looked for on one rank": Fault(
        "leak",
        "            rank_request_ids[rank].append(req_id)",
        "            rank_request_ids[0].append(req_id)",
    ),
    "one rank is reset": Fault(
        "stale-hit", RESET_ALL, RESET_ALL.replace("self.dp_size", "1"), Run(RESET)
    ),
    "a reset that a rank refuses is said to be done": Fault(
        "stale-hit",
        "            all_success &= success",
        "            all_success |= success",
        Run(ALONE),
    ),
    "what was found is told of the last rank": Fault(
        "false-statistics",
        "                combined_prefix_cache_stats.hits += (",
        "                combined_prefix_cache_stats.hits = (",
    ),
    "use is added up": Fault(
        "false-statistics",
        "        num_ranks = len(rank_stats_list)",
        "        num_ranks = 1",
    ),
    "clients are told what the last rank answers": Fault(
        "engine-crashed",
        "                outputs.extend(engine_output.outputs)",
        "                outputs = engine_output.outputs",
    ),
    "requests of the last rank alone are counted": Fault(
        "no-progress", "            total += count", "            total = count", Run(IDLE)
    ),
    "who is held back goes with somebody else": Fault(
        "no-progress",
        "            self._pending_new_requests = kept",
        "            self._pending_new_requests = []",
        Run(HELD_BACK, IN_FLIGHT),
    ),
    "who is held back is not counted": Fault(
        "no-progress",
        "        total = len(self._pending_new_requests)",
        "        total = 0",
        Run(HELD_BACK, IN_FLIGHT),
    ),
    "a request is given to both ranks": Fault(
        "engine-crashed",
        "        self._get_result(rank, SchedulerCommand.ADD_REQUEST)",
        """        self._get_result(rank, SchedulerCommand.ADD_REQUEST)
        other = (rank + 1) % self.dp_size
        self._send_command(other, SchedulerCommand.ADD_REQUEST, request)
        self._get_result(other, SchedulerCommand.ADD_REQUEST)""",
    ),
    "a request's rank is forgotten while it runs": Fault(
        "engine-crashed",
        "        self._cleanup_finished_requests(scheduler_output.finished_req_ids)",
        "        self._cleanup_finished_requests(set(scheduler_output.num_scheduled_tokens))",
    ),
    "a rank answers its newest step": Fault(
        "engine-crashed",
        "scheduler_output = _cached_scheduler_outputs.popleft()",
        "scheduler_output = _cached_scheduler_outputs.pop()",
        Run(options=IN_FLIGHT),
    ),
    "what fell stays in flight": Fault(
        "no-progress",
        "                    for req_id, shortfall in shortfalls.items():",
        "                    for req_id, shortfall in ():",
        Run(TWICE, DRAFTS),
    ),
    "a rank's answer is taken for another's": Fault(
        "engine-crashed",
        "                results[rank] = self._get_result(rank, command)",
        "                results[collected] = self._get_result(rank, command)",
    ),
}


LAWFUL = {
    "the rank with the most to do": Change(
        "        return min(range(self.dp_size),", "        return max(range(self.dp_size),"
    ),
    "caches of the last rank are told of first": Change(
        "self._combine_cached_request_data(rank_outputs)\n\n        # Combine token",
        "self._combine_cached_request_data(rank_outputs[::-1])\n\n        # Combine token",
    ),
    "the ranks of a step's requests are told of all requests": Change(
        "        for req_id in combined_num_scheduled_tokens.keys():",
        "        for req_id in self.assigned_dp_rank:",
    ),
    "guesses for some requests are dropped": Change(
        "            if req_id in self.assigned_dp_rank:",
        "            if self.assigned_dp_rank.get(req_id):",
        Run(TWICE, DRAFTS),
    ),
    "requests go round": Change(run=Run(environment=(("DP_SCHED_ROUTING", "round_robin"),))),
    "no request is held back": Change(
        run=Run(HELD_BACK, IN_FLIGHT, environment=(("DP_SCHED_BATCH_PREFILL", "0"),))
    ),
}


@pytest.fixture(autouse=True)
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the folder of plug-ins on the path."""
    monkeypatch.syspath_prepend(ROOT / "ci" / "plug_ins")


def on_rank(seen: int, run: Run) -> Result:
    """Run a trace on two ranks, and return what is found on one."""
    options = {"max_num_batched_tokens": 64, **dict(run.options)}
    header = TraceHeader("t", layouts.load("full"), run.pages, level="scheduler", options=options)
    prepared = f"vllm:source={SOURCE},prepare=tpu_inference_ranks:configure"
    engine = parse(f"{prepared},data_parallel={seen}/2").open(header)
    return drive(Trace(header, [*run.ops]), engine)


def found(run: Run, old: str = "", new: str = "") -> list[set[str]]:
    """Return what is found on each of two ranks that is not listed, with a change of DPScheduler's
    source.
    """
    text = FILE.read_text(encoding="utf-8")
    assert not old or text.count(old) == 1
    listed = re.findall(r'says="(.*)"', LISTED.read_text(encoding="utf-8"))
    with pytest.MonkeyPatch.context() as patched:
        for name, value in run.environment:
            patched.setenv(name, value)
        on_rank(0, Run([]))  # imports it
        module = vars(importlib.import_module(MODULE))
        exec(compile(text.replace(old, new) if old else text, FILE, "exec"), module)
        try:
            results = [on_rank(rank, run) for rank in (0, 1)]
        finally:
            exec(compile(text, FILE, "exec"), module)
    return [
        {
            finding.anomaly
            for finding in result.findings
            if not any(fnmatch(finding.line, says) for says in listed)
        }
        for result in results
    ]


def test_both_ranks_run_and_hit() -> None:
    for rank, texts in enumerate(("ac", "bd")):
        result = on_rank(rank, Run())
        events = result.history.events
        assert result.findings == []
        assert {
            run.r for event in events if isinstance(event, StepBegin) for run in event.runs
        } == {
            *texts,
            *(f"{r}{again}" for r in texts for again in (2, 3)),
        }
        assert [event.resume for event in events if isinstance(event, Hit)] == [0, 0, *[64] * 4]
        assert (result.activity.requests, result.activity.aborted_by_engine) == (6, 0)


RUNS = {
    "twice": Run(TWICE),
    "drafts": Run(TWICE, DRAFTS),
    "tight": Run(TIGHT, pages=12),
    "reset": Run(RESET),
    "alone": Run(ALONE),
    "idle": Run(IDLE),
    "in flight": Run(options=IN_FLIGHT),
    "held back": Run(HELD_BACK, IN_FLIGHT),
}


@pytest.mark.parametrize("name", RUNS)
def test_as_released_nothing_is_found_but_what_is_listed(name: str) -> None:
    assert found(RUNS[name]) == [set(), set()]


def test_look_ups_of_who_comes_back_are_not_told() -> None:
    (finding,) = on_rank(0, RUNS["tight"]).findings
    assert finding.line == (
        "requests that came back hit 80 of 81 tokens in 1 look-up; the engine reports 0 of 0 in 0"
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    anomaly, old, new, run = FAULTS[fault]
    assert anomaly in set().union(*found(run, old, new))


@pytest.mark.parametrize("change", LAWFUL)
def test_a_lawful_change_passes(change: str) -> None:
    old, new, run = LAWFUL[change]
    assert found(run, old, new) == [set(), set()]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("2", "write RANK/RANKS, such as 0/2"),
        ("0/1", "there are 2 to 64 ranks"),
        ("2/2", "the ranks are 0 to 1"),
    ],
)
def test_what_names_no_rank_is_one_line(text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        ranks_named(text, Options())


def test_drafts_are_not_driven_with_a_step_in_flight() -> None:
    with pytest.raises(UsageError, match="is not driven with drafts while a step is in flight"):
        ranks_named("0/2", Options(async_depth=1, num_speculative_tokens=2))
