"""What the policy is built from: groups, a pool size and options, checked before anything runs.

The checks are vLLM's own. An option that makes no difference to the groups at hand is refused, because whoever set it
believes that it does; an option of a rule that this specification leaves out is refused as well (`AbsentRule`), because
silently ignoring it would make every later comparison worthless.

Sources (vLLM 0.33.0): `v1/core/kv_cache_utils.py`, `resolve_kv_cache_block_sizes`, `partial_hash_hits_enabled`;
`v1/core/kv_cache_coordinator.py`, `_validate_prefix_cache_retention_interval`; `v1/kv_cache_interface.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from reference_impl.vllm.spec import NEWEST, RELEASES, Release

MambaCacheMode = Literal["none", "align", "all"]


class ConfigError(ValueError):
    """An option does not fit; the message is one line that names it."""


class AbsentRule(ConfigError):
    """An option asks for a rule of vLLM that this specification leaves out (see `spec.RULES`)."""


@dataclass(frozen=True)
class FullAttentionSpec:
    """Every query reads every earlier token. `block_size` in tokens."""

    block_size: int


@dataclass(frozen=True)
class SlidingWindowSpec:
    """A query reads the last `sliding_window` tokens, itself included."""

    block_size: int
    sliding_window: int

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Return the most blocks that one request holds at once: its window, the tokens in flight, one for the offset."""
        num_tokens = min(self.sliding_window - 1 + max_in_flight_tokens, max_model_len)
        return math.ceil(num_tokens / self.block_size) + 1


@dataclass(frozen=True)
class MambaSpec:
    """A recurrent state, one per `block_size` tokens at most. A snapshot takes `pages_per_snapshot` blocks."""

    block_size: int
    mamba_cache_mode: MambaCacheMode = "align"
    pages_per_snapshot: int = 1


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec | MambaSpec


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """One cache group. `is_eagle_group` marks those whose layers a drafter reads; none marked means all of them."""

    kv_cache_spec: KVCacheSpec
    is_eagle_group: bool = False


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen, vLLM's names where vLLM has them. Sizes are in tokens unless said otherwise.

    `num_speculative_tokens`: so many drafts are verified with each token at most. `async_depth`: so many steps may be scheduled
    before the tokens of an earlier one are known. `tier_slots`: so many pages fit into the second tier, 0 without one. The
    three marked `by release` take what that release of vLLM does when they are left alone.
    """

    release: str = NEWEST
    enable_caching: bool = True
    retention_interval: int | Literal["by release"] | None = "by release"
    junction_pinning: bool | Literal["by release"] = "by release"
    eagle_replay_boundaries: bool | Literal["by release"] = "by release"
    hash_block_size: int | None = None
    mamba_cache_mode: MambaCacheMode = "align"
    use_eagle: bool = False
    pages_per_snapshot: int = 1
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    enable_kv_cache_events: bool = False
    num_speculative_tokens: int = 0
    async_depth: int = 0
    tier_slots: int = 0
    max_model_len: int = 4096
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Return options read from plain data.

        Raises AbsentRule for an option of a rule left out, ConfigError for a name or a value that does not fit.
        """
        known = {f.name: f for f in fields(cls)}
        for name, value in given.items():
            if name in _ABSENT_OPTIONS:
                raise AbsentRule(f"option {name!r}: the rule {_ABSENT_OPTIONS[name]!r} is not in this specification")
            if name not in known:
                raise ConfigError(f"option {name!r} is unknown; known are {', '.join(sorted(known))}")
            _check_type(name, value)
        return cls(**given)


@dataclass(frozen=True)
class KVCacheConfig:
    """A checked configuration, everything that depends on the release resolved. Build it with `kv_cache_config`."""

    num_blocks: int
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]
    options: Options
    release: Release
    scheduler_block_size: int
    hash_block_size: int
    enable_partial_hash_hits: bool
    prefix_cache_retention_interval: int | None
    junction_pinning: bool
    eagle_replay_boundaries: bool

    @cached_property
    def has_mamba_layers(self) -> bool:
        """Whether some group is recurrent."""
        return any(isinstance(g.kv_cache_spec, MambaSpec) for g in self.kv_cache_groups)

    @cached_property
    def needs_kv_cache_zeroing(self) -> bool:
        """Whether new attention blocks must be zeroed: a page may come from a Mamba group and be read as attention."""
        return self.has_mamba_layers

    @cached_property
    def mamba_block_size(self) -> int:
        """The block size of the Mamba groups in tokens; 0 without any."""
        sizes = (g.kv_cache_spec.block_size for g in self.kv_cache_groups if isinstance(g.kv_cache_spec, MambaSpec))
        return next(sizes, 0)


