"""Finds and imports the cache of the SGLang under test: the installed one, or a wheel unpacked
into a folder.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.engines.source_patch import Patches
from cachewitness.systems.sglang import stubs

KNOWN = "0.5.23"
"""The release that the list of stand-ins was written for."""
MADE_BY = "ci/stage_sglang.sh"
"""Makes an environment with that release and what its cache imports."""
UTILS = ("ceil_div", "ceil_align", "next_power_of_2", "get_num_new_pages", "async_h2d")
GRIDS = ("mamba_checkpoint_grid",)
PATCHES = Patches("sglang.srt")
"""What is planted into the engine that is open."""
SETTINGS = SimpleNamespace()
"""What SGLang's server arguments are for the engine that is open: `mamba`, and `chunk`, the
recurrent chunk in tokens."""


@dataclass(frozen=True)
class Source:
    """One SGLang whose cache was imported."""

    version: str

    def part(self, module: str, name: str) -> Any:
        """Return something defined in `sglang.srt.<module>`. Raises UsageError naming it if this
        SGLang has no such thing.
        """
        try:
            return getattr(importlib.import_module(f"sglang.srt.{module}"), name)
        except (ImportError, AttributeError):
            raise UsageError(
                f"SGLang {self.version}: sglang.srt.{module} has no {name}; this adapter knows"
                f" {KNOWN}"
            ) from None


@functools.cache
def load(path: str = "") -> Source:
    """Import SGLang's cache, from the folder `path` if one is given, and return it.

    Raises EngineMissing if something must be installed first, UsageError for a folder without
    SGLang, for a release that the stand-ins were not written for, and for a process that has
    imported another SGLang.
    """
    root = _root(path)
    version = _version(root)
    if version != KNOWN:
        raise UsageError(
            f"SGLang {version}: its cache is driven in release {KNOWN} alone; install"
            f" sglang=={KNOWN}"
        )
    if "sglang" in sys.modules:
        raise UsageError(
            "--engine sglang: this process has imported SGLang already; use one process for each"
        )
    for name in ("torch", "psutil"):
        if importlib.util.find_spec(name) is None:
            raise EngineMissing(
                f"sglang needs the package {name}; {MADE_BY} installs what it needs", MADE_BY
            )
    return _imported(root, version)


def _imported(root: Path, version: str) -> Source:
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
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineMissing(
            f"SGLang {version} cannot be imported from {root}: {reason}", MADE_BY
        ) from None
    stubs.seal()
    return Source(version)


def _root(path: str) -> Path:
    if path:
        root = Path(path).expanduser().resolve()
        if not (root / "sglang" / "srt").is_dir():
            raise UsageError(
                f"--engine sglang:source={path}: no sglang/srt there; name the folder that holds"
                " `sglang`"
            )
        return root
    spec = None if "sglang" in sys.modules else importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        raise EngineMissing(
            f"sglang is not installed; {MADE_BY} makes an environment with {KNOWN}, or name an"
            " unpacked wheel: --engine sglang:source=PATH",
            MADE_BY,
        )
    return Path(spec.origin).resolve().parent.parent


def _version(root: Path) -> str:
    """Return the release that a tree says it is; `unknown` if it does not say."""
    file = root / "sglang" / "_version.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.search(r"__version__ = version = '([^']+)'", text)
    return found[1] if found else "unknown"


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
