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
    recurrent layer, given the type of the weights, and `heads` one for attention. `latent`:
    attention keeps one vector for keys and values together; `more` returns rows of what is kept
    beside. `length` is another name of the longest sequence, `mtp` the field that counts the layers
    of the checkpoint's own drafter, and `mtp_least` how many there are if it is left out. `until`
    is the last release of vLLM with such a model. `beside`: a state behind full attention is of
    the same layer.
    """

    defaults: Mapping[str, int]
    kinds: kinds.Kinds
    state: Callable[[Fields, str], Row] | None = None
    latent: bool = False
    length: str = ""
    heads: Callable[[Fields, str, str], Row] | None = None
    more: Callable[[Fields, str], list[Row]] | None = None
    mtp: str = ""
    mtp_least: int = 0
    until: str = ""
    beside: bool = False

    def caches(self, fields: Fields, dtype: str) -> list[Row]:
        """Return the rows of `[[model.caches]]`, in the order in which the layers come. Raises
        UsageError naming the field.
        """
        found = self.kinds(fields)
        if self.until:
            fields.notes.append(f"vLLM has no model of this type after {self.until}")
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
                row = self._attention(fields, kind, dtype)
            rows.append({"kind": kind, "layers": found.count(kind)} | row)
        return rows + (self.more(fields, dtype) if self.more else [])

    def order(self, fields: Fields) -> list[list[int]]:
        """Return for every layer the places of its caches among the rows; empty where rows beside
        those of attention and states are of some layers alone.
        """
        if self.more is not None:
            return []
        found = self.kinds(fields)
        rows = [kind for kind in dict.fromkeys(found) if kind != NOTHING]
        layers: list[list[int]] = []
        for place, kind in enumerate(found):
            beside = self.beside and kind == STATE and place and found[place - 1] == FULL
            if beside:
                layers[-1].append(rows.index(kind))
            else:
                layers.append([] if kind == NOTHING else [rows.index(kind)])
        return layers

    def _attention(self, fields: Fields, kind: str, dtype: str) -> Row:
        if self.latent:
            return _latent(fields, dtype)
        return (self.heads or _heads)(fields, kind, dtype)

    def drafters(self, fields: Fields) -> dict[str, int]:
        """Return how many attention layers the checkpoint's own drafter has. Raises UsageError
        naming the field.
        """
        if not self.mtp:
            return {}
        if not fields.says(self.mtp):
            return {"draft_layers": self.mtp_least}
        return {"draft_layers": fields.count(self.mtp, least=0)}


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


def _gemma4_heads(fields: Fields, kind: str, dtype: str) -> Row:
    """Return the heads of Gemma 4: full attention may have fewer and larger ones."""
    if kind == SLIDING:
        return _heads(fields, kind, dtype)
    shared = fields.true("attention_k_eq_v") and fields.says("num_global_key_value_heads")
    heads = fields.count("num_global_key_value_heads" if shared else "num_key_value_heads")
    size = fields.count("global_head_dim" if fields.says("global_head_dim") else "head_dim")
    return {"kv_heads": heads, "head_dim": size, "dtype": dtype}


def _cohere2_heads(fields: Fields, kind: str, dtype: str) -> Row:
    """Return the heads of Command R7B: a query sees as many tokens before its own as the window
    says, so that vLLM keeps one more.
    """
    row = _heads(fields, kind, dtype)
    return row | {"window": row["window"] + 1} if kind == SLIDING else row


def _zamba2_heads(fields: Fields, kind: str, dtype: str) -> Row:
    """Return the heads of Zamba2: attention reads the layer's input beside the embedding."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads") if fields.says("num_key_value_heads") else heads
    width = 2 * fields.count("hidden_size")
    if width % heads:
        raise fields.refused("num_attention_heads", f"{width} cannot be divided by {heads}")
    return {"kv_heads": kv_heads, "head_dim": width // heads, "dtype": dtype}


def _plamo2_heads(fields: Fields, kind: str, dtype: str) -> Row:
    """Return the heads of PLaMo 2, which names their size otherwise."""
    return {
        "kv_heads": fields.count("num_key_value_heads"),
        "head_dim": fields.count("hidden_size_per_head"),
        "dtype": dtype,
    }


def _indexer(fields: Fields, dtype: str) -> list[Row]:
    """Return the keys by which a sparse layer chooses: 8 bits a number, and a scale for every 128,
    as vLLM packs them.
    """
    for field in ("index_topk_pattern", "indexer_types"):
        if fields.says(field):
            raise fields.refused(field, "which layers have an indexer by it is not worked out here")
    size = fields.count("index_head_dim")
    layers = fields.layers()
    apart = fields.count("index_topk_freq") if fields.says("index_topk_freq") else 1
    skipped = (
        fields.count("index_skip_topk_offset", least=0)
        if fields.says("index_skip_topk_offset")
        else INDEX_SKIP
    )
    own = sum(1 for layer in range(layers) if layer < skipped or (layer - skipped + 1) % apart == 0)
    width = size + 4 * -(-size // 128)
    return [{"kind": "indexer", "layers": own, "width": width, "dtype": "uint8"}]


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


INDEX_SKIP = 2
"""vLLM's `index_skip_topk_offset`, if a file names none."""
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
_MAMBA_1 = {"expand": 2, "conv_kernel": 4, "state_size": 16, "max_position_embeddings": 1048576}
_MAMBA_2 = {
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "num_heads": 128,
    "head_dim": 64,
    "expand": 2,
    "conv_kernel": 4,
    "n_groups": 8,
    "state_size": 128,
    "max_position_embeddings": 1048576,
}
_ZAMBA_2 = {
    "num_hidden_layers": 54,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_ngroups": 1,
    "n_mamba_heads": 8,
}
_KDA = {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
_KIMI = _counts(27, 32, 32, 1048576, kv_lora_rank=512, qk_rope_head_dim=64, **_KDA)

_QWEN_3_5 = Family(
    _counts(32, 16, 4, 32768, **_DELTA),
    _QWEN,
    states.gated_delta("mamba_ssm_dtype"),
    mtp="mtp_num_hidden_layers",
    mtp_least=1,
)
_QWEN_3_5_MOE = Family(
    _counts(40, 16, 2, 32768, **_DELTA),
    _QWEN,
    states.gated_delta("mamba_ssm_dtype"),
    mtp="mtp_num_hidden_layers",
    mtp_least=1,
)
_NEXTN = "num_nextn_predict_layers"
_WHOLE = Family({}, kinds.whole)
_SPARSE = Family({}, kinds.whole, latent=True, more=_indexer, mtp=_NEXTN)
_GEMMA_4 = Family(
    _counts(30, 8, 4, 131072, head_dim=256, sliding_window=512, hidden_size=2304),
    kinds.shared(kinds.every(6, SLIDING, FULL, WINDOWS)),
    heads=_gemma4_heads,
)

PLAIN = (
    "arcee",
    "ernie4_5",
    "ernie4_5_moe",
    "glm4",
    "glm4_moe",
    "granite",
    "granitemoe",
    "minimax_m2",
    "olmo2",
    "olmoe",
    "qwen2_moe",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
    "seed_oss",
    "smollm3",
)
"""Models of full attention alone; whatever their file leaves out is refused."""
FAMILIES: dict[str, Family] = {
    "bailing_moe_linear": Family({}, kinds.groups("layer_group_size"), states.linear, mtp=_NEXTN),
    "bamba": Family(
        _counts(32, 32, 8, 262144, hidden_size=4096, **_MAMBA2),
        kinds.bamba,
        states.mamba2,
        until="0.23.0",
    ),
    "cohere2": Family(
        _counts(40, 64, None, 8192, hidden_size=8192, sliding_window=4096),
        kinds.every(4, SLIDING, FULL, WINDOWS),
        heads=_cohere2_heads,
    ),
    "deepseek_v2": Family(
        _counts(32, 32, None, 2048, kv_lora_rank=512, qk_rope_head_dim=64), kinds.alike, latent=True
    ),
    "deepseek_v3": Family(
        _counts(61, 128, None, 4096, kv_lora_rank=512, qk_rope_head_dim=64),
        kinds.alike,
        latent=True,
        mtp=_NEXTN,
    ),
    "deepseek_v32": _SPARSE,
    "exaone4": Family(
        _counts(32, 32, 32, 2048, hidden_size=4096, sliding_window=4096, sliding_window_pattern=4),
        kinds.every("sliding_window_pattern", SLIDING, FULL, WINDOWS),
    ),
    "falcon_h1": Family(
        _counts(32, 32, 8, 8192, hidden_size=4096, mamba_d_ssm=1024, **_MAMBA2),
        kinds.side_by_side,
        states.mamba2,
        beside=True,
    ),
    "gemma2": Family(
        _counts(26, 8, 4, 8192, head_dim=256, sliding_window=4096),
        kinds.every(2, SLIDING, FULL, WINDOWS),
    ),
    "gemma3": Family(_GEMMA_3, kinds.gemma),
    "gemma3_text": Family(_GEMMA_3, kinds.gemma),
    "gemma3n_text": Family(
        _counts(35, 8, 2, 32768, head_dim=256, sliding_window=512, num_kv_shared_layers=15),
        kinds.shared(kinds.every(5, SLIDING, FULL, WINDOWS)),
    ),
    "gemma4": _GEMMA_4,
    "gemma4_text": _GEMMA_4,
    "glm_moe_dsa": _SPARSE,
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
    "hunyuan_v1_dense": Family(_counts(32, 32, None, 2048, hidden_size=4096), kinds.whole),
    "hunyuan_v1_moe": Family(_counts(32, 32, None, 2048, hidden_size=4096), kinds.whole),
    "llama": Family(_counts(32, 32, None, 2048, hidden_size=4096), kinds.alike),
    "llama4": Family(_counts(48, 40, 8, 131072, head_dim=128), kinds.chunks),
    "llama4_text": Family(_counts(48, 40, 8, 131072, head_dim=128), kinds.chunks),
    "mamba": Family(
        {"num_hidden_layers": 32, "hidden_size": 768, **_MAMBA_1}, kinds.states, states.mamba
    ),
    "falcon_mamba": Family(
        {"num_hidden_layers": 32, "hidden_size": 768, **_MAMBA_1}, kinds.states, states.mamba
    ),
    "mamba2": Family(_MAMBA_2, kinds.states, states.plain_mamba2),
    "minimax": Family(
        _counts(32, 32, 8, 131072, hidden_size=4096),
        kinds.every(2, FULL, STATE, ATTENTION | RECURRENT),
        states.linear,
        until="0.23.0",
    ),
    "minimax_text_01": Family({}, kinds.flagged("attn_type_list"), states.linear, until="0.23.0"),
    "ministral": Family(
        _counts(32, 32, 8, 131072, hidden_size=4096, sliding_window=4096), kinds.alike
    ),
    "ministral3": Family(_counts(34, 32, 8, 262144, hidden_size=4096, head_dim=128), kinds.alike),
    "mistral": Family(
        _counts(32, 32, 8, 131072, hidden_size=4096, sliding_window=4096), kinds.alike
    ),
    "mixtral": Family(_counts(32, 32, 8, 131072, hidden_size=4096), kinds.alike),
    "mistral4": Family(
        _counts(36, 32, None, 1048576, kv_lora_rank=256, qk_rope_head_dim=64),
        kinds.whole,
        latent=True,
    ),
    "nemotron_h": Family(_NEMOTRON_H, kinds.nemotron, states.nemotron),
    "olmo3": Family({}, kinds.every(4, SLIDING, FULL, WINDOWS)),
    "olmo_hybrid": Family(
        {},
        kinds.every(4, STATE, FULL, ATTENTION | RECURRENT),
        states.gated_delta(""),
    ),
    "plamo2": Family({}, kinds.plamo2, states.plamo2, heads=_plamo2_heads, until="0.26.0"),
    "qwen2": Family(_counts(32, 32, 32, 32768, hidden_size=4096), kinds.qwen),
    "qwen3": Family(_counts(32, 32, 32, 32768, head_dim=128), kinds.qwen),
    "qwen3_5": _QWEN_3_5,
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_5_moe": _QWEN_3_5_MOE,
    "qwen3_5_moe_text": _QWEN_3_5_MOE,
    "qwen3_moe": Family(_counts(24, 32, 4, 32768, hidden_size=2048), kinds.qwen),
    "qwen3_next": Family(
        _counts(48, 16, 2, 32768, **_DELTA), _QWEN, states.gated_delta(""), mtp=_NEXTN, mtp_least=1
    ),
    "zamba2": Family(_ZAMBA_2, kinds.zamba2, states.zamba2, heads=_zamba2_heads, beside=True),
} | dict.fromkeys(PLAIN, _WHOLE)
"""By `model_type`, that of a file or of its `text_config`."""
