"""Ranks that tpu-inference's DPScheduler shares requests out to, one of them observed: as released
nothing is found but what is listed, each of the faults in its code is, and another way of choosing
a rank passes.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

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
    UpdateWeights,
)
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from suites.support.checkout import ROOT
from suites.support.real_vllm import REAL, SOURCE

TPU = os.environ.get("CACHEWITNESS_TPU_INFERENCE", "")
pytestmark = [
    *REAL,
    pytest.mark.skipif(
        not TPU,
        reason=(
            "CACHEWITNESS_TPU_INFERENCE does not name a folder that holds `tpu_inference`;"
            " ci/stage_vllm.sh has one, and runs this with vLLM 0.32"
        ),
    ),
]
MODULE = "tpu_inference.core.sched.dp_scheduler"
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
ALONE: list[Op] = [Submit("a", "a:70"), *[Step()] * 3, Reset(), *[Step()] * 2, Finish("a"), Step()]
"""A reset while somebody is on one rank, and nobody on the other."""


TWICE: list[Op] = [
    *(Submit(r, f"{r}:70") for r in "ab"),
    *[Step()] * 4,
    *(Preempt(r) for r in "ab"),
    *[Step()] * 4,
    *(Finish(r) for r in "ab"),
    Step(),
]
"""Requests of both ranks lose their place while they answer, and come back."""
HELD_BACK: list[Op] = [
    *(Submit(r, f"{r}:70") for r in "ab"),
    *[Step()] * 4,
    Submit("c", "c:20"),
    Submit("d", "d:20"),
    Submit("e", "e:20"),
    *[Step()] * 2,
    Abort("a"),
    Abort("b"),
    *[Step()] * 9,
    *(Finish(r) for r in "cde"),
    *[Step()] * 2,
]
"""With a step in flight on both ranks a request waits for another one that comes, or an end."""
IDLE: list[Op] = [*(Submit(r, f"{r}:70") for r in "ab"), *[Step()] * 3, Finish("b"), *[Step()] * 8]
"""One rank goes on alone."""


class Run(NamedTuple):
    """A trace for two ranks, and what is asked of the engine besides."""

    ops: Sequence[Op] = BOTH
    options: tuple[tuple[str, int], ...] = ()
    pages: int = 40
    environment: tuple[tuple[str, str], ...] = ()


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
        "x",
        "            combined_new_block_ids.extend(cached_data.new_block_ids)",
        "            combined_new_block_ids[:0] = cached_data.new_block_ids",
    ),
    "places are told in another order": Fault(
        "x",
        "            combined_num_computed_tokens.extend(\n",
        "            combined_num_computed_tokens[:0] = list(\n",
    ),
    "who comes back is told as if it had stayed": Fault(
        "x",
        "            combined_resumed_req_ids.extend(cached_data.resumed_req_ids)",
        "            pass",
        Run(TWICE),
    ),
    "who is over is told of the last rank alone": Fault(
        "engine-crashed",
        "            combined_finished_req_ids.update(output.finished_req_ids)",
        "            combined_finished_req_ids = set(output.finished_req_ids)",
    ),
    "room is made for the tokens of the last rank": Fault(
        "engine-crashed",
        "                max_scheduled_tokens_per_rank,\n",
        "",
        Run(IDLE),
    ),
    "tokens are taken by a rank's own numbers": Fault(
        "engine-crashed",
        "[g.req_id_to_index[rid] for rid in req_ids]",
        "[*range(len(req_ids))]",
    ),
    "who goes is looked for on one rank": Fault(
        "x",
        "            rank_request_ids[rank].append(req_id)",
        "            rank_request_ids[0].append(req_id)",
    ),
    "one rank is reset": Fault("x", RESET_ALL, RESET_ALL.replace("self.dp_size", "1"), Run(RESET)),
    "a reset that a rank refuses is said to be done": Fault(
        "x", "            all_success &= success", "            all_success |= success", Run(ALONE)
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
        "x",
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
        "x",
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
        "            rank = self._output_conn_to_rank[id(conn)]" if False else "                results[rank] = self._get_result(rank, command)",
        "                results[collected] = self._get_result(rank, command)",
    ),
}


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of plug-ins on the path."""
    monkeypatch.syspath_prepend(ROOT / "ci" / "plug_ins")
    yield


def on_rank(seen: int, run: Run) -> Result:
    """Run a trace on two ranks, and return what is found on one."""
    options = {"max_num_batched_tokens": 64, **dict(run.options)}
    header = TraceHeader(
        "t", layouts.load("full"), run.pages, level="scheduler", options={**options}
    )
    prepared = f"vllm:source={SOURCE},prepare=tpu_inference_ranks:configure"
    engine = parse(f"{prepared},data_parallel={seen}/2").open(header)
    return drive(Trace(header, [*run.ops]), engine)


def found(run: Run, old: str = "", new: str = "") -> list[set[str]]:
    """Return what is found on each of two ranks, with a change of DPScheduler's source."""
    text = FILE.read_text(encoding="utf-8")
    assert not old or text.count(old) == 1, text.count(old)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in run.environment:
            patched.setenv(name, value)
        on_rank(0, Run([]))  # imports it
        module = importlib.import_module(MODULE)
        exec(compile(text.replace(old, new) if old else text, str(FILE), "exec"), vars(module))
        try:
            return [
                {finding.anomaly for finding in on_rank(rank, run).findings} for rank in (0, 1)
            ]
        finally:
            exec(compile(text, str(FILE), "exec"), vars(module))
