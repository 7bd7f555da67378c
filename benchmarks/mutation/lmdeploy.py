"""lmdeploy as it is mutated: which files are driven, what is run on them here, and its own tests laid
out so that they run on a CPU.
"""  # noqa: E501

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from benchmarks.mutation import ours
from benchmarks.mutation.cases import Case, in_turn
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.own_tests import run_all
from benchmarks.mutation.source import SourceFile
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import parse
from cachewitness.report.expected import Entry, shipped
from cachewitness.systems.lmdeploy.configurations import configurations
from cachewitness.systems.lmdeploy.declared import CAPABILITIES
from cachewitness.systems.lmdeploy.source import KNOWN, load
from cachewitness.workloads.capabilities import fitting
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import SCENARIOS

NAME, TITLE, PAGE = "lmdeploy", "lmdeploy", "mutation-lmdeploy"
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
SEEDS = 40
"""So many random traces are made of each configuration."""


def files(source: Path) -> list[SourceFile]:
    """Return the driven files."""
    return [SourceFile(_folder(source), name) for name in FILES]


def run_ours(source: Path, mutants: Sequence[Mutant], kept: Path, seed: int) -> None:
    """Run the mutants on this harness's cases."""
    load(str(source))
    _tell_blocks_apart()
    ours.measure(cases(str(source), seed), mutants, _folder(source), kept)


def run_theirs(
    source: Path, tests: Path, mutants: Sequence[Mutant], kept: Path, work: Path
) -> None:
    """Run the mutants under lmdeploy's own tests, in an empty folder."""
    for name in TESTS:
        copy = shutil.copytree if (tests / "pytorch" / name).is_dir() else shutil.copy
        copy(tests / "pytorch" / name, work / "tests/pytorch" / name)
    os.chdir(work)
    sys.path.insert(0, str(work))
    load(str(source))
    maker = importlib.import_module("lmdeploy.pytorch.engine.inputs_maker")
    vars(maker).update(dict.fromkeys(GONE))
    named = [f"tests/pytorch/{name}" for name in TESTS]
    run_all(named, ELSEWHERE, mutants, _folder(source), kept)


def cases(source: str, seed: int) -> list[Case]:
    """Return all cases: random traces on each configuration in turn, and scenarios between them."""
    engine = f"lmdeploy:source={source}"
    return in_turn([_random(engine, seed), _stories(engine)])


def _folder(source: Path) -> Path:
    return source / "lmdeploy/pytorch"


def _tell_blocks_apart() -> None:
    """Have lmdeploy's clock of blocks go on by a second whenever it is read.

    It keeps the time in whole seconds, and between blocks of the same second the addresses of
    objects decide which is evicted: a case would not go the same way twice.
    """
    module = importlib.import_module("lmdeploy.pytorch.paging.block_manager.base_block_manager")
    vars(module)["time"] = SimpleNamespace(perf_counter=count().__next__)


def _random(engine: str, seed: int) -> Iterator[Case]:
    for number in range(SEEDS):
        for configuration in configurations():
            shape = configuration.shape("scheduler")
            trace = random_trace(shape, 1000 * seed + number, withdraw=False)
            yield _case(engine, "scheduler-random", trace, configuration)


def _stories(engine: str) -> Iterator[Case]:
    """Yield each scenario on a configuration that it applies to, then on the next."""
    for turn in range(len(configurations())):
        for number, story in enumerate(SCENARIOS):
            applies = [one for one in configurations() if story.applies(one.shape("scheduler"))]
            if turn < len(applies) and not story.tiered and not story.needs:
                configuration = applies[(turn + number) % len(applies)]
                trace = story.trace(configuration.shape("scheduler"))
                yield _case(engine, "scheduler", trace, configuration)


def _case(engine: str, suite: str, trace: Trace, configuration: Configuration) -> Case:
    """Return a trace, as a run reduces it to what lmdeploy can be asked, with what the release is
    known for.
    """
    name = f"{suite}:{trace.header.name}@{configuration.name}"
    known = tuple(entry for entry in _known() if entry.fits(name))
    return Case(engine, fitting(trace, CAPABILITIES), known=known)


@cache
def _known() -> tuple[Entry, ...]:
    return shipped(f"lmdeploy {KNOWN}", parse("lmdeploy").known_lists(KNOWN) or ()).entries
