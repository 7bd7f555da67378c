"""Faults in the worker of a real vLLM server. `ci/stage_vllm_server.sh` puts this folder on the
server's PYTHONPATH.

CACHEWITNESS_VLLM_FAULT names the fault; a server without it is vLLM as it is. Every time the fault
strikes, its count so far is written to stderr, and so to the server's log: a fault that never
struck has shown nothing.

A *restore* is what the worker does when a request is scheduled for the first time and part of its
prompt is cached: it copies the recurrent layers' states out of the cached block into the block that
the request runs on (`preprocess_mamba`), and it writes the request's cached blocks into a row of
the block table (`InputBatch.add_request`). The faults were written against 0.32.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

FAULT = os.environ.get("CACHEWITNESS_VLLM_FAULT", "")
COPIES = "vllm.v1.worker.mamba_utils"
BATCH = "vllm.v1.worker.gpu_input_batch"
struck = 0


def strike(times: int) -> None:
    """Count what the fault did and say it where the stage reads it."""
    global struck
    if times:
        struck += times
        print(f"cachewitness fault {FAULT}: {struck} so far", file=sys.stderr, flush=True)


def skip_copies(module: Any) -> None:
    """Copy no state at all, on a hit or in the middle of a prompt: requests without a hit
    compute wrongly too.
    """

    def skip(buffers: Any) -> None:
        strike(buffers.offset)

    module.do_mamba_copy_block = skip


def on_restores(module: Any, harm: Callable[[Any, int], int]) -> None:
    """Let `harm(buffers, first)` damage the copies from entry `first` on, which restore one
    request; it returns how many.
    """
    restored: set[str] = set()
    prepare = module.preprocess_mamba
    collect = module.collect_mamba_copy_meta

    @functools.wraps(prepare)
    def preprocess(
        scheduled: Any, config: Any, cache: Any, indices: dict[str, int], *rest: Any, **named: Any
    ) -> None:
        restored.clear()
        restored.update(
            new.req_id for new in scheduled.scheduled_new_reqs if new.num_computed_tokens
        )
        prepare(scheduled, config, cache, indices, *rest, **named)

    @functools.wraps(collect)
    def collected(buffers: Any, *rest: Any) -> None:
        first = buffers.offset
        collect(buffers, *rest)
        (request,) = (argument for argument in rest if hasattr(argument, "num_computed_tokens"))
        if request.req_id in restored:
            strike(harm(buffers, first))

    module.preprocess_mamba = preprocess
    module.collect_mamba_copy_meta = collected


def skip_restores(module: Any) -> None:
    """Copy no state on a hit: the request goes on from whatever lies in its block."""

    def forget(buffers: Any, first: int) -> int:
        skipped = int(buffers.offset) - first
        buffers.offset = first
        return skipped

    on_restores(module, forget)


def short_restores(module: Any) -> None:
    """Copy the first quarter of each state's bytes on a hit, as if four-byte entries were
    counted as bytes.
    """

    def cut(buffers: Any, first: int) -> int:
        buffers.sizes.np[first : buffers.offset] //= 4
        return int(buffers.offset) - first

    on_restores(module, cut)


def stale_rows(module: Any) -> None:
    """Write a request's own blocks into its row and leave the cached ones as the row's last
    request had them.
    """
    add = module.InputBatch.add_request
    left: dict[tuple[int, int], Any] = {}

    def add_request(self: Any, request: Any) -> int:
        row: int = add(self, request)
        stale = 0
        for group, table in enumerate(self.block_table.block_tables):
            blocks = table.block_table.np[row]
            before = left.get((group, row), blocks)
            left[group, row] = blocks.copy()
            cached = request.num_computed_tokens // table.block_size
            stale += int((blocks[:cached] != before[:cached]).sum())
            blocks[:cached] = before[:cached]
        strike(stale)
        return row

    module.InputBatch.add_request = add_request


FAULTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "skip-copies": (COPIES, skip_copies),
    "skip-restores": (COPIES, skip_restores),
    "short-restores": (COPIES, short_restores),
    "stale-rows": (BATCH, stale_rows),
}


class Planting(MetaPathFinder):
    """Finds the one module that the fault changes, and changes it once it has been executed."""

    def __init__(self, name: str, plant: Callable[[Any], None]) -> None:
        self._name = name
        self._plant = plant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec with a loader that plants the fault; None for every other
        module.
        """
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            _plant_after(spec.loader, self._plant)
        return spec


def _plant_after(loader: Loader, plant: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        plant(module)
        print(
            f"cachewitness fault {FAULT}: planted in {module.__name__}", file=sys.stderr, flush=True
        )

    loader.exec_module = exec_module  # type: ignore[method-assign]


if FAULT:
    if FAULT not in FAULTS:
        sys.exit(f"CACHEWITNESS_VLLM_FAULT: {FAULT} is none of {', '.join(FAULTS)}")
    sys.meta_path.insert(0, Planting(*FAULTS[FAULT]))
