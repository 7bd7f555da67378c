"""What the policy is built from: groups, a pool size and options, checked before anything runs.

The checks are vLLM's own. An option that makes no difference to the groups at hand is refused,
because whoever set it believes that it does.

Sources (vLLM 0.33.0): `v1/core/kv_cache_utils.py`, `resolve_kv_cache_block_sizes`,
`partial_hash_hits_enabled`; `v1/core/kv_cache_coordinator.py`,
`_validate_prefix_cache_retention_interval`; `v1/kv_cache_interface.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from cachewitness_reference.vllm.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from cachewitness_reference.vllm.options import AbsentRule, ConfigError, Options, check_numbers
from cachewitness_reference.vllm.spec import RELEASES, Release

__all__ = [
    "AbsentRule",
    "ConfigError",
    "KVCacheConfig",
    "Options",
    "build",
    "kv_cache_config",
    "make_spec",
]


@dataclass(frozen=True)
class KVCacheConfig:
    """A checked configuration, everything that depends on the release resolved. Build it with
    `kv_cache_config`.
    """

    num_blocks: int
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    options: Options
    release: Release
    scheduler_block_size: int
    hash_block_size: int
    enable_partial_hash_hits: bool
    prefix_cache_retention_interval: int | None
    pin_shared_prefix_boundary: bool
    eagle_replay_boundaries: bool

    @cached_property
    def has_mamba_layers(self) -> bool:
        """Whether some group is recurrent."""
        return any(isinstance(g.kv_cache_spec, MambaSpec) for g in self.kv_cache_groups)

    @cached_property
    def needs_kv_cache_zeroing(self) -> bool:
        """Whether new attention blocks must be zeroed: a page may come from a Mamba group and be
        read as attention.
        """
        return self.has_mamba_layers

    @cached_property
    def mamba_block_size(self) -> int:
        """The block size of the Mamba groups in tokens; 0 without any."""
        sizes = (
            g.kv_cache_spec.block_size
            for g in self.kv_cache_groups
            if isinstance(g.kv_cache_spec, MambaSpec)
        )
        return next(sizes, 0)


def make_spec(kind: str, block_size: int, window: int, options: Options) -> KVCacheSpec:
    """Return the group spec of a layout's group: kind `full`, `sliding` or `recurrent`, sizes in
    tokens.

    In Mamba mode `none` one block holds the state of a whole request, so `block_size` gives way to
    `max_model_len`. Raises AbsentRule for `chunked`, ConfigError for sizes that make no sense.
    """
    if block_size <= 0:
        raise ConfigError(f"block_size ({block_size}) of a {kind} group must be positive")
    if kind == "full":
        return FullAttentionSpec(block_size)
    if kind == "sliding":
        if window <= 0:
            raise ConfigError(
                f"window ({window}) of a sliding group must be positive; it counts the query itself"
            )
        return SlidingWindowSpec(block_size, window)
    if kind == "recurrent":
        if options.mamba_cache_mode == "none":
            block_size = options.max_model_len
        return MambaSpec(block_size, options.mamba_cache_mode)
    if kind == "chunked":
        raise AbsentRule(
            "group kind 'chunked': the rule 'chunked-local' is not in this specification"
        )
    raise ConfigError(f"group kind {kind!r} is unknown; known are full, sliding, recurrent")


def kv_cache_config(
    specs: Iterable[KVCacheSpec | KVCacheGroupSpec], num_blocks: int, options: Options | None = None
) -> KVCacheConfig:
    """Return the checked configuration for these groups over a pool of `num_blocks`, the null block
    included.

    Raises ConfigError or AbsentRule.
    """
    options = options or Options()
    groups = tuple(s if isinstance(s, KVCacheGroupSpec) else KVCacheGroupSpec(s) for s in specs)
    if not groups:
        raise ConfigError("groups is empty; name at least one cache group")
    if num_blocks < 2:
        raise ConfigError(
            f"num_blocks ({num_blocks}) must be at least 2: the null block and one other"
        )
    if options.release not in RELEASES:
        raise ConfigError(
            f"release {options.release!r} is unknown; known are {', '.join(RELEASES)}"
        )
    release = RELEASES[options.release]
    check_numbers(options)
    groups = _marked(groups, options)
    _check_mamba(groups, options, release)
    _check_drafts(groups, options)
    scheduler_block_size, hash_block_size = _block_sizes(groups, options)
    partial_hits = _partial_hash_hits_enabled(groups, hash_block_size, options, release)
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_groups=groups,
        options=options,
        release=release,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        enable_partial_hash_hits=partial_hits,
        prefix_cache_retention_interval=_retention_interval(
            groups, scheduler_block_size, options, release
        ),
        pin_shared_prefix_boundary=_by_release(
            options.pin_shared_prefix_boundary, release.pin_shared_prefix_boundary
        ),
        eagle_replay_boundaries=_by_release(
            options.eagle_replay_boundaries, release.eagle_replay_boundaries
        ),
    )


def build(
    groups: Sequence[Mapping[str, Any]], num_blocks: int, options: Mapping[str, Any]
) -> KVCacheConfig:
    """Return the configuration for groups and options given as plain data (`kind`, `block_size`,
    `window`).
    """
    parsed = Options.parse(options)
    specs = [make_spec(g["kind"], g["block_size"], g.get("window", 0), parsed) for g in groups]
    return kv_cache_config(specs, num_blocks, parsed)


def _marked(groups: Sequence[KVCacheGroupSpec], options: Options) -> tuple[KVCacheGroupSpec, ...]:
    """Return the groups, those marked that `eagle_groups` names."""
    beyond = sorted(index for index in options.eagle_groups if not 0 <= index < len(groups))
    if beyond:
        raise ConfigError(
            f"option 'eagle_groups' names group {beyond[0]}; there are {len(groups)}, counted"
            " from 0"
        )
    if options.eagle_groups and not options.use_eagle:
        raise ConfigError("option 'eagle_groups' needs 'use_eagle' true")
    return tuple(
        replace(group, is_eagle_group=True) if i in options.eagle_groups else group
        for i, group in enumerate(groups)
    )


def _check_mamba(groups: Sequence[KVCacheGroupSpec], options: Options, release: Release) -> None:
    specs = [g.kv_cache_spec for g in groups if isinstance(g.kv_cache_spec, MambaSpec)]
    sizes = sorted({spec.block_size for spec in specs})
    if len(sizes) > 1:
        raise ConfigError(
            f"block_size of the recurrent groups must be one, not {sizes}: chunks end where all"
            " have a state"
        )
    for spec in specs:
        if spec.mamba_cache_mode == "all" and not release.mamba_all:
            raise ConfigError(
                "option 'mamba_cache_mode' 'all' ended with release 0.31; this is"
                f" {options.release}"
            )
        if spec.mamba_cache_mode == "none" and options.enable_caching:
            raise ConfigError(
                "option 'mamba_cache_mode' 'none' needs 'enable_caching' false; use 'align' to"
                " cache states"
            )


def _check_drafts(groups: Sequence[KVCacheGroupSpec], options: Options) -> None:
    """Refuse drafts where a rejected one could not be taken back: a state needs a page of its
    own for each.
    """
    drafts = options.num_speculative_tokens
    for spec in [
        g.kv_cache_spec for g in groups if drafts and isinstance(g.kv_cache_spec, MambaSpec)
    ]:
        if spec.mamba_cache_mode != "align":
            raise AbsentRule(
                "option 'num_speculative_tokens': with recurrent groups it needs 'mamba_cache_mode'"
                " 'align' in this specification"
            )
        if drafts >= spec.block_size:
            raise ConfigError(
                f"option 'num_speculative_tokens' ({drafts}) must be less than the recurrent block"
                f" size ({spec.block_size})"
            )


def _block_sizes(groups: Sequence[KVCacheGroupSpec], options: Options) -> tuple[int, int]:
    """Return (scheduler block size, hash block size): the LCM of the groups' sizes and the
    granularity of hashing.
    """
    sizes = [g.kv_cache_spec.block_size for g in groups]
    scheduler_block_size = math.lcm(*sizes)
    requested = options.hash_block_size
    if requested is not None and requested <= 0:
        raise ConfigError(f"option 'hash_block_size' ({requested}) must be positive")
    if len(groups) == 1:
        if requested not in (None, sizes[0]) and options.enable_caching:
            raise ConfigError(
                f"option 'hash_block_size' ({requested}): with one cache group hits end on its"
                f" block size ({sizes[0]})"
            )
        return scheduler_block_size, scheduler_block_size
    # Only hits need hashes, so without caching their granularity decides nothing.
    if not options.enable_caching:
        return scheduler_block_size, scheduler_block_size
    if any(
        isinstance(g.kv_cache_spec, MambaSpec) and g.kv_cache_spec.mamba_cache_mode == "all"
        for g in groups
    ):
        if len(set(sizes)) > 1:
            raise ConfigError(
                "option 'mamba_cache_mode' 'all' needs equal block sizes in every group, not"
                f" {sizes}"
            )
        return scheduler_block_size, scheduler_block_size
    hash_block_size = requested if requested is not None else math.gcd(*sizes)
    if any(size % hash_block_size for size in sizes):
        raise ConfigError(
            f"option 'hash_block_size' ({hash_block_size}) must divide every group's block size:"
            f" {sizes}"
        )
    return scheduler_block_size, hash_block_size


def _partial_hash_hits_enabled(
    groups: Sequence[KVCacheGroupSpec], hash_block_size: int, options: Options, release: Release
) -> bool:
    """Whether hits may end inside a block.

    Some aligned Mamba group must have blocks longer than a hash block, and every window group
    blocks of exactly one, since a window is only ever looked up whole block by whole block.
    """
    if not options.enable_caching or len(groups) == 1 or not release.partial_hash_hits:
        return False
    longer = any(
        isinstance(g.kv_cache_spec, MambaSpec) and g.kv_cache_spec.block_size > hash_block_size
        for g in groups
    )
    windows_fit = all(
        g.kv_cache_spec.block_size == hash_block_size
        for g in groups
        if isinstance(g.kv_cache_spec, SlidingWindowSpec)
    )
    return longer and windows_fit


def _retention_interval(
    groups: Sequence[KVCacheGroupSpec],
    scheduler_block_size: int,
    options: Options,
    release: Release,
) -> int | None:
    given = options.retention_interval
    interval = _default_interval(groups, options, release) if given == "by release" else given
    if interval is None:
        return None
    if release.retention == "dense":
        raise ConfigError(
            f"option 'retention_interval' ({interval}) came with release 0.23; this is"
            f" {options.release}"
        )
    governed = (
        (SlidingWindowSpec,) if release.retention == "sliding" else (SlidingWindowSpec, MambaSpec)
    )
    if not any(isinstance(g.kv_cache_spec, governed) for g in groups):
        if interval == 0 and release.retention_zero_ignored:
            return interval
        names = "sliding-window" if release.retention == "sliding" else "sliding-window or Mamba"
        raise ConfigError(
            f"option 'retention_interval' ({interval}) has no effect: there is no {names} group"
        )
    if interval < 0 or interval % scheduler_block_size:
        raise ConfigError(
            f"option 'retention_interval' ({interval}) must be non-negative and a multiple of the"
            f" scheduler block size ({scheduler_block_size}, the LCM of the groups' block sizes)"
        )
    return interval


def _default_interval(
    groups: Sequence[KVCacheGroupSpec], options: Options, release: Release
) -> int | None:
    hybrid = any(isinstance(g.kv_cache_spec, MambaSpec) for g in groups)
    if release.dense_default_for_eagle and hybrid and options.use_eagle:
        return None
    return release.retention_default


def _by_release(given: bool | Literal["by release"], default: bool) -> bool:
    return default if given == "by release" else given
