"""vLLM's options and four more, read from plain data and checked like vLLM's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cachewitness_reference.vllm import config as vllm
from cachewitness_reference.vllm.config import AbsentRule, ConfigError, KVCacheConfig
from cachewitness_reference.vllm.kv_cache_interface import KVCacheSpec, MambaSpec
from cachewitness_reference.vllm.options import is_integer

FreeList = Literal["lru", "fifo", "lifo"]
_FREE_LISTS = ("lru", "fifo", "lifo")


@dataclass(frozen=True)
class Options(vllm.Options):
    """vLLM's options, and what is added to them.

    `free_list`: in which order blocks that were given back are handed out again; `lru` as vLLM does
    it. `pages_per_snapshot`: so many blocks hold a recurrent state. `tier_pages`: so many pages fit
    into the second tier, 0 without one. `tier_delay`: a copy from or to it takes so many steps, 0
    if it is part of one.
    """

    free_list: FreeList = "lru"
    pages_per_snapshot: int = 1
    tier_pages: int = 0
    tier_delay: int = 0

    checks: ClassVar[Mapping[str, Callable[[object], bool]]] = {
        **vllm.Options.checks,
        "free_list": lambda value: value in _FREE_LISTS,
        **dict.fromkeys(("pages_per_snapshot", "tier_pages", "tier_delay"), is_integer),
    }


@dataclass(frozen=True)
class SnapshotSpec(MambaSpec):
    """A recurrent state of several blocks."""

    pages_per_snapshot: int = 1


def options_of(config: KVCacheConfig) -> Options:
    """Return the options of a configuration that `build` made; vLLM's alone ask for nothing that
    is added here.
    """
    return config.options if isinstance(config.options, Options) else Options()


def build(
    groups: Sequence[Mapping[str, Any]], num_blocks: int, options: Mapping[str, Any]
) -> KVCacheConfig:
    """Return the configuration for groups and options given as plain data (`kind`, `block_size`,
    `window`).

    Raises ConfigError or AbsentRule.
    """
    parsed = Options.parse(options)
    _check_numbers(parsed)
    specs = [_spec(g["kind"], g["block_size"], g.get("window", 0), parsed) for g in groups]
    config = vllm.kv_cache_config(specs, num_blocks, parsed)
    _check_snapshots(config, parsed)
    _check_tier(config, parsed)
    return config


def _spec(kind: str, block_size: int, window: int, options: Options) -> KVCacheSpec:
    spec = vllm.make_spec(kind, block_size, window, options)
    if isinstance(spec, MambaSpec) and options.pages_per_snapshot > 1:
        return SnapshotSpec(spec.block_size, spec.mamba_cache_mode, options.pages_per_snapshot)
    return spec


def _check_numbers(options: Options) -> None:
    if options.pages_per_snapshot <= 0:
        raise ConfigError(
            f"option 'pages_per_snapshot' ({options.pages_per_snapshot}) must be positive"
        )
    for name in ("tier_delay", "tier_pages"):
        if getattr(options, name) < 0:
            raise ConfigError(f"option {name!r} ({getattr(options, name)}) must be at least 0")


def _check_snapshots(config: KVCacheConfig, options: Options) -> None:
    """Refuse snapshots of several blocks where there are none, or where a rule knows only those
    of one.
    """
    pages = options.pages_per_snapshot
    if pages == 1:
        return
    if not config.has_mamba_layers:
        raise ConfigError(f"option 'pages_per_snapshot' ({pages}) needs a recurrent group")
    if options.mamba_cache_mode != "align":
        raise ConfigError(f"option 'pages_per_snapshot' ({pages}) needs 'mamba_cache_mode' 'align'")
    if options.num_speculative_tokens:
        raise AbsentRule(
            "option 'num_speculative_tokens': with recurrent groups it needs 'pages_per_snapshot' 1"
            " in this specification"
        )
    if config.enable_partial_hash_hits:
        raise AbsentRule(
            "option 'pages_per_snapshot': copy-on-write of a snapshot of several blocks is not in"
            " this specification; set 'hash_block_size' to the block size"
        )


def _check_tier(config: KVCacheConfig, options: Options) -> None:
    """Refuse a second tier where there is nothing to store, or where a key is more, or less,
    than one whole block.
    """
    if options.tier_pages and not options.enable_caching:
        raise ConfigError(f"option 'tier_pages' ({options.tier_pages}) needs 'enable_caching' true")
    if options.tier_delay and not options.tier_pages:
        raise ConfigError(
            f"option 'tier_delay' ({options.tier_delay}) needs 'tier_pages', a second tier to copy"
            " from and to"
        )
    if options.tier_pages and (config.enable_partial_hash_hits or options.pages_per_snapshot > 1):
        raise AbsentRule(
            "option 'tier_pages': hits inside a block and snapshots of several blocks are not in"
            " this specification of a tier; set 'hash_block_size' to the block size and"
            " 'pages_per_snapshot' to 1"
        )
    if options.tier_pages and options.enable_kv_cache_events:
        raise AbsentRule(
            "option 'enable_kv_cache_events': what a tier loads is told by nobody in this"
            " specification of one"
        )
