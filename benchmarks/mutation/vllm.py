"""vLLM as it is mutated: which files are driven, and its own tests laid out so that they run on a
CPU.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mutation import ours
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.own_tests import run_all
from benchmarks.mutation.source import SourceFile, release_of
from benchmarks.mutation.vllm_cases import cases
from benchmarks.vllm_tests import prepare
from cachewitness.systems.vllm.source import load

NAME, TITLE, PAGE = "vllm", "vLLM", "mutation"
_CONNECTORS = "distributed/kv_transfer/kv_connector/v1"
FILES = (
    *(
        f"v1/core/{name}.py"
        for name in (
            *("block_pool", "encoder_cache_manager", "kv_cache_coordinator", "kv_cache_manager"),
            *("kv_cache_planning", "kv_cache_utils", "single_type_kv_cache_manager"),
            *("sched/async_scheduler", "sched/interface", "sched/output", "sched/request_queue"),
            *("sched/scheduler", "sched/utils"),
        )
    ),
    "v1/request.py",
    *(f"v1/kv_offload/{name}.py" for name in ("base", "config", "cpu/common", "cpu/manager")),
    *(f"v1/simple_kv_offload/{name}.py" for name in ("manager", "metadata", "worker")),
    *(
        f"{_CONNECTORS}/{name}.py"
        for name in (
            *("base", "example_connector", "multi_connector", "offloading_connector"),
            *("offloading/common", "offloading/config", "offloading/events"),
            *("offloading/scheduler", "offloading/worker", "simple_cpu_offload_connector"),
        )
    ),
    *(f"v1/worker/{name}.py" for name in ("block_table", "gpu_input_batch", "mamba_utils")),
)
"""The driven files: of each some function is entered by a run with the default configurations, with
a connector, or by both."""
TESTS = ("v1/core", "v1/kv_connector/unit", "v1/kv_offload", "v1/simple_kv_offload", "v1/worker")
ELSEWHERE = ("mooncake", "moriio", "nixl", "umbp", "hf3fs", "flexkv", "p2p")
"""Tests with these words in their paths are of connectors to other machines, none of which is among
the files."""


def files(source: Path) -> list[SourceFile]:
    """Return the driven files that a release has."""
    folder = source / "vllm"
    return [SourceFile(folder, name) for name in FILES if (folder / name).is_file()]


def run_ours(source: Path, mutants: Sequence[Mutant], kept: Path, seed: int) -> None:
    """Run the mutants on this harness's cases."""
    load(str(source))
    ours.measure(cases(str(source), seed), mutants, source / "vllm", kept)


def run_theirs(
    source: Path, tests: Path, mutants: Sequence[Mutant], kept: Path, work: Path
) -> None:
    """Run the mutants under vLLM's own tests, in an empty folder."""
    _lay_out(work, tests, release_of(NAME, source))
    os.chdir(work)
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{work}:{source}"}
    sys.path[:0] = [str(work), str(source)]
    platform = importlib.import_module("vllm.platforms").current_platform
    if platform.device_type != "cpu":
        raise SystemExit(f"vLLM takes this machine for {platform.device_type!r}, not for a CPU")
    load(str(source))
    run_all([f"tests/{name}" for name in TESTS], ELSEWHERE, mutants, source / "vllm", kept)


def _lay_out(work: Path, tests: Path, release: str) -> None:
    """Lay all tests out, but for the `conftest.py` that imports models."""
    prepare(work, tests, release)
    shutil.rmtree(work / "tests")
    shutil.copytree(tests, work / "tests")
    (work / "tests/conftest.py").unlink()
