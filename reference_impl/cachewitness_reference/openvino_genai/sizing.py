"""How many blocks each pool gets: pure arithmetic over a configuration and the bytes of the two
kinds of block.

KV blocks hold `kv_block_size` tokens of all attention layers. A linear-attention block holds the
whole recurrent state of one sequence at one position, over all linear-attention layers. With prefix
caching the second pool keeps a state per interval of tokens, without it one per sequence; so the
same three settings mean different things, and the order of the rules matters:

1. Without prefix caching an unset number of states is 1 for a client (unlimited batches) and
   `max_num_seqs` for a server, as soon as the KV pool or the budget is set.
2. A budget without explicit KV blocks is split. Without prefix caching the states come off first
   and KV gets the rest. With it the split is the one that holds the most tokens, and an explicit
   number of states is *discarded*: the document says that it overrides, the sources of 2026.2 and
   2026.3 and the measured 2026.4 discard it.
3. Explicit KV blocks win over a budget; with prefix caching an unset number of states covers as
   many tokens.
4. With neither, nothing is derived, and a pool of no blocks makes the cache dynamic.

Source: the document; `cache_orchestrator.hpp`, `normalize_block_counts`; measured for every rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cachewitness_reference.openvino_genai.config import (
    ConfigError,
    SchedulerConfig,
    check_block_count,
    check_interval,
)
from cachewitness_reference.openvino_genai.spec import (
    DEFAULT_MULTIPLIER,
    GIB,
    GROWTH_TOKENS,
    INITIAL_MULTIPLIER,
    KV_BLOCK_SIZES,
    MULTIPLIER_MAX,
    NEWEST,
    RELEASES,
)


@dataclass(frozen=True)
class LayoutBytes:
    """What a model's blocks weigh, in bytes, and the tokens of a KV block.

    `la_block_bytes` 0: the model has no linear attention.
    """

    kv_block_bytes: int
    la_block_bytes: int = 0
    kv_block_size: int = KV_BLOCK_SIZES["CPU"]

    def __post_init__(self) -> None:
        """Refuse what no model has. Raises ConfigError naming the field."""
        for name, least in (("kv_block_bytes", 1), ("la_block_bytes", 0), ("kv_block_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name}: must be a whole number of at least {least}, got {value!r}"
                )

    @property
    def hybrid(self) -> bool:
        """Whether the model has linear attention beside the KV cache."""
        return self.la_block_bytes > 0


@dataclass(frozen=True)
class Capacity:
    """What was derived. `interval` in tokens and `multiplier` are None where there are no
    checkpoints.

    `dynamic`: some pool of the model has no blocks yet, so both start small and grow.
    """

    kv_blocks: int
    la_blocks: int
    kv_bytes: int
    la_bytes: int
    multiplier: int | None
    interval: int | None
    dynamic: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of both pools."""
        return self.kv_bytes + self.la_bytes

    def states_of(self, tokens: int) -> int:
        """Return how many states a sequence of so many tokens holds: one for each interval
        begun; without intervals one.
        """
        return 1 if self.interval is None else _ceil(tokens, self.interval)


def derive(
    config: SchedulerConfig,
    layout: LayoutBytes,
    version: str = NEWEST,
    total_memory_bytes: int | None = None,
) -> Capacity:
    """Return the capacity of both pools.

    `total_memory_bytes` is all the memory of the machine (not what is free of it); None leaves the
    memory check out. Raises ConfigError, in OpenVINO's words where it has some, for what does not
    fit or contradicts itself.
    """
    config.validate()
    if config.num_linear_attention_blocks and not layout.hybrid:
        raise ConfigError(
            "SchedulerConfig num_linear_attention_blocks can be set only for models with linear"
            " attention cache inputs"
        )
    multiplier = multiplier_for(config, layout, version)
    interval = None if multiplier is None else check_interval(multiplier, layout.kv_block_size)
    kv = config.num_kv_blocks
    la = _fixed_states(config, layout)
    if kv == 0 and config.cache_size > 0:
        kv, la = _split(config, layout, la, interval, total_memory_bytes)
    elif kv > 0:
        # One state for each checkpoint of the tokens that the attention blocks hold.
        if interval is not None and la == 0:
            la = _ceil(kv * layout.kv_block_size, interval)
        if (
            total_memory_bytes is not None
            and kv * layout.kv_block_bytes + la * layout.la_block_bytes > total_memory_bytes
        ):
            raise ConfigError(
                "Requested cache blocks require more memory than available on the system."
            )
    check_block_count("num_kv_blocks" if config.num_kv_blocks else "cache_size", kv)
    check_block_count(
        "num_linear_attention_blocks" if config.num_linear_attention_blocks else "max_num_seqs", la
    )
    return Capacity(
        kv_blocks=kv,
        la_blocks=la,
        kv_bytes=kv * layout.kv_block_bytes,
        la_bytes=la * layout.la_block_bytes,
        multiplier=multiplier,
        interval=interval,
        dynamic=kv == 0 or (layout.hybrid and la == 0),
    )


