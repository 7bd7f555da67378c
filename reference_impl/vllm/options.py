"""Everything that can be chosen, read from plain data and checked as far as it can be without knowing the groups.

An option of a rule that this specification leaves out is refused (`AbsentRule`), because silently ignoring it would make every
later comparison worthless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from reference_impl.vllm.kv_cache_interface import FreeList, MambaCacheMode
from reference_impl.vllm.spec import NEWEST

ASYNC_DEPTH_MAX = 2
"""A step overlaps with one other on a single stage, with two on a pipeline of two stages; longer ones are not here."""


class ConfigError(ValueError):
    """An option does not fit; the message is one line that names it."""


class AbsentRule(ConfigError):
    """An option asks for a rule of vLLM that this specification leaves out (see `spec.RULES`)."""


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen, vLLM's names where vLLM has them. Sizes are in tokens unless said otherwise.

    `num_speculative_tokens`: so many drafts are verified with each token at most. `async_depth`: so many steps may be scheduled
    before the tokens of an earlier one are known. `tier_pages`: so many pages fit into the second tier, 0 without one.
    `tier_delay`: a copy from or to it takes so many steps, 0 if it is part of one.
    `free_list`: in which order blocks that were given back are handed out again; `lru` as vLLM does it (see `block_pool`). The
    three marked `by release` take what that release of vLLM does when they are left alone.
    """

    release: str = NEWEST
    enable_caching: bool = True
    retention_interval: int | Literal["by release"] | None = "by release"
    pin_shared_prefix_boundary: bool | Literal["by release"] = "by release"
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
    tier_pages: int = 0
    free_list: FreeList = "lru"
    tier_delay: int = 0
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
_BY_RELEASE = {"pin_shared_prefix_boundary", "eagle_replay_boundaries"}
_COUNTS = {"pages_per_snapshot", "max_model_len", "max_num_batched_tokens", "max_num_seqs"}
_OPTIONAL_COUNTS = {"num_speculative_tokens", "async_depth", "tier_pages", "tier_delay"}
_MODES = ("none", "align", "all")
_FREE_LISTS = ("lru", "fifo", "lifo")


def _check_type(name: str, value: object) -> None:
    integer = isinstance(value, int) and not isinstance(value, bool)
    fits = {
        "release": isinstance(value, str),
        "mamba_cache_mode": value in _MODES,
        "free_list": value in _FREE_LISTS,
        "retention_interval": value is None or integer or value == "by release",
        "hash_block_size": value is None or integer,
        "watermark": integer or isinstance(value, float),
    }
    fits |= dict.fromkeys(_BOOLEANS, isinstance(value, bool))
    fits |= dict.fromkeys(_BY_RELEASE, isinstance(value, bool) or value == "by release")
    fits |= dict.fromkeys(_COUNTS | _OPTIONAL_COUNTS, integer)
    if not fits[name]:
        raise ConfigError(f"option {name!r} cannot be {value!r}")


def check_numbers(options: Options) -> None:
    """Raise ConfigError for a number that makes no sense, AbsentRule for two options that do not go together here."""
    for name in sorted(_COUNTS):
        if getattr(options, name) <= 0:
            raise ConfigError(f"option {name!r} ({getattr(options, name)}) must be positive")
    for name in sorted(_OPTIONAL_COUNTS):
        if getattr(options, name) < 0:
            raise ConfigError(f"option {name!r} ({getattr(options, name)}) must be at least 0")
    if options.async_depth > ASYNC_DEPTH_MAX:
        raise ConfigError(f"option 'async_depth' ({options.async_depth}) must be from 0 to {ASYNC_DEPTH_MAX}")
    if options.async_depth and options.num_speculative_tokens:
        raise AbsentRule("option 'async_depth': drafts of a step in flight are not in this specification; set one of the two")
    if not 0.0 <= options.watermark < 1.0:
        raise ConfigError(f"option 'watermark' ({options.watermark}) must be in [0, 1): a share of the pool's blocks")
