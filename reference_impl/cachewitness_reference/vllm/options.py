"""Everything that can be chosen, read from plain data and checked as far as it can be without
knowing the groups.

An option of a rule that this specification leaves out is refused (`AbsentRule`), because silently
ignoring it would make every later comparison worthless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from cachewitness_reference.vllm.kv_cache_interface import MambaCacheMode
from cachewitness_reference.vllm.spec import NEWEST

ASYNC_DEPTH_MAX = 2
"""A step overlaps with one other on a single stage, with two on a pipeline of two stages; longer
ones are not here."""


LONGEST_SHOWN = 40
"""So many characters of a text that does not fit are repeated in a message."""


class ConfigError(ValueError):
    """An option does not fit; the message is one line that names it."""


class AbsentRule(ConfigError):
    """An option asks for a rule of vLLM that this specification leaves out (see `spec.RULES`)."""


RETENTION_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
"""The environment variable of the retention interval, in tokens (0.23 to 0.29; `envs.py`)."""


def retention_interval_from(environment: Mapping[str, str]) -> int | None:
    """Return what the environment variable says, None if it is unset.

    Raises ConfigError if it is no whole number from 0 within 63 bits.
    """
    text = environment.get(RETENTION_VARIABLE)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) >= 2**63:
        shown = repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")
        raise ConfigError(
            f"{RETENTION_VARIABLE} must be a whole number of tokens, at least 0, not {shown}"
        )
    return int(text)


def is_boolean(value: object) -> bool:
    """Whether a value is True or False."""
    return isinstance(value, bool)


def is_integer(value: object) -> bool:
    """Whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


POSITIVE = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
NOT_NEGATIVE = ("async_depth", "num_speculative_tokens")
_MODES = ("none", "align", "all")
ABSENT_OPTIONS = {
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
"""By name of an option of vLLM's: the rule that it belongs to, which this specification leaves out.
"""


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen, vLLM's names where vLLM has them. Sizes are in tokens unless
    said otherwise.

    `num_speculative_tokens`: so many drafts are verified with each token at most. `async_depth`: so
    many steps may be scheduled before the tokens of an earlier one are known. `eagle_groups` are
    the indices of the groups whose layers the drafter reads; none named: all of them. The three
    marked `by release` take what that release of vLLM does when they are left alone.
    """

    release: str = NEWEST
    enable_caching: bool = True
    retention_interval: int | Literal["by release"] | None = "by release"
    pin_shared_prefix_boundary: bool | Literal["by release"] = "by release"
    eagle_replay_boundaries: bool | Literal["by release"] = "by release"
    hash_block_size: int | None = None
    mamba_cache_mode: MambaCacheMode = "align"
    use_eagle: bool = False
    eagle_groups: Sequence[int] = ()
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    enable_kv_cache_events: bool = False
    num_speculative_tokens: int = 0
    async_depth: int = 0
    max_model_len: int = 4096
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128

    checks: ClassVar[Mapping[str, Callable[[object], bool]]] = {
        "release": lambda value: isinstance(value, str),
        "enable_caching": is_boolean,
        "retention_interval": (
            lambda value: value is None or is_integer(value) or value == "by release"
        ),
        "pin_shared_prefix_boundary": lambda value: is_boolean(value) or value == "by release",
        "eagle_replay_boundaries": lambda value: is_boolean(value) or value == "by release",
        "hash_block_size": lambda value: value is None or is_integer(value),
        "mamba_cache_mode": lambda value: value in _MODES,
        "use_eagle": is_boolean,
        "eagle_groups": (
            lambda value: isinstance(value, list | tuple) and all(map(is_integer, value))
        ),
        "watermark": lambda value: is_integer(value) or isinstance(value, float),
        "scheduler_reserve_full_isl": is_boolean,
        "enable_kv_cache_events": is_boolean,
        **dict.fromkeys((*POSITIVE, *NOT_NEGATIVE), is_integer),
    }
    """By name of an option: whether a value is of its type."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Return options read from plain data.

        Raises AbsentRule for an option of a rule left out, ConfigError for a name or a value that
        does not fit.
        """
        for name, value in given.items():
            if name in ABSENT_OPTIONS:
                raise AbsentRule(
                    f"option {name!r}: the rule {ABSENT_OPTIONS[name]!r} is not in this"
                    " specification"
                )
            if name not in cls.checks:
                raise ConfigError(
                    f"option {name!r} is unknown; known are {', '.join(sorted(cls.checks))}"
                )
            if not cls.checks[name](value):
                raise ConfigError(f"option {name!r} cannot be {value!r}")
        return cls(**given)


def check_numbers(options: Options) -> None:
    """Raise ConfigError for a number that makes no sense, AbsentRule for two options that do not
    go together here.
    """
    for name in POSITIVE:
        if getattr(options, name) <= 0:
            raise ConfigError(f"option {name!r} ({getattr(options, name)}) must be positive")
    for name in NOT_NEGATIVE:
        if getattr(options, name) < 0:
            raise ConfigError(f"option {name!r} ({getattr(options, name)}) must be at least 0")
    if options.async_depth > ASYNC_DEPTH_MAX:
        raise ConfigError(
            f"option 'async_depth' ({options.async_depth}) must be from 0 to {ASYNC_DEPTH_MAX}"
        )
    if options.async_depth and options.num_speculative_tokens:
        raise AbsentRule(
            "option 'async_depth': drafts of a step in flight are not in this specification; set"
            " one of the two"
        )
    if not 0.0 <= options.watermark < 1.0:
        raise ConfigError(
            f"option 'watermark' ({options.watermark}) must be in [0, 1): a share of the pool's"
            " blocks"
        )