def make_spec(kind: str, block_size: int, window: int, options: Options) -> KVCacheSpec:
    """Return the group spec of a layout's group: kind `full`, `sliding` or `recurrent`, sizes in tokens.

    In Mamba mode `none` one block holds the state of a whole request, so `block_size` gives way to `max_model_len`.
    Raises AbsentRule for `chunked`, ConfigError for sizes that make no sense.
    """
    if block_size <= 0:
        raise ConfigError(f"block_size ({block_size}) of a {kind} group must be positive")
    if kind == "full":
        return FullAttentionSpec(block_size)
    if kind == "sliding":
        if window <= 0:
            raise ConfigError(f"window ({window}) of a sliding group must be positive; it counts the query itself")
        return SlidingWindowSpec(block_size, window)
    if kind == "recurrent":
        if options.mamba_cache_mode == "none":
            block_size = options.max_model_len
        return MambaSpec(block_size, options.mamba_cache_mode, options.pages_per_snapshot)
    if kind == "chunked":
        raise AbsentRule("group kind 'chunked': the rule 'chunked-local' is not in this specification")
    raise ConfigError(f"group kind {kind!r} is unknown; known are full, sliding, recurrent")


def kv_cache_config(
    specs: Iterable[KVCacheSpec | KVCacheGroupSpec], num_blocks: int, options: Options | None = None
) -> KVCacheConfig:
    """Return the checked configuration for these groups over a pool of `num_blocks`, the null block included.

    Raises ConfigError or AbsentRule.
    """
    options = options or Options()
    groups = tuple(s if isinstance(s, KVCacheGroupSpec) else KVCacheGroupSpec(s) for s in specs)
    if not groups:
        raise ConfigError("groups is empty; name at least one cache group")
    if num_blocks < 2:
        raise ConfigError(f"num_blocks ({num_blocks}) must be at least 2: the null block and one other")
    if options.release not in RELEASES:
        raise ConfigError(f"release {options.release!r} is unknown; known are {', '.join(RELEASES)}")
    release = RELEASES[options.release]
    _check_numbers(options)
    _check_mamba(groups, options, release)
    _check_drafts(groups, options)
    scheduler_block_size, hash_block_size = _block_sizes(groups, options)
    partial_hits = _partial_hash_hits_enabled(groups, hash_block_size, options, release)
    _check_tier(options, partial_hits)
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_groups=groups,
        options=options,
        release=release,
        scheduler_block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        enable_partial_hash_hits=partial_hits,
        prefix_cache_retention_interval=_retention_interval(groups, scheduler_block_size, options, release),
        junction_pinning=_by_release(options.junction_pinning, release.junction_pinning),
        eagle_replay_boundaries=_by_release(options.eagle_replay_boundaries, release.eagle_replay_boundaries),
    )


def build(groups: Sequence[Mapping[str, Any]], num_blocks: int, options: Mapping[str, Any]) -> KVCacheConfig:
    """Return the configuration for groups and options given as plain data (`kind`, `block_size`, `window`)."""
    parsed = Options.parse(options)
    specs = [make_spec(g["kind"], g["block_size"], g.get("window", 0), parsed) for g in groups]
    return kv_cache_config(specs, num_blocks, parsed)


_ABSENT_OPTIONS = {
    "num_hash_lookahead_tokens": "hash-lookahead",
    "num_prefill_lookahead": "multi-module-mtp",
    "num_prefill_checkpoint_blocks": "internal-checkpoint",
    "enable_mamba_shared_prefix_checkpoint": "internal-checkpoint",
    "attention_chunk_size": "chunked-local",
    "decode_context_parallel_size": "context-parallel",
    "prefill_context_parallel_size": "context-parallel",
    "kv_connector": "connector",
    "scheduling_policy": "priority-scheduling",
}
_BOOLEANS = {"enable_caching", "use_eagle", "scheduler_reserve_full_isl", "enable_kv_cache_events"}
_BY_RELEASE = {"junction_pinning", "eagle_replay_boundaries"}
_COUNTS = {"pages_per_snapshot", "max_model_len", "max_num_batched_tokens", "max_num_seqs"}
_OPTIONAL_COUNTS = {"num_speculative_tokens", "async_depth", "tier_slots"}
_MODES = ("none", "align", "all")


