"""Finds and imports the cache of the SGLang under test: the installed one, or a wheel unpacked
into a folder.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cachewitness.engines.pinned_package import PinnedPackage
from cachewitness.engines.source_patch import Patches
from cachewitness.systems.sglang import stubs

KNOWN = "0.5.23"
"""The release that the list of stand-ins was written for."""
PACKAGE = PinnedPackage(
    title="SGLang",
    name="sglang",
    driven="its cache",
    parts="srt",
    folder="srt",
    version_file="_version.py",
    release=KNOWN,
    made_by="ci/stage_sglang.sh",
    needed=("torch", "psutil"),
)
UTILS = ("ceil_div", "ceil_align", "next_power_of_2", "get_num_new_pages", "async_h2d")
GRIDS = ("mamba_checkpoint_grid",)
PATCHES = Patches("sglang.srt")
"""What is planted into the engine that is open."""
SETTINGS = SimpleNamespace()
"""What SGLang's server arguments are for the engine that is open: `mamba`, and `chunk`, the
recurrent chunk in tokens."""


@functools.cache
def load(path: str = "") -> PinnedPackage:
    """Import SGLang's cache, from the folder `path` if one is given, and return its package.

    Raises EngineMissing and UsageError as `PinnedPackage.find` does, and EngineMissing if it cannot
    be imported.
    """
    root = PACKAGE.find(path)
    os.environ["SGLANG_RUST_BUILD_MODE"] = "never"
    logging.getLogger("sglang").setLevel(logging.ERROR)
    try:
        stubs.install(root, _patched(root))
        for name in (
            "managers.schedule_batch",
            "mem_cache.unified_radix_cache",
            "mem_cache.allocator.swa",
        ):
            importlib.import_module(f"sglang.srt.{name}")
    except (ImportError, LookupError, AttributeError, TypeError) as error:
        raise PACKAGE.missing(root, error) from None
    stubs.seal()
    return PACKAGE


def _no(*args: object, **kwargs: object) -> bool:
    return False


def _patched(root: Path) -> dict[str, dict[str, Any]]:
    """Return what stands in for SGLang's server arguments, its platform and its process groups:
    one process on a CPU.
    """
    import torch

    folder = root / "sglang" / "srt"
    devices = dict.fromkeys(
        ("is_npu", "is_hip", "is_cuda", "is_xpu", "is_cpu", "is_pin_memory_available"), _no
    )
    given = {"torch": torch, "is_pin_memory_available": _no}
    utils = {
        **devices,
        **stubs.taken(folder / "utils" / "common.py", UTILS, given),
        **dict.fromkeys(("get_bool_env_var", "support_triton"), _no),
        "get_int_env_var": lambda name, default=0: default,
    }
    platform = SimpleNamespace(
        capabilities=SimpleNamespace(supports_triton=False),
        get_paged_allocator_cls=lambda: None,
        synchronize=_no,
    )
    return {
        "sglang.srt.utils": utils,
        "sglang.srt.utils.common": utils,
        "sglang.srt.utils.rank_consensus_checker": {"rank_consensus": _unranked},
        "sglang.srt.session.streaming_session": {
            "StreamingSession": NoSessions,
            "is_virtual_node": _no,
        },
        "sglang.srt.layers.attention.dsv4.unified_kv_gate": {"is_unified_kv_triton": _no},
        "sglang.srt.platforms": {"current_platform": platform},
        "sglang.srt.runtime_context": _context(folder),
        "sglang.srt.utils.torch_memory_saver_adapter": {"TorchMemorySaverAdapter": _Unsaved},
        "sglang.srt.observability.req_time_stats": {"SchedulerReqTimeStats": _Untimed},
        # Behind all others: these import the package that they are in.
        "sglang.srt.mem_cache.allocator.hisparse": {
            "DeepSeekV4HiSparseTokenToKVPoolAllocator": _Nobody
        },
        "sglang.srt.mem_cache.allocator.unified_hybrid_swa": {"UnifiedSWAAllocatorBase": _Nobody},
    }


def _context(folder: Path) -> dict[str, Any]:
    context: dict[str, Any] = {
        "math": math,
        "mamba_cache_chunk_size": lambda: SETTINGS.chunk,
        "get_exec": lambda: SimpleNamespace(mamba=SETTINGS.mamba, features=SimpleNamespace()),
        "get_spec": lambda: SimpleNamespace(speculative_algorithm=None),
        "get_serving": lambda: SimpleNamespace(strip_thinking_cache=False),
        "get_disagg": lambda: SimpleNamespace(disaggregation_mode="null"),
        "get_parallel": lambda: SimpleNamespace(dcp_enabled=False, tp_rank=0),
        "attention_backends": lambda: ("torch_native", "torch_native"),
    }
    return {**context, **stubs.taken(folder / "runtime_context.py", GRIDS, context)}


def _unranked(function: Any = None, **kwargs: object) -> Any:
    """Return a function as it is: one process agrees with itself."""
    return function if function is not None else _unranked


class NoSessions:
    """Stands in for streaming sessions, of which there are none."""

    def __init__(self, cache: object) -> None:
        self.slots: dict[str, object] = {}

    def try_match_prefix(self, params: object) -> None:
        """Match nothing: no request belongs to a session."""

    def try_checkpoint(self, req: object, **kwargs: object) -> bool:
        """Keep nothing."""
        return False

    def try_cache_finished_req(self, req: object) -> bool:
        """Claim nothing."""
        return False

    def take(self, req: object) -> None:
        """Take nothing."""

    def borrowed_slot(self, req: object) -> None:
        """Lend nothing."""


class _Unsaved:
    """Stands in for the saver of GPU memory, which is off."""

    @staticmethod
    def create(enable: bool) -> Any:
        """Return what allocates as usual."""
        import contextlib

        return SimpleNamespace(region=lambda *args, **kwargs: contextlib.nullcontext())


class _Nobody:
    """Stands in for allocators of other memories: nothing is an instance of it."""


class _Untimed:
    """Stands in for the times of a request, which nobody reads."""

    def __init__(self, disagg_mode: object) -> None:
        self.disagg_mode = disagg_mode

    def set_metrics_collector(self, collector: object) -> None:
        """Do nothing: nothing is measured."""

    def set_scheduler_recv_time(self) -> None:
        """Do nothing: nothing is measured."""
