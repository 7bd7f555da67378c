"""Which fields of a configuration make which caches: one entry for each `model_type`.

The names of fields and their defaults are those of the configuration classes of transformers 5.23.0
(`models/*/configuration_*.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachewitness.plan.config import kinds, states
from cachewitness.plan.config.fields import Fields
from cachewitness.plan.config.kinds import (
    ATTENTION,
    FULL,
    NOTHING,
    RECURRENT,
    SLIDING,
    STATE,
    WINDOWS,
)
from cachewitness.plan.config.states import Row


@dataclass(frozen=True)
class Family:
    """One kind of configuration.

    `kinds` returns what each layer keeps, in order; `state` a row of `[[model.caches]]` for a
    recurrent layer, given the type of the weights. `latent`: attention keeps one vector for keys
    and values together. `length` is another name of the longest sequence.
    """

    defaults: Mapping[str, int]
    kinds: kinds.Kinds
    state: Callable[[Fields, str], Row] | None = None
    latent: bool = False
    length: str = ""

    def caches(self, fields: Fields, dtype: str) -> list[Row]:
        """Return the rows of `[[model.caches]]`, in the order in which the layers come. Raises
        UsageError naming the field.
        """
        found = self.kinds(fields)
        if self.latent and STATE not in found:
            fields.notes.append(
                "tokens in a block: 64, as vLLM's kernels for latent vectors take on Hopper; others"
                " take 16 to 128"
            )
        rows = []
        for kind in dict.fromkeys(found):
            if kind == NOTHING:
                continue
            if kind == STATE and self.state is not None:
                row = self.state(fields, dtype)
            else:
                row = _latent(fields, dtype) if self.latent else _heads(fields, kind, dtype)
            rows.append({"kind": kind, "layers": found.count(kind)} | row)
        return rows


def _heads(fields: Fields, kind: str, dtype: str) -> Row:
    heads = fields.count(
        "num_key_value_heads" if fields.settles("num_key_value_heads") else "num_attention_heads"
    )
    if fields.settles("head_dim") or fields.says("attention_head_dim"):
        size = fields.count("head_dim", also="attention_head_dim")
    else:
        size = fields.divided("hidden_size", "num_attention_heads")
    window = {"window": fields.count("sliding_window")} if kind == SLIDING else {}
    return {"kv_heads": heads, "head_dim": size, "dtype": dtype} | window


def _latent(fields: Fields, dtype: str) -> Row:
    return {
        "kind": "latent",
        "width": fields.count("kv_lora_rank") + fields.count("qk_rope_head_dim"),
        "dtype": dtype,
    }


def _counts(
    layers: int, heads: int, kv_heads: int | None, longest: int, **more: int
) -> dict[str, int]:
    counts = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": longest,
    } | more
    return counts if kv_heads is None else counts | {"num_key_value_heads": kv_heads}


_DELTA = {
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "head_dim": 256,
}
_MAMBA2 = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_QWEN = kinds.every("full_attention_interval", STATE, FULL, ATTENTION | RECURRENT)
_GEMMA_3 = _counts(26, 8, 4, 131072, head_dim=256, sliding_window=4096, sliding_window_pattern=6)
_NEMOTRON_H = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
}
_JAMBA = {
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_expand": 2,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
}
_KDA = {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
_KIMI = _counts(27, 32, 32, 1048576, kv_lora_rank=512, qk_rope_head_dim=64, **_KDA)

_QWEN_3_5 = Family(
    _counts(32, 16, 4, 32768, **_DELTA), _QWEN, states.gated_delta("mamba_ssm_dtype")
)
_QWEN_3_5_MOE = Family(
    _counts(40, 16, 2, 32768, **_DELTA), _QWEN, states.gated_delta("mamba_ssm_dtype")
)

FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(
        _counts(32, 32, None, 2048, kv_lora_rank=512, qk_rope_head_dim=64), kinds.alike, latent=True
    ),
    "deepseek_v3": Family(
        _counts(61, 128, None, 4096, kv_lora_rank=512, qk_rope_head_dim=64),
        kinds.alike,
        latent=True,
    ),
    "falcon_h1": Family(
        _counts(32, 32, 8, 8192, hidden_size=4096, mamba_d_ssm=1024, **_MAMBA2),
        kinds.side_by_side,
        states.mamba2,
    ),
    "gemma2": Family(
        _counts(26, 8, 4, 8192, head_dim=256, sliding_window=4096),
        kinds.every(2, SLIDING, FULL, WINDOWS),
    ),
    "gemma3": Family(_GEMMA_3, kinds.gemma),
    "gemma3_text": Family(_GEMMA_3, kinds.gemma),
    "gpt_oss": Family(
        _counts(36, 64, 8, 131072, head_dim=64, sliding_window=128),
        kinds.every(2, SLIDING, FULL, WINDOWS),
    ),
    "granitemoehybrid": Family(
        _counts(32, 32, None, 2048, hidden_size=4096, **_MAMBA2), kinds.granite, states.mamba2
    ),
    "jamba": Family(
        _counts(32, 32, 8, 262144, hidden_size=4096, **_JAMBA), kinds.jamba, states.mamba1
    ),
    "kimi_linear": Family(_KIMI, kinds.kimi, states.kda, latent=True, length="model_max_length"),
    "lfm2": Family(
        _counts(32, 32, 8, 128000, hidden_size=2560, conv_L_cache=3), kinds.lfm2, states.short_conv
    ),
    "lfm2_moe": Family(
        _counts(32, 32, 8, 128000, hidden_size=2048, conv_L_cache=3), kinds.lfm2, states.short_conv
    ),
    "llama": Family(_counts(32, 32, None, 2048, hidden_size=4096), kinds.alike),
    "mistral": Family(
        _counts(32, 32, 8, 131072, hidden_size=4096, sliding_window=4096), kinds.alike
    ),
    "mixtral": Family(_counts(32, 32, 8, 131072, hidden_size=4096), kinds.alike),
    "nemotron_h": Family(_NEMOTRON_H, kinds.nemotron, states.nemotron),
    "qwen2": Family(_counts(32, 32, 32, 32768, hidden_size=4096), kinds.qwen),
    "qwen3": Family(_counts(32, 32, 32, 32768, head_dim=128), kinds.qwen),
    "qwen3_5": _QWEN_3_5,
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_5_moe": _QWEN_3_5_MOE,
    "qwen3_5_moe_text": _QWEN_3_5_MOE,
    "qwen3_moe": Family(_counts(24, 32, 4, 32768, hidden_size=2048), kinds.qwen),
    "qwen3_next": Family(_counts(48, 16, 2, 32768, **_DELTA), _QWEN, states.gated_delta("")),
}
"""By `model_type`, that of a file or of its `text_config`."""
