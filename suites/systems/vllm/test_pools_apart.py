"""The two block pools that tpu-inference gives vLLM, one of them for several groups: as released
nothing is found at manager level, and each of ten faults in its code is.
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

TPU = os.environ.get("CACHEWITNESS_TPU_INFERENCE", "")
PREPARED = f"vllm:source={SOURCE},prepare=tpu_inference_pools:install"
pytestmark = [
    *REAL,
    pytest.mark.skipif(
        not TPU,
        reason=(
            "CACHEWITNESS_TPU_INFERENCE does not name a folder that holds `tpu_inference`;"
            " ci/stage_vllm.sh has one"
        ),
    ),
]
LAYOUT = """name = "full-two-mamba"
story = "two groups of states beside full attention"
source = "made up"

[[groups]]
kind = "full"
block_size = 16

[[groups]]
kind = "recurrent"
block_size = 16

[[groups]]
kind = "recurrent"
block_size = 16
"""


class Fault(NamedTuple):
    """A change of tpu-inference's source, and what it is found as."""

    anomaly: str
    old: str
    new: str


FAULTS = {
    "a repeated group takes no reference": Fault(
        "reference-count", "            block.ref_cnt += 1", "            pass"
    ),
    "a repeated group is looked up by its own name": Fault(
        "lost-hit",
        "block_hash, self._canonical_group_ids(kv_cache_group_ids))",
        "block_hash, kv_cache_group_ids)",
    ),
    "a repeated group gets what came first": Fault(
        "aliased-write",
        "        self._last_allocation = list(blocks)",
        "        self._last_allocation = self._last_allocation or list(blocks)",
    ),
    "room for states is not asked for": Fault(
        "uncommitted-hit", "        if mamba_blocks_needed > avail_mamba:", "        if False:"
    ),
    "room for attention is not asked for": Fault(
        "engine-crashed",
        "        if attn_blocks_needed + watermark_blocks > avail_attn:",
        "        if False:",
    ),
    "events of states are lost": Fault(
        "lost-key-event",
        "self.attention_pool.take_events() + self.mamba_pool.take_events(",
        "self.attention_pool.take_events() + (list)(",
    ),
    "blocks are keyed ahead": Fault(
        "engine-crashed",
        "            total_computed_tokens + num_new_tokens,\n            request.num_tokens,",
        "            total_computed_tokens + num_new_tokens + 16,\n            request.num_tokens,",
    ),
    "no block is keyed": Fault(
        "lost-replay-boundary",
        "        self.coordinator.cache_blocks(request, num_tokens_to_cache)",
        "        pass",
    ),
    "states behind the request are kept": Fault(
        "late-release",
        "        self.coordinator.remove_skipped_blocks(",
        "        (lambda *_, **__: None)(",
    ),
    "what is hit is not taken": Fault(
        "use-after-free",
        "            self.coordinator.allocate_new_computed_blocks(",
        "            (lambda **_: None)(",
    ),
}


def run(folder: Path, *more: str, tpu: str = TPU) -> tuple[int, set[str]]:
    """Run suites with the `tpu_inference` of a folder; return the exit code, and what was found.

    Each run is a process of its own, since vLLM's modules are changed in it.
    """
    (folder / "full-two-mamba.toml").write_text(LAYOUT)
    paths = [*SOURCES, str(ROOT / "ci" / "plug_ins")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cachewitness", "run", "--engine", PREPARED),
            *("--layout", "./full-two-mamba.toml", "--report", "out", "--quiet", *more),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "CACHEWITNESS_TPU_INFERENCE": tpu,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads((folder / "out" / "report.json").read_bytes())
    failures = [failure for suite in report["suites"] for failure in suite["failures"]]
    return done.returncode, {failure["anomaly"] for failure in failures}


def test_as_released_nothing_is_found_at_manager_level(tmp_path: Path) -> None:
    assert run(tmp_path, "--suite", "invariants", "--suite", "random") == (0, set())


def test_a_reset_between_two_steps_hides_keys_from_routers(tmp_path: Path) -> None:
    """The events of both pools are put one behind the other, so the second pool's reset comes
    behind what the first has stored since. Nothing else is found.
    """
    found = run(tmp_path, "--suite", "scheduler", "--only", "*:reset-with-running@*")
    assert found == (1, {"lost-key-event"})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, tmp_path: Path) -> None:
    anomaly, old, new = FAULTS[fault]
    file = tmp_path / "tpu_inference" / "core" / "hybrid_coordinator.py"
    shutil.copytree(Path(TPU) / "tpu_inference" / "core", file.parent)
    shutil.copy(Path(TPU) / "tpu_inference" / "logger.py", file.parent.parent)
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    found = run(tmp_path, "--suite", "invariants", "--fail-fast", tpu=str(tmp_path))
    assert found == (1, {anomaly})
