"""lmdeploy as it is mutated: which files are driven, what is run on them here, and its own tests laid
out so that they run on a CPU.
"""  # noqa: E501

from __future__ import annotations

import importlib
import os
import shutil
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from benchmarks.mutation.cases import Case
from benchmarks.mutation.engine import MutatedEngine, TestsOfItsOwn
from benchmarks.mutation.own_cases import cases_of
from cachewitness.systems.lmdeploy.configurations import configurations
from cachewitness.systems.lmdeploy.source import KNOWN, load

FILES = (
    *(
        f"paging/{name}.py"
        for name in (
            *("scheduler", "prefill_scheduler", "state_manager"),
            *("kv_load_coordinator", "kv_save_coordinator"),
            *("block_manager/__init__", "block_manager/base_block_manager"),
            *("block_manager/default_block_manager", "block_manager/window_block_manager"),
            *("block_trie/checkpoint", "block_trie/checkpoint_lifecycle"),
            *("block_trie/kv_lifecycle", "block_trie/node", "block_trie/trie"),
            *("eviction_helper/__init__", "eviction_helper/recompute_eviction_helper"),
            "seq_states/states",
        )
    ),
    *("engine/inputs_maker.py", "strategies/ar/engine.py", "strategies/ar/sequence.py"),
    *("block.py", "long_context.py", "messages.py", "prefix_cache_state.py"),
)
"""The driven files: of each some function is entered by a run with the default configurations."""
TESTS = ("paging", "engine", "test_model_inputs.py")
ELSEWHERE = ("ray", "zmq", "executor")
"""Tests with these words in their paths are of other processes."""
GONE = ("_make_state_prefix_cache_save_plan", "_make_state_prefix_cache_restore_plan")
"""Names that the tests import and this release has no more: tests that use them fail, the others
in their files run."""


def _lay_out(source: Path, tests: Path, work: Path) -> list[str]:
    for name in TESTS:
        copy = shutil.copytree if (tests / "pytorch" / name).is_dir() else shutil.copy
        copy(tests / "pytorch" / name, work / "tests/pytorch" / name)
    os.chdir(work)
    sys.path.insert(0, str(work))
    load(str(source))
    maker = importlib.import_module("lmdeploy.pytorch.engine.inputs_maker")
    vars(maker).update(dict.fromkeys(GONE))
    return [f"tests/pytorch/{name}" for name in TESTS]


def _load(source: str) -> None:
    """Import lmdeploy, and have its clock of blocks go on by a second whenever it is read.

    It keeps the time in whole seconds, and between blocks of the same second the addresses of
    objects decide which is evicted: a case would not go the same way twice.
    """
    load(source)
    module = importlib.import_module("lmdeploy.pytorch.paging.block_manager.base_block_manager")
    vars(module)["time"] = SimpleNamespace(perf_counter=count().__next__)


def _cases(source: str, seed: int) -> list[Case]:
    return cases_of(f"lmdeploy:source={source}", "scheduler", configurations(), KNOWN, seed)


ENGINE = MutatedEngine(
    name="lmdeploy",
    title="lmdeploy",
    folder="lmdeploy/pytorch",
    paths=FILES,
    load=_load,
    cases=_cases,
    tests=TestsOfItsOwn(_lay_out, ELSEWHERE),
)
