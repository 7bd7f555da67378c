"""What the policy is built from: two kinds of attention, two pool sizes, and options, checked
before anything runs.

An option is refused if its name or value is unknown; a layer that the documents do not speak of is
refused as well, because ignoring it would leave its memory to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cachewitness_reference.furiosa.partition import ConfigError, blocks_per_seq, seq_length, split
from cachewitness_reference.furiosa.spec import CHOICES, INTEGER_MAX, VARIABLE

__all__ = [
    "CacheConfig",
    "ConfigError",
    "Layers",
    "Options",
    "cache_config",
    "layers_of",
    "least_bytes",
]

NEEDED_GLOBAL = 2
"""The global blocks that one request needs: one to write, and one for the copy of a shared one."""


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen; lengths in tokens. The first four have the values named in
    `spec.CHOICES`.

    `expected_average_seq_length` is the environment variable `EXPECTED_AVERAGE_SEQ_LENGTH`; None:
    unset.
    """

    default_ratio: str = "max_model_len"
    window_tail: str = "W-1"
    hit_granularity: str = "token"
    out_of_window: str = "evictable"
    expected_average_seq_length: int | None = None
    enable_caching: bool = True
    max_model_len: int = 4096
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Return options read from plain data. Raises ConfigError for a name or a value that
        does not fit.
        """
        known = {f.name for f in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise ConfigError(
                    f"option {name!r} is unknown; known are {', '.join(sorted(known))}"
                )
            if name in CHOICES and value not in CHOICES[name].values:
                raise ConfigError(
                    f"option {name!r} cannot be {value!r}; known are"
                    f" {', '.join(CHOICES[name].values)}"
                )
            if name == "enable_caching" and not isinstance(value, bool):
                raise ConfigError(f"option {name!r} cannot be {value!r}; it is true or false")
            if name.startswith("max_") and not _positive(value):
                raise ConfigError(f"option {name!r} ({value!r}) must be a positive integer")
            if name == "expected_average_seq_length" and value is not None and not _positive(value):
                raise ConfigError(
                    f"option {name!r}: {VARIABLE} must be a positive integer, not {value!r}"
                )
        return cls(**given)


@dataclass(frozen=True)
class Layers:
    """A hybrid model's layers: how many of either kind, what a token weighs in one of them, and
    what they share.

    `block_size` and `window` are in tokens, the window counts the query; the bytes are those of a
    token's keys and values.
    """

    block_size: int
    window: int
    global_layers: int = 1
    sliding_layers: int = 1
    global_token_bytes: int = 1
    sliding_token_bytes: int = 1

    @property
    def block_bytes(self) -> tuple[int, int]:
        """The bytes of a global and of a sliding block: the tokens of all layers of the kind."""
        size = self.block_size
        return (
            size * self.global_layers * self.global_token_bytes,
            size * self.sliding_layers * self.sliding_token_bytes,
        )


@dataclass(frozen=True)
class CacheConfig:
    """A checked configuration. Build it with `cache_config`."""

    layers: Layers
    options: Options
    global_blocks: int
    sliding_blocks: int

    @property
    def tail(self) -> int:
        """How many tokens before a boundary the sliding pool must hold for a request to go on
        there; one at least.
        """
        return max(self.layers.window - (self.options.window_tail == "W-1"), 1)

    @property
    def max_request_len(self) -> int:
        """The longest sequence that is served: a block of the global pool is left for the copy
        of a shared one.
        """
        return min(self.options.max_model_len, (self.global_blocks - 1) * self.layers.block_size)


def layers_of(groups: Sequence[Mapping[str, Any]]) -> Layers:
    """Return the layers of a layout's groups (`kind`, `block_size`, `window`, `layers`,
    `token_bytes`), by kind.

    `token_bytes` are a token's in one layer, 1 if they are left out. Blocks of different sizes
    whose layers weigh alike are an engine's way of making pages equal; both pools then have the
    smallest. Raises ConfigError for a recurrent or chunked group, for a model that is not hybrid,
    and for other block sizes, weights or windows that differ.
    """
    for index, group in enumerate(groups):
        if group["kind"] not in ("full", "sliding"):
            raise ConfigError(
                f"groups[{index}].kind {group['kind']!r}: Furiosa-LLM knows global and"
                " sliding-window attention alone"
            )
    sliding = [g for g in groups if g["kind"] == "sliding"]
    count = {
        kind: sum(g.get("layers", 1) for g in groups if g["kind"] == kind)
        for kind in ("full", "sliding")
    }
    for kind, layers in count.items():
        if not layers:
            raise ConfigError(
                f"groups: no {kind} group; two pools need a model that mixes global and"
                " sliding-window attention"
            )
    block_sizes = {g["block_size"] for g in groups}
    windows = {g["window"] for g in sliding}
    # Blocks of different sizes are no difference if they weigh the same: an engine pads them to
    # make pages equal.
    if (
        len(block_sizes) > 1
        and len({g["block_size"] * g.get("token_bytes", 1) for g in groups}) > 1
    ):
        raise ConfigError(
            f"groups: block_size differs ({', '.join(map(str, sorted(block_sizes)))}); both pools"
            " have one"
        )
    if len(windows) > 1:
        raise ConfigError(
            f"groups: window differs ({', '.join(map(str, sorted(windows)))}); the sliding pool"
            " has one"
        )
    weights = {
        kind: {g.get("token_bytes", 1) for g in groups if g["kind"] == kind} for kind in count
    }
    for kind, different in weights.items():
        if len(different) > 1:
            raise ConfigError(
                f"groups: token_bytes of {kind} groups differ; the layers of a pool weigh alike"
            )
    return Layers(
        min(block_sizes),
        windows.pop(),
        count["full"],
        count["sliding"],
        global_token_bytes=weights["full"].pop(),
        sliding_token_bytes=weights["sliding"].pop(),
    )


def cache_config(layers: Layers, kv_bytes: int, options: Options | None = None) -> CacheConfig:
    """Return the checked configuration of a server with `kv_bytes` of memory.

    Raises ConfigError for numbers out of range, and if a pool is too small for one request.
    """
    options = options or Options()
    shares = split(
        kv_bytes,
        block_size=layers.block_size,
        global_layers=layers.global_layers,
        sliding_layers=layers.sliding_layers,
        global_bytes_per_token=layers.global_token_bytes,
        sliding_bytes_per_token=layers.sliding_token_bytes,
        window=layers.window,
        max_model_len=options.max_model_len,
        expected_average_seq_length=options.expected_average_seq_length,
        default_ratio=options.default_ratio,
    )
    config = CacheConfig(layers, options, shares.global_blocks, shares.sliding_blocks)
    needed = _needed_sliding(config.tail, layers.block_size)
    if config.sliding_blocks < needed or config.global_blocks < NEEDED_GLOBAL:
        raise ConfigError(
            f"kv_bytes ({kv_bytes}) gives {config.global_blocks} global and {config.sliding_blocks}"
            f" sliding blocks; a request needs {NEEDED_GLOBAL} and {needed} (a window of"
            f" {layers.window} tokens and a block to write)"
        )
    return config


def least_bytes(layers: Layers, options: Options) -> int:
    """Return the memory, in bytes, of the fewest whole sequences of the split's length that
    `cache_config` accepts.
    """
    length = seq_length(
        layers.window,
        options.max_model_len,
        options.expected_average_seq_length,
        options.default_ratio,
    )
    per_global, per_sliding = blocks_per_seq(length, layers.block_size, layers.window)
    tail = max(layers.window - (options.window_tail == "W-1"), 1)
    sequences = max(
        1,
        -(-NEEDED_GLOBAL // per_global),
        -(-_needed_sliding(tail, layers.block_size) // per_sliding),
    )
    global_bytes, sliding_bytes = layers.block_bytes
    return sequences * (per_global * global_bytes + per_sliding * sliding_bytes)


def _needed_sliding(tail: int, block_size: int) -> int:
    """Return the sliding blocks that one request needs: those of its window, one that it began
    in, and one to write.
    """
    return -(-tail // block_size) + 2


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= INTEGER_MAX
