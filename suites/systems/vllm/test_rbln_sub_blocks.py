"""The scheduler of vllm-rbln and its hits inside a block: as released nothing is found but what is
listed, and each of the faults in its code is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from suites.support.checkout import ROOT, SOURCES
from suites.support.real_vllm import REAL, SOURCE

RBLN = os.environ.get("CACHEWITNESS_RBLN", "")
ENGINE = (
    f"vllm:source={SOURCE},scheduler_cls=vllm_rbln.v1.core.rbln_scheduler:RBLNScheduler,"
    "prepare=rbln_sub_blocks:configure,observer=rbln_sub_blocks:SubBlockManager"
)
LISTED = ROOT / "ci" / "plug_ins" / "vllm-rbln-0.12.0.txt"
MANAGER, SCHEDULER = "rbln_kv_cache_manager.py", "rbln_scheduler.py"
RULES = ("--suite", "scheduler", "--suite", "scheduler-random", "--layout", "full")
WINDOWS = (*RULES[:4], "--layout", "full-swa", "--option", "retention_interval=none")
pytestmark = [
    *REAL,
    pytest.mark.skipif(
        not RBLN,
        reason=(
            "CACHEWITNESS_RBLN does not name a folder that holds `vllm_rbln`; ci/stage_vllm.sh has"
            " one, and runs this with vLLM 0.30"
        ),
    ),
]


class Fault(NamedTuple):
    """A change of vllm-rbln's source, and what it is found as."""

    anomaly: str
    old: str
    new: str
    file: str = MANAGER
    run: tuple[str, ...] = RULES


FAULTS = {
    "who is copied from is not held": Fault(
        "double-free",
        "        self.block_pool.touch([gm.src_block for gm in group_matches])",
        "        pass",
    ),
    "who was copied from is held for good": Fault(
        "leak",
        "                [self.block_pool.blocks[op.src_block_id] for op in ops]",
        "                []",
    ),
    "parts of a block that is given anew stay": Fault(
        "partial-commit", "            self._on_block_evicted(block_id)\n", ""
    ),
    "a part too few is copied": Fault(
        "stale-hit",
        "                    num_tokens=match.num_tokens,",
        "                    num_tokens=match.num_tokens - self.sub_block_size,",
    ),
    "parts are copied into the first block": Fault(
        "stale-hit",
        "            dst_block = block_list[gm.dst_req_block_index]",
        "            dst_block = block_list[0]",
    ),
    "a part is named without what lies in front of it": Fault(
        "false-key-event",
        "                parent_hash,\n                token_ids[i : i + sbs],",
        "                None,\n                token_ids[i : i + sbs],",
    ),
    "a part is named without its identity": Fault(
        "cross-identity-hit",
        "                token_ids[i : i + sbs],\n                extra_keys,",
        "                token_ids[i : i + sbs],\n                None,",
    ),
    "a part more is found than is there": Fault(
        "stale-hit", "            best_depth = depth\n", "            best_depth = depth + 1\n"
    ),
    "a part is indexed that is not full": Fault(
        "partial-commit",
        "            num_sub_blocks = remainder // self.sub_block_size",
        "            num_sub_blocks = remainder // self.sub_block_size + 1",
    ),
    "the group that has most decides": Fault(
        "partial-commit",
        "if min_matched is None or num_matched < min_matched:",
        "if min_matched is None or num_matched > min_matched:",
        run=WINDOWS,
    ),
    "a reset leaves parts": Fault(
        "stale-hit",
        "                gi.sub_block_index = SubBlockIndex()",
        "                pass",
    ),
    "a block that is not full is not kept": Fault(
        "needless-eviction", "            if mark_cached:\n", "            if False:\n"
    ),
    "nobody is told that parts are gone": Fault(
        "lost-key-event", "            self._emit_block_removed(fully_removed, gi)\n", ""
    ),
    "what a running request fills is not indexed": Fault(
        "lost-replay-boundary", "            self._index_partial_block(request, False)\n", ""
    ),
    "the worker is not told of copies": Fault(
        "stale-hit",
        "                self.kv_cache_manager.drain_pending_copy_ops()\n",
        "                self.kv_cache_manager.drain_pending_copy_ops() and []\n",
        SCHEDULER,
    ),
    "blocks of who made room are not told": Fault(
        "aliased-write",
        "                    self._add_pending_runner_block_delta(req.request_id, evicted_delta)\n",
        "",
        SCHEDULER,
    ),
    "what is copied is not counted as a hit": Fault(
        "false-statistics",
        "request, num_new_local_computed_tokens + num_sub_block_tokens\n",
        "request, num_new_local_computed_tokens\n",
        SCHEDULER,
    ),
}

LAWFUL = {
    "another block is copied from that has the same": Fault(
        "", "best_block_id = next(iter(blocks))", "best_block_id = max(blocks)"
    ),
    "all of the block is copied": Fault(
        "",
        "                    num_tokens=match.num_tokens,",
        "                    num_tokens=self._group_infos[i].block_size,",
    ),
}
"""Changes that serve every request what it asks for."""


def run(folder: Path, *more: str, rbln: str = RBLN) -> tuple[int, set[str]]:
    """Run suites with the `vllm_rbln` of a folder, four parts to a block; return the exit code, and
    what was found beside what is listed.
    """
    paths = [*SOURCES, str(ROOT / "ci" / "plug_ins"), rbln]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cachewitness", "run", "--engine", ENGINE, "--quiet"),
            *("--option", "max_num_batched_tokens=16", "--expected", str(LISTED)),
            *("--report", "out", "--shrink-attempts", "0", *more),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "CACHEWITNESS_RBLN_SUB_BLOCK": "4",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads((folder / "out" / "report.json").read_bytes())
    failures = [failure for suite in report["suites"] for failure in suite["failures"]]
    return done.returncode, {found["anomaly"] for found in failures if not found["expected"]}


@pytest.mark.parametrize("asked", [RULES, WINDOWS])
def test_as_released_nothing_is_found_but_what_is_listed(
    asked: tuple[str, ...], tmp_path: Path
) -> None:
    assert run(tmp_path, *asked) == (0, set())


def changed(folder: Path, fault: Fault) -> str:
    """Return a folder with a vllm-rbln that has a change."""
    shutil.copytree(Path(RBLN) / "vllm_rbln", folder / "vllm_rbln")
    file = folder / "vllm_rbln" / "v1" / "core" / fault.file
    text = file.read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, tmp_path: Path) -> None:
    one = FAULTS[fault]
    found = run(tmp_path, *one.run, "--fail-fast", rbln=changed(tmp_path, one))
    assert found == (1, {one.anomaly})


@pytest.mark.parametrize("change", LAWFUL)
def test_what_is_lawful_passes(change: str, tmp_path: Path) -> None:
    one = LAWFUL[change]
    assert run(tmp_path, *one.run, rbln=changed(tmp_path, one)) == (0, set())
