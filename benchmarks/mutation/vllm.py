"""vLLM as it is mutated: which files are driven, and its own tests laid out so that they run on a
CPU.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

from benchmarks.mutation.engine import MutatedEngine, TestsOfItsOwn
from benchmarks.mutation.source import release_of
from benchmarks.mutation.vllm_cases import cases
from benchmarks.vllm_tests import prepare
from cachewitness.systems.vllm.source import load

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


def _lay_out(source: Path, tests: Path, work: Path) -> list[str]:
    """Lay all tests out, but for the `conftest.py` that imports models."""
    prepare(work, tests, release_of("vllm", source))
    shutil.rmtree(work / "tests")
    shutil.copytree(tests, work / "tests")
    (work / "tests/conftest.py").unlink()
    os.chdir(work)
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{work}:{source}"}
    sys.path[:0] = [str(work), str(source)]
    platform = importlib.import_module("vllm.platforms").current_platform
    if platform.device_type != "cpu":
        raise SystemExit(f"vLLM takes this machine for {platform.device_type!r}, not for a CPU")
    load(str(source))
    return [f"tests/{name}" for name in TESTS]


ENGINE = MutatedEngine(
    name="vllm",
    title="vLLM",
    folder="vllm",
    paths=FILES,
    load=load,
    cases=cases,
    tests=TestsOfItsOwn(_lay_out, ELSEWHERE),
)
