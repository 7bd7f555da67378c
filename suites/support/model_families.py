"""One configuration of each further `model_type`, small, with what its layers keep worked out by
hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONGEST = {"max_position_embeddings": 4096, "dtype": "bfloat16"}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
MAMBA = {
    "hidden_size": 512,
    "mamba_n_heads": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 32,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}


@dataclass(frozen=True)
class Case:
    """A configuration, and its caches as (kind, layers, what of a layer).

    Of attention that are heads and their size, with a window at the end; of latent vectors and
    indexers the width; of a state the channels, the kernel and the shape.
    """

    table: dict[str, Any]
    caches: dict[str, tuple[int, tuple[int, ...]]]
    drafters: int = 0


def _case(kind: str, layers: int, caches: dict[str, Any], drafters: int = 0, **more: Any) -> Case:
    table = {"model_type": kind, "num_hidden_layers": layers, **LONGEST, **HEADS, **more}
    return Case(table, caches, drafters)


BY_FIELDS: dict[str, Case] = {
    "bamba: attention by number": _case(
        "bamba",
        4,
        {"recurrent": (3, (1024 + 2 * 2 * 32, 4, 16, 64, 32)), "full": (1, (2, 64))},
        attn_layer_indices=[2],
        **MAMBA,
    ),
    "zamba2: a hybrid layer has both": _case(
        "zamba2",
        4,
        {"recurrent": (4, (1024 + 2 * 2 * 32, 4, 16, 64, 32)), "full": (1, (8, 2 * 512 // 8))},
        layers_block_type=["mamba", "mamba", "hybrid", "mamba"],
        num_key_value_heads=None,
        hidden_size=512,
        mamba_expand=2,
        n_mamba_heads=16,
        mamba_ngroups=2,
        mamba_d_state=32,
        mamba_d_conv=4,
    ),
    "minimax_text_01: flags": _case(
        "minimax_text_01",
        4,
        {"recurrent": (3, (1, 1, 8, 64, 64)), "full": (1, (2, 64))},
        attn_type_list=[0, 0, 0, 1],
    ),
    "minimax: words": _case(
        "minimax",
        2,
        {"recurrent": (1, (1, 1, 8, 64, 64)), "full": (1, (2, 64))},
        layer_types=["linear_attention", "full_attention"],
    ),
    "bailing_moe_linear: groups of layers": _case(
        "bailing_moe_linear",
        6,
        {"recurrent": (4, (1, 1, 8, 64, 64)), "full": (2, (2, 64))},
        drafters=1,
        layer_group_size=3,
        num_nextn_predict_layers=1,
    ),
    "plamo2: the middle of a period": _case(
        "plamo2",
        4,
        {"recurrent": (2, (8 * 32, 4, 8, 32, 16)), "full": (2, (2, 32))},
        mamba_step=2,
        mamba_num_heads=8,
        hidden_size_per_head=32,
        mamba_d_state=16,
        mamba_d_conv=4,
    ),
    "olmo_hybrid": _case(
        "olmo_hybrid",
        4,
        {"recurrent": (3, (2 * 4 * 16 + 8 * 32, 4, 8, 32, 16)), "full": (1, (2, 64))},
        linear_conv_kernel_dim=4,
        linear_num_key_heads=4,
        linear_key_head_dim=16,
        linear_num_value_heads=8,
        linear_value_head_dim=32,
    ),
    "mamba": _case("mamba", 3, {"recurrent": (3, (1024, 4, 1024, 16))}, hidden_size=512, expand=2),
    "mamba2": _case(
        "mamba2",
        3,
        {"recurrent": (3, (1024 + 2 * 4 * 16, 4, 16, 64, 16))},
        hidden_size=512,
        expand=2,
        num_heads=16,
        n_groups=4,
        state_size=16,
    ),
    "glm_moe_dsa: 4 of 8 layers have an indexer": _case(
        "glm_moe_dsa",
        8,
        {"latent": (8, (576,)), "indexer": (4, (128 + 4,))},
        drafters=1,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        index_head_dim=128,
        index_topk_freq=2,
        index_skip_topk_offset=0,
        num_nextn_predict_layers=1,
    ),
    "mistral4: latent vectors": _case("mistral4", 3, {"latent": (3, (256 + 64,))}),
    "gemma4: larger heads, fewer of them, and layers that borrow": _case(
        "gemma4_text",
        7,
        {"sliding": (5, (2, 64, 512)), "full": (1, (1, 128))},
        layer_types=[*["sliding_attention"] * 5, "full_attention", "full_attention"],
        sliding_window=512,
        global_head_dim=128,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        num_kv_shared_layers=1,
    ),
    "gemma3n: layers that borrow": _case(
        "gemma3n_text",
        10,
        {"sliding": (4, (2, 64, 512)), "full": (1, (2, 64))},
        num_kv_shared_layers=5,
        sliding_window=512,
    ),
    "llama4: chunks are kept whole": _case(
        "llama4_text", 8, {"full": (8, (2, 64))}, attention_chunk_size=8192
    ),
    "cohere2: a window and one more": _case(
        "cohere2", 8, {"sliding": (6, (2, 64, 513)), "full": (2, (2, 64))}, sliding_window=512
    ),
    "ministral": _case(
        "ministral",
        2,
        {"sliding": (1, (2, 64, 512)), "full": (1, (2, 64))},
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=512,
    ),
    "ministral3: no window": _case("ministral3", 2, {"full": (2, (2, 64))}),
    "exaone4: a pattern": _case(
        "exaone4",
        8,
        {"sliding": (6, (2, 64, 512)), "full": (2, (2, 64))},
        sliding_window=512,
        sliding_window_pattern=4,
    ),
    "olmo3": _case(
        "olmo3", 4, {"sliding": (3, (2, 64, 512)), "full": (1, (2, 64))}, sliding_window=512
    ),
    "hunyuan": _case("hunyuan_v1_dense", 2, {"full": (2, (2, 64))}),
    "glm4: plain": _case("glm4", 2, {"full": (2, (2, 64))}),
}
