"""What a cache is built from, and the checks of the three constructors.

The texts are upstream's, so that somebody who knows one knows the other. The last rule is ours:
upstream has three maximum batch sizes that nobody compares, and a row that one tensor has and
another lacks is a fault waiting for its batch.

Sources: `hybridCacheManager.cpp`, `kvCacheManager.cpp`, `mambaCacheManager.cpp` (0.7.1),
constructors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class CacheError(RuntimeError):
    """A configuration or a call that is refused; nothing has changed. Upstream:
    `std::runtime_error`.
    """


def check(condition: bool, message: str) -> None:
    """Raise CacheError with the message unless the condition holds."""
    if not condition:
        raise CacheError(message)


class LayerType(Enum):
    """Type of a single decoder layer. Sliding-window layers are attention layers: they keep all
    their tokens.
    """

    ATTENTION = "kAttention"
    MAMBA = "kMamba"


class DataType(Enum):
    """Element types of KV (half, FP8) and of states (half, float, bfloat16)."""

    HALF = "kHALF"
    FLOAT = "kFLOAT"
    BF16 = "kBF16"
    FP8 = "kFP8"


KV_TYPES = (DataType.HALF, DataType.FP8)
STATE_TYPES = (DataType.HALF, DataType.FLOAT, DataType.BF16)


@dataclass(frozen=True)
class KVLayerConfig:
    """One attention layer's cache."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class KVConfig:
    """The attention layers' cache; `layer_configs` in order of appearance, `max_sequence_length`
    in tokens.
    """

    num_attention_layers: int = 0
    max_batch_size: int = 0
    max_sequence_length: int = 0
    layer_configs: tuple[KVLayerConfig, ...] = ()
    kv_cache_type: DataType = DataType.HALF


@dataclass(frozen=True)
class MambaConfig:
    """The recurrent layers' states: [heads, head dim, size] and [conv dim, conv kernel] elements
    a row.
    """

    num_recurrent_layers: int = 0
    max_batch_size: int = 0
    recurrent_state_num_heads: int = 0
    recurrent_state_head_dim: int = 0
    recurrent_state_size: int = 0
    conv_dim: int = 0
    conv_kernel: int = 0
    recurrent_state_type: DataType = DataType.HALF
    conv_state_type: DataType = DataType.HALF


@dataclass(frozen=True)
class Config:
    """The whole cache: `layer_types[i]` says which sub-manager the absolute decoder layer i
    belongs to.
    """

    layer_types: tuple[LayerType, ...] = ()
    kv_config: KVConfig = field(default_factory=KVConfig)
    mamba_config: MambaConfig = field(default_factory=MambaConfig)
    max_batch_size: int = 0


def checked(config: Config) -> Config:
    """Return the configuration. Raises CacheError for the first field that does not fit."""
    kv = config.kv_config
    mamba = config.mamba_config
    types = config.layer_types
    check(bool(types), "HybridCacheManager: layerTypes must not be empty.")
    check(config.max_batch_size > 0, "HybridCacheManager: maxBatchSize must be positive.")
    for kind, field_name, count in (
        (LayerType.ATTENTION, "kvConfig.numAttentionLayers", kv.num_attention_layers),
        (LayerType.MAMBA, "mambaConfig.numRecurrentLayers", mamba.num_recurrent_layers),
    ):
        there = types.count(kind)
        what = (
            f"number of {kind.value} layers in layerTypes ({there}) must equal {field_name}"
            f" ({count})"
        )
        check(there == count, f"HybridCacheManager: {what}.")
    check_kv(kv)
    check_mamba(mamba)
    for name, sub, layers in (
        ("kvConfig", kv.max_batch_size, kv.num_attention_layers),
        ("mambaConfig", mamba.max_batch_size, mamba.num_recurrent_layers),
    ):
        agrees = sub == config.max_batch_size or not layers
        check(
            agrees,
            f"HybridCacheManager: {name}.maxBatchSize ({sub}) must equal maxBatchSize"
            f" ({config.max_batch_size}).",
        )
    return config


def check_kv(kv: KVConfig) -> None:
    """Raise CacheError unless the KV sub-manager can be built. No layers are legal: a pure Mamba
    model.
    """
    check(kv.kv_cache_type in KV_TYPES, "KVCacheManager: Unsupported KV cache dtype.")
    check(kv.num_attention_layers >= 0, "KVCacheManager: numAttentionLayers must be non-negative.")
    check(kv.max_batch_size > 0, "KVCacheManager: maxBatchSize must be positive.")
    check(kv.max_sequence_length > 0, "KVCacheManager: maxSequenceLength must be positive.")
    same = len(kv.layer_configs) == kv.num_attention_layers
    check(same, "KVCacheManager: layerConfigs size must equal numAttentionLayers.")
    for index, layer in enumerate(kv.layer_configs):
        check(
            layer.num_kv_heads > 0,
            f"KVCacheManager: numKVHeads must be positive for layer {index}.",
        )
        check(layer.head_dim > 0, f"KVCacheManager: headDim must be positive for layer {index}.")


def check_mamba(mamba: MambaConfig) -> None:
    """Raise CacheError unless the Mamba sub-manager can be built. Without layers nothing else is
    looked at.
    """
    if mamba.num_recurrent_layers == 0:
        return
    for name, value in (
        ("numRecurrentLayers", mamba.num_recurrent_layers),
        ("maxBatchSize", mamba.max_batch_size),
        ("recurrentStateNumHeads", mamba.recurrent_state_num_heads),
        ("recurrentStateHeadDim", mamba.recurrent_state_head_dim),
        ("recurrentStateSize", mamba.recurrent_state_size),
        ("convDim", mamba.conv_dim),
        ("convKernel", mamba.conv_kernel),
    ):
        check(value > 0, f"MambaCacheManager: {name} must be positive.")
    for name, kind in (
        ("recurrentStateType", mamba.recurrent_state_type),
        ("convStateType", mamba.conv_state_type),
    ):
        check(kind in STATE_TYPES, f"MambaCacheManager: Unsupported {name} {kind.value}.")
