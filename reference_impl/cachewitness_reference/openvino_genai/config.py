"""What a user sets: `SchedulerConfig`, the defaults of each pipeline constructor, and which
settings are refused.

The fields have OpenVINO's names, defaults and meaning; 0 stands for "not set", as there. Where
OpenVINO refuses a setting the text here is its own. Where it lets a number pass that later wraps
around or is cut off to 32 bits (2^49 blocks turn into an empty, dynamic pool; a multiplier of 2^58
has the first step raise), the number is refused here, in one line that names the field.

Source: `scheduler_config.hpp`, `utils.cpp` (`get_latency_oriented_scheduler_config`); constructors:
the document.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from cachewitness_reference.openvino_genai.spec import DEFAULT_MULTIPLIER, GIB, INT32_MAX, SIZE_MAX

Constructor = Literal["LLMPipeline", "VLMPipeline", "ContinuousBatchingPipeline"]

FLAGS = (
    "dynamic_split_fuse",
    "enable_prefix_caching",
    "use_cache_eviction",
    "use_sparse_attention",
)
BLOCK_COUNTS = ("num_kv_blocks", "num_linear_attention_blocks")


ABSENT = {
    "use_cache_eviction": (
        "each layer drops the KV blocks that a running sequence attends to least, as only a model"
        " knows"
    ),
    "use_sparse_attention": (
        "a prompt then reads a part of its KV blocks, by its mode or by what a model attends to"
    ),
}
"""The fields whose rules are left out, and why. Sources: `cache_eviction.cpp`, `pipeline_impl.cpp`,
`sparse_attention.hpp`."""


class ConfigError(ValueError):
    """A setting is refused; the message is one line."""


class AbsentRule(ConfigError):
    """A setting asks for a rule that this specification leaves out (see `spec.RULES`)."""


@dataclass(frozen=True)
class SchedulerConfig:
    """How a pipeline batches and caches.

    `max_num_batched_tokens`: tokens in one step, SIZE_MAX if unlimited. `num_kv_blocks`,
    `num_linear_attention_blocks`: blocks of each pool, 0 to derive them. `cache_size` in GiB, of
    both pools together, 0 if unset. `cache_interval_multiplier`: KV blocks from one checkpoint to
    the next, None if unset. `max_num_seqs` bounds a batch if `dynamic_split_fuse` is off; otherwise
    it only sizes the pool of states.
    """

    max_num_batched_tokens: int = 256
    num_kv_blocks: int = 0
    cache_size: int = 0
    num_linear_attention_blocks: int = 0
    cache_interval_multiplier: int | None = None
    dynamic_split_fuse: bool = True
    use_cache_eviction: bool = False
    max_num_seqs: int = 256
    enable_prefix_caching: bool = False
    use_sparse_attention: bool = False

    def __post_init__(self) -> None:
        """Refuse what no `size_t` or `bool` holds. Raises ConfigError naming the field."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in FLAGS:
                if not isinstance(value, bool):
                    raise ConfigError(f"{field.name}: must be true or false, got {value!r}")
            elif not (value is None and field.name == "cache_interval_multiplier"):
                _check_size(field.name, value)

    @property
    def unlimited(self) -> bool:
        """Whether a step may have any number of tokens: the sign of a client that serves one
        stream.
        """
        return self.max_num_batched_tokens == SIZE_MAX

    def get_cache_interval(self, kv_block_size: int) -> int:
        """Return the tokens from one checkpoint to the next by the setting alone (8 if unset).

        Raises ConfigError if they do not fit 64 bits.
        """
        multiplier = self.cache_interval_multiplier
        if multiplier is None:
            multiplier = DEFAULT_MULTIPLIER
        interval = kv_block_size * multiplier
        if interval > SIZE_MAX:
            raise ConfigError(
                "SchedulerConfig cache_interval_multiplier is too large for KV cache block size. "
                f"cache_interval_multiplier: {multiplier}, KV cache block size: {kv_block_size}"
            )
        return interval

    def validate(self) -> None:
        """Refuse settings that contradict each other or that this specification leaves out.
        Raises ConfigError.
        """
        if self.enable_prefix_caching and self.cache_interval_multiplier == 0:
            raise ConfigError(
                "SchedulerConfig cache_interval_multiplier must be greater than 0 when prefix"
                " caching is enabled"
            )
        for name in BLOCK_COUNTS:
            check_block_count(name, getattr(self, name))
        if self.cache_size * GIB > SIZE_MAX:
            most = SIZE_MAX // GIB
            raise ConfigError(
                f"cache_size: {self.cache_size} GiB do not fit 64 bits when counted in bytes; use"
                f" at most {most}"
            )
        if not self.dynamic_split_fuse and self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"Max num batched tokens ({self.max_num_batched_tokens}) must be greater or equal"
                f" to max num sequences ({self.max_num_seqs})"
            )
        for name, why in ABSENT.items():
            if getattr(self, name):
                raise AbsentRule(
                    f"{name}: left out of this specification, since {why}; leave it off"
                )


def check_block_count(name: str, count: int) -> None:
    """Refuse more blocks than 32-bit indices can name. Raises ConfigError naming the field that
    they come from.
    """
    if count > INT32_MAX + 1:
        raise ConfigError(
            f"{name}: {count} blocks are more than 32-bit block indices can name; use at most"
            f" {INT32_MAX + 1}"
        )


def check_interval(multiplier: int, kv_block_size: int) -> int:
    """Return the interval of a multiplier in tokens. Raises ConfigError naming the field if no
    32-bit integer holds it.
    """
    interval = kv_block_size * multiplier
    if interval > INT32_MAX:
        raise ConfigError(
            f"cache_interval_multiplier: {multiplier} makes an interval of {interval} tokens, and"
            f" the kernels take at most {INT32_MAX}; use at most {INT32_MAX // kv_block_size}"
        )
    return interval


def latency_oriented() -> SchedulerConfig:
    """Return what LLMPipeline and VLMPipeline use unless told otherwise: one local user, no
    batch limit, prefix caching.
    """
    return SchedulerConfig(max_num_batched_tokens=SIZE_MAX, enable_prefix_caching=True)


def config_for(constructor: Constructor, given: SchedulerConfig | None = None) -> SchedulerConfig:
    """Return the configuration that a pipeline starts with; one that the user passes is taken as it
    is.

    Raises ConfigError if ContinuousBatchingPipeline is given none: it has no profile of its own.
    """
    if given is not None:
        return given
    if constructor == "ContinuousBatchingPipeline":
        raise ConfigError(
            "scheduler_config: ContinuousBatchingPipeline uses the one that the caller provides;"
            " provide one"
        )
    return latency_oriented()


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SIZE_MAX:
        raise ConfigError(f"{name}: must be a whole number from 0 to 2^64 - 1, got {value!r}")