def _check_type(name: str, value: object) -> None:
    integer = isinstance(value, int) and not isinstance(value, bool)
    fits = {
        "release": isinstance(value, str),
        "mamba_cache_mode": value in _MODES,
        "retention_interval": value is None or integer or value == "by release",
        "hash_block_size": value is None or integer,
        "watermark": integer or isinstance(value, float),
    }
    fits |= dict.fromkeys(_BOOLEANS, isinstance(value, bool))
    fits |= dict.fromkeys(_BY_RELEASE, isinstance(value, bool) or value == "by release")
    fits |= dict.fromkeys(_COUNTS | _OPTIONAL_COUNTS, integer)
    if not fits[name]:
        raise ConfigError(f"option {name!r} cannot be {value!r}")


def _check_numbers(options: Options) -> None:
    for name in sorted(_COUNTS):
        if getattr(options, name) <= 0:
            raise ConfigError(f"option {name!r} ({getattr(options, name)}) must be positive")
    for name in sorted(_OPTIONAL_COUNTS):
        if getattr(options, name) < 0:
            raise ConfigError(f"option {name!r} ({getattr(options, name)}) must be at least 0")
    if options.async_depth > 1:
        raise ConfigError(f"option 'async_depth' ({options.async_depth}) must be 0 or 1")
    if options.async_depth and options.num_speculative_tokens:
        raise AbsentRule("option 'async_depth': drafts of a step in flight are not in this specification; set one of the two")
    if not 0.0 <= options.watermark < 1.0:
        raise ConfigError(f"option 'watermark' ({options.watermark}) must be in [0, 1): a share of the pool's blocks")


def _check_mamba(groups: Sequence[KVCacheGroupSpec], options: Options, release: Release) -> None:
    specs = [g.kv_cache_spec for g in groups if isinstance(g.kv_cache_spec, MambaSpec)]
    sizes = sorted({spec.block_size for spec in specs})
    if len(sizes) > 1:
        raise ConfigError(f"block_size of the recurrent groups must be one, not {sizes}: chunks end where all have a state")
    for spec in specs:
        if spec.mamba_cache_mode == "all" and not release.mamba_all:
            raise ConfigError(f"option 'mamba_cache_mode' 'all' ended with release 0.31; this is {options.release}")
        if spec.mamba_cache_mode == "none" and options.enable_caching:
            raise ConfigError("option 'mamba_cache_mode' 'none' needs 'enable_caching' false; use 'align' to cache states")
        if spec.pages_per_snapshot > 1 and spec.mamba_cache_mode != "align":
            raise ConfigError(f"option 'pages_per_snapshot' ({spec.pages_per_snapshot}) needs 'mamba_cache_mode' 'align'")
    if options.pages_per_snapshot > 1 and not specs:
        raise ConfigError(f"option 'pages_per_snapshot' ({options.pages_per_snapshot}) needs a recurrent group")


def _check_drafts(groups: Sequence[KVCacheGroupSpec], options: Options) -> None:
    """Refuse drafts where a rejected one could not be taken back: a state needs a page of its own for each."""
    drafts = options.num_speculative_tokens
    for spec in [g.kv_cache_spec for g in groups if drafts and isinstance(g.kv_cache_spec, MambaSpec)]:
        if spec.mamba_cache_mode != "align" or spec.pages_per_snapshot > 1:
            raise AbsentRule(
                "option 'num_speculative_tokens': with recurrent groups it needs 'mamba_cache_mode' 'align' and "
                "'pages_per_snapshot' 1 in this specification"
            )
        if drafts >= spec.block_size:
            raise ConfigError(
                f"option 'num_speculative_tokens' ({drafts}) must be less than the recurrent block size ({spec.block_size})"
            )


def _check_tier(options: Options, partial_hits: bool) -> None:
    """Refuse a second tier where there is nothing to store, or where a key is more, or less, than one whole block."""
    if options.tier_slots and not options.enable_caching:
        raise ConfigError(f"option 'tier_slots' ({options.tier_slots}) needs 'enable_caching' true")
    if options.tier_slots and (partial_hits or options.pages_per_snapshot > 1):
        raise AbsentRule(
            "option 'tier_slots': hits inside a block and snapshots of several blocks are not in this specification of a tier; "
            "set 'hash_block_size' to the block size and 'pages_per_snapshot' to 1"
        )