def multiplier_for(
    config: SchedulerConfig, layout: LayoutBytes, version: str = NEWEST
) -> int | None:
    """Return the KV blocks from one checkpoint to the next; None if there are no checkpoints.

    Raises ConfigError if the multiplier is too large, or the release unknown.
    """
    if version not in RELEASES:
        raise ConfigError(f"version: {version!r} is unknown; known are {', '.join(RELEASES)}")
    if not layout.hybrid or not config.enable_prefix_caching:
        return None
    config.get_cache_interval(layout.kv_block_size)
    if config.cache_interval_multiplier is not None:
        return config.cache_interval_multiplier
    if not RELEASES[version].adaptive_multiplier:
        return DEFAULT_MULTIPLIER
    return adaptive_multiplier(layout.la_block_bytes, layout.kv_block_bytes)


def adaptive_multiplier(la_block_bytes: int, kv_block_bytes: int) -> int:
    """Return the multiplier at which a checkpoint weighs about one KV block, within [8, 256]."""
    return min(max(DEFAULT_MULTIPLIER, _ceil(la_block_bytes, kv_block_bytes)), MULTIPLIER_MAX)


def initial_tokens(prompt_tokens: int, max_new_tokens: int) -> int:
    """Return the tokens of a request that a dynamic cache makes room for at once: twice its
    prompt, or all it may become.
    """
    return min(INITIAL_MULTIPLIER * prompt_tokens, prompt_tokens + max_new_tokens)


def target_blocks(targets: Iterable[tuple[int, int]], block_size: int) -> int:
    """Return the blocks for (tokens of a sequence, number of such sequences), every sequence
    rounded up for itself.
    """
    return sum(_ceil(tokens, block_size) * sequences for tokens, sequences in targets)


def growth_blocks(block_size: int) -> int:
    """Return by how many blocks a pool grows when a dynamic cache is full."""
    return _ceil(GROWTH_TOKENS, block_size)


def _fixed_states(config: SchedulerConfig, layout: LayoutBytes) -> int:
    """Return the states that are set, or that sequences need where there are no checkpoints."""
    sized = config.num_kv_blocks > 0 or config.cache_size > 0
    if (
        not layout.hybrid
        or config.num_linear_attention_blocks
        or config.enable_prefix_caching
        or not sized
    ):
        return config.num_linear_attention_blocks
    return 1 if config.unlimited else config.max_num_seqs


def _split(
    config: SchedulerConfig,
    layout: LayoutBytes,
    la: int,
    interval: int | None,
    total_memory_bytes: int | None,
) -> tuple[int, int]:
    """Return (KV blocks, states) under the shared budget."""
    budget = config.cache_size * GIB
    la_bytes = la * layout.la_block_bytes
    if total_memory_bytes is not None and budget > total_memory_bytes:
        raise ConfigError(
            "Requested cache size is larger than available memory size on the system."
        )
    if interval is None:
        if la_bytes > budget:
            raise ConfigError(
                "Requested linear attention cache allocation exceeds the configured cache size."
            )
        return (budget - la_bytes) // layout.kv_block_bytes, la
    return split_budget(budget, layout, interval)


def split_budget(budget_bytes: int, layout: LayoutBytes, interval: int) -> tuple[int, int]:
    """Return (KV blocks, states) for the most tokens T with ceil(T / kv_block_size) KV blocks
    and ceil(T / interval) states.
    """

    def blocks(tokens: int) -> tuple[int, int]:
        return _ceil(tokens, layout.kv_block_size), _ceil(tokens, interval)

    low = 0
    high = budget_bytes // layout.kv_block_bytes * layout.kv_block_size
    while low < high:
        middle = (low + high + 1) // 2
        kv, la = blocks(middle)
        if kv * layout.kv_block_bytes + la * layout.la_block_bytes <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return blocks(low)


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)
