"""Puts SGLang's own objects together: tree, allocators, the table of requests. The tensors that
they address are not there.

The pools of states and of keys and values are stand-ins with a count of what was copied: the cache
hands out slots and copies states between them, and never looks into one.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cachewitness.engines.pinned_package import PinnedPackage
from cachewitness.systems.sglang.options import PoolSizes
from cachewitness.systems.sglang.source import SETTINGS

CORE = "python"
MAX_REQUESTS = 512
"""Rows in the table of requests: more than any trace has live requests."""


class StatePool:
    """Stands in for the tensors of recurrent states: remembers which slots were copied, in
    order.
    """

    replayssm_write_pos = None
    replayssm_spec_write_pos = None

    def __init__(self) -> None:
        self.copied: list[tuple[int, int]] = []

    def copy_from(self, sources: Any, targets: Any) -> None:
        """Take note that states were copied between slots."""
        self.copied += zip(sources.tolist(), targets.tolist(), strict=True)


@dataclass(frozen=True)
class Built:
    """SGLang's objects of one engine."""

    tree: Any
    requests: Any
    """`ReqToTokenPool`: a row of token slots for each request."""
    allocator: Any
    states: StatePool | None
    asked: PoolSizes


def build(source: PinnedPackage, asked: PoolSizes, *, caching: bool = True) -> Built:
    """Return SGLang's cache for what a trace asks, all its pools empty; without `caching` as
    `--disable-radix-cache` has it.
    """
    import torch

    SETTINGS.chunk = asked.page_size
    SETTINGS.mamba = SimpleNamespace(
        mamba_max_states_per_path=asked.max_states_per_path,
        enable_mamba_extra_buffer=False,
        enable_mamba_extra_buffer_lazy=False,
    )
    states = StatePool() if asked.states else None
    requests = _requests(source, asked, states)
    allocator = _allocator(source, asked, requests, torch)
    kinds = source.part("mem_cache.unified_cache.component_type", "ComponentType")
    parts = [
        kinds.FULL,
        *([kinds.SWA] if asked.window else []),
        *([kinds.MAMBA] if asked.states else []),
    ]
    params = source.part("mem_cache.cache_init_params", "CacheInitParams")(
        disable=not caching,
        req_to_token_pool=requests,
        token_to_kv_pool_allocator=allocator,
        page_size=asked.page_size,
        sliding_window_size=asked.window - 1 if asked.window else None,
        tree_components=tuple(parts),
        tree_core_backend=CORE,
    )
    tree = source.part("mem_cache.unified_radix_cache", "UnifiedRadixCache")(params)
    return Built(tree, requests, allocator, states, asked)


def _requests(source: PinnedPackage, asked: PoolSizes, states: StatePool | None) -> Any:
    if states is None:
        return source.part("mem_cache.memory_pool", "ReqToTokenPool")(
            size=MAX_REQUESTS,
            max_context_len=asked.max_model_len + asked.page_size,
            device="cpu",
            enable_memory_saver=False,
        )
    return _hybrid(source, asked, states)(
        size=MAX_REQUESTS,
        mamba_size=asked.states,
        mamba_spec_state_size=0,
        max_context_len=asked.max_model_len + asked.page_size,
        device="cpu",
        enable_memory_saver=False,
        cache_params=None,
        mamba_layer_ids=[],
        enable_mamba_extra_buffer=False,
    )


def _hybrid(source: PinnedPackage, asked: PoolSizes, states: StatePool) -> Any:
    """Return SGLang's table of requests of a hybrid model, whose states are the stand-in's."""
    import torch

    base: Any = source.part("mem_cache.memory_pool", "HybridReqToTokenPool")
    slots = source.part("mem_cache.allocator.mamba", "MambaSlotAllocator")

    class Hybrid(base):  # type: ignore[misc]
        def _init_mamba_pool(self, *args: Any, **kwargs: Any) -> None:
            self.mamba_pool = states
            self.mamba_ckpt_pool = None
            self.short_conv_pool = self.ngram_pool = SimpleNamespace(clear=lambda: None)
            self.mamba_allocator = slots(size=asked.states, device="cpu")
            rows = self.req_to_token.shape[0]
            self.req_index_to_mamba_index_mapping = torch.zeros(rows, dtype=torch.int32)

    return Hybrid


def _allocator(source: PinnedPackage, asked: PoolSizes, requests: Any, torch: Any) -> Any:
    tokens = asked.pages * asked.page_size
    if asked.window:
        return source.part("mem_cache.allocator.swa", "SWATokenToKVPoolAllocator")(
            size=tokens,
            size_swa=asked.swa_pages * asked.page_size,
            page_size=asked.page_size,
            dtype=torch.float16,
            device="cpu",
            kvcache=_window_pool(source),
            need_sort=False,
            req_to_token_pool=requests,
        )
    if asked.page_size == 1:
        name = "TokenToKVPoolAllocator"
        module = "token"
        sizes = {}
    else:
        name = "PagedTokenToKVPoolAllocator"
        module = "paged"
        sizes = {"page_size": asked.page_size}
    allocator = source.part(f"mem_cache.allocator.{module}", name)
    return allocator(
        tokens, **sizes, dtype=torch.float16, device="cpu", kvcache=None, need_sort=False
    )


def _window_pool(source: PinnedPackage) -> Any:
    """Return a pool of keys and values without tensors: it has the map from slots of full
    attention to those of the window.
    """
    base: Any = source.part("mem_cache.base_swa_memory_pool", "BaseSWAKVPool")

    class WindowPool(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.full_to_swa_index_mapping: Any = None

        def register_mapping(self, full_to_swa_index_mapping: Any) -> None:
            self.full_to_swa_index_mapping = full_to_swa_index_mapping

        def translate_loc_from_full_to_swa(self, kv_indices: Any) -> Any:
            return self.full_to_swa_index_mapping[kv_indices]

    WindowPool.__abstractmethods__ = frozenset()
    return WindowPool()