def _block_sizes(groups: Sequence[KVCacheGroupSpec], options: Options) -> tuple[int, int]:
    """Return (scheduler block size, hash block size): the LCM of the groups' sizes and the granularity of hashing."""
    sizes = [g.kv_cache_spec.block_size for g in groups]
    scheduler_block_size = math.lcm(*sizes)
    requested = options.hash_block_size
    if requested is not None and requested <= 0:
        raise ConfigError(f"option 'hash_block_size' ({requested}) must be positive")
    if len(groups) == 1:
        if requested not in (None, sizes[0]) and options.enable_caching:
            raise ConfigError(
                f"option 'hash_block_size' ({requested}): with one cache group hits end on its block size ({sizes[0]})"
            )
        return scheduler_block_size, scheduler_block_size
    if not options.enable_caching:
        return scheduler_block_size, scheduler_block_size
    if any(isinstance(g.kv_cache_spec, MambaSpec) and g.kv_cache_spec.mamba_cache_mode == "all" for g in groups):
        if len(set(sizes)) > 1:
            raise ConfigError(f"option 'mamba_cache_mode' 'all' needs equal block sizes in every group, not {sizes}")
        return scheduler_block_size, scheduler_block_size
    hash_block_size = requested if requested is not None else math.gcd(*sizes)
    if any(size % hash_block_size for size in sizes):
        raise ConfigError(f"option 'hash_block_size' ({hash_block_size}) must divide every group's block size: {sizes}")
    return scheduler_block_size, hash_block_size


def _partial_hash_hits_enabled(
    groups: Sequence[KVCacheGroupSpec], hash_block_size: int, options: Options, release: Release
) -> bool:
    """Whether hits may end inside a block.

    Some aligned Mamba group must have blocks longer than a hash block, and every window group blocks of exactly one, since
    a window is only ever looked up whole block by whole block.
    """
    if not options.enable_caching or len(groups) == 1 or not release.partial_hash_hits:
        return False
    longer = any(isinstance(g.kv_cache_spec, MambaSpec) and g.kv_cache_spec.block_size > hash_block_size for g in groups)
    windows_fit = all(
        g.kv_cache_spec.block_size == hash_block_size for g in groups if isinstance(g.kv_cache_spec, SlidingWindowSpec)
    )
    if longer and windows_fit and options.pages_per_snapshot > 1:
        raise AbsentRule(
            "option 'pages_per_snapshot': copy-on-write of a snapshot of several blocks is not in this specification; "
            "set 'hash_block_size' to the block size"
        )
    return longer and windows_fit


def _retention_interval(
    groups: Sequence[KVCacheGroupSpec], scheduler_block_size: int, options: Options, release: Release
) -> int | None:
    given = options.retention_interval
    interval = _default_interval(groups, options, release) if given == "by release" else given
    if interval is None:
        return None
    if release.retention == "dense":
        raise ConfigError(f"option 'retention_interval' ({interval}) came with release 0.23; this is {options.release}")
    governed = (SlidingWindowSpec,) if release.retention == "sliding" else (SlidingWindowSpec, MambaSpec)
    if not any(isinstance(g.kv_cache_spec, governed) for g in groups):
        if interval == 0 and release.retention_zero_ignored:
            return interval
        names = "sliding-window" if release.retention == "sliding" else "sliding-window or Mamba"
        raise ConfigError(f"option 'retention_interval' ({interval}) has no effect: there is no {names} group")
    if interval < 0 or interval % scheduler_block_size:
        raise ConfigError(
            f"option 'retention_interval' ({interval}) must be non-negative and a multiple of the scheduler block size "
            f"({scheduler_block_size}, the LCM of the groups' block sizes)"
        )
    return interval


def _default_interval(groups: Sequence[KVCacheGroupSpec], options: Options, release: Release) -> int | None:
    hybrid = any(isinstance(g.kv_cache_spec, MambaSpec) for g in groups)
    if release.dense_default_for_eagle and hybrid and options.use_eagle:
        return None
    return release.retention_default


def _by_release(given: bool | Literal["by release"], default: bool) -> bool:
    return default if given == "by release" else given
