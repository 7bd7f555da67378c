"""The shape of a toy hybrid model.

Field names are those of Hugging Face configurations of Qwen3.5 text models, so that a configuration
of ours that uses only published layer types *is* a configuration of theirs. What is added are the
layer types `sliding_attention` and `mamba2`, and the gate of attention's outputs that Laguna has.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

LayerType = Literal["linear_attention", "mamba2", "sliding_attention", "full_attention"]
LAGUNA_GATING = "per-element"
"""How Laguna's configuration says that every dimension of an output has a gate of its own."""
GATES = ("sigmoid", "softplus")
SIZE_MAX = 1 << 24
LAYERS_MAX = 4096
RATE_MAX = 1e12
"""What no size, no number of layers and no other number of a configuration exceeds."""
LAYER_TYPES: tuple[LayerType, ...] = (
    "linear_attention",
    "mamba2",
    "sliding_attention",
    "full_attention",
)


class ModelError(ValueError):
    """A configuration or a checkpoint that cannot be used; the message is one line that says
    why.
    """


@dataclass(frozen=True)
class ToyConfig:
    """Sizes of the model. All dimensions count elements; `sliding_window` counts tokens, the
    query itself included.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[LayerType, ...]
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 32
    sliding_window: int = 32
    rope_theta: float = 10_000.0
    partial_rotary_factor: float = 1.0
    attention_gate: str = "sigmoid"
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    mamba_num_heads: int = 4
    mamba_head_dim: int = 32
    mamba_state_dim: int = 16
    mamba_num_groups: int = 1
    mamba_conv_kernel_dim: int = 4
    chunk_size: int = 64
    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        _check_numbers(self)
        if not 0 < len(self.layer_types) <= LAYERS_MAX:
            raise ModelError(
                f"layer_types: {len(self.layer_types)} layers; there are 1 to {LAYERS_MAX}"
            )
        for layer_type in self.layer_types:
            if layer_type not in [*LAYER_TYPES]:
                raise ModelError(
                    f"layer_types: {layer_type!r} is unknown; known are {', '.join(LAYER_TYPES)}"
                )
        if self.attention_gate not in [*GATES]:
            raise ModelError(
                f"attention_gate: {self.attention_gate!r} is unknown; known are {', '.join(GATES)}"
            )
        for many, few in (
            ("num_attention_heads", "num_key_value_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
            ("mamba_num_heads", "mamba_num_groups"),
        ):
            if getattr(self, many) % getattr(self, few):
                raise ModelError(
                    f"{many} ({getattr(self, many)}) is no multiple of {few} ({getattr(self, few)})"
                )
        if self.rotary_dim % 2:
            raise ModelError(
                f"head_dim x partial_rotary_factor is {self.rotary_dim}; it must be even"
            )

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of a head are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def linear_conv_dim(self) -> int:
        """Channels of a GatedDeltaNet layer's convolution: queries, keys and values."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def mamba_inner_dim(self) -> int:
        """Channels of a Mamba2 layer's values."""
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def mamba_conv_dim(self) -> int:
        """Channels of a Mamba2 layer's convolution: values, B and C."""
        return self.mamba_inner_dim + 2 * self.mamba_num_groups * self.mamba_state_dim


def _check_numbers(config: ToyConfig) -> None:
    """Raise ModelError for a field that holds no number, or one that no model has."""
    for field in fields(config):
        value = getattr(config, field.name)
        kind = type(field.default)
        if field.name in ("layer_types", "attention_gate"):
            continue
        if kind is float:
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < RATE_MAX
            ):
                raise ModelError(
                    f"{field.name}: {shown(value)} is no number above 0 and below {RATE_MAX:g}"
                )
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= SIZE_MAX:
            raise ModelError(
                f"{field.name}: {shown(value)} is no whole number from 1 to {SIZE_MAX}"
            )


def shown(value: object) -> str:
    """Return a value of a file as a message can hold it."""
    long = isinstance(value, int) and value.bit_length() > 64
    text = "such a number" if long else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


def to_dict(config: ToyConfig) -> dict[str, Any]:
    """Return the configuration as plain data."""
    return asdict(config)


def from_dict(values: dict[str, Any], where: str) -> ToyConfig:
    """Read a configuration from plain data; `where` names it in messages. Keys of others are left
    alone.

    Raises ModelError if a size is missing or does not fit.
    """
    known = {field.name for field in fields(ToyConfig)}
    rotary = values.get("rope_parameters", {})
    rotary = rotary.get("full_attention", rotary) if isinstance(rotary, dict) else None
    if not isinstance(rotary, dict):
        raise ModelError(f"{where}: rope_parameters: {shown(rotary)} is no object")
    values = {**rotary, **values}
    if values.get("gating") == LAGUNA_GATING:
        values["attention_gate"] = "softplus"
    chosen = {key: value for key, value in values.items() if key in known and value is not None}
    if not isinstance(layers := chosen.get("layer_types", []), list | tuple):
        raise ModelError(f"{where}: layer_types: {shown(layers)} is no list")
    try:
        return ToyConfig(**{**chosen, "layer_types": tuple(layers)})
    except (TypeError, ModelError) as error:
        raise ModelError(f"{where}: {error}") from None


def load(path: Path) -> ToyConfig:
    """Read `config.json`.

    Raises ModelError if it is missing, no JSON, or does not describe a toy model.
    """
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: not a JSON object")
    return from_dict(values, str(path))
