#!/usr/bin/env bash
# In a batch of mlx-lm the answer to the shorter prompt depends on its company for eight architectures that keep a state, and not for six others.
#
# Package     mlx-lm 0.32.2, mlx 0.32.4
# Surprise    `BatchGenerator`, which `mlx_lm.server` and `batch_generate` use, computes prompts of unlike lengths in one padded array and
#             gives caches the mask and the lengths. Whether a recurrent layer heeds them is up to each file under `models/`. Mamba-1, RWKV-7,
#             RG-LRU and Baichuan's short convolutions ask for neither; Bailing's linear attention is handed the mask and does not use it;
#             Nemotron-H's and OLMo hybrid's scans use the mask, but Nemotron-H hands its scan no lengths, and OLMo hybrid keeps the last
#             columns of its convolutions, padding or not. Mamba-2, Granite hybrid, Falcon-H1, PLaMo 2, LFM2 and Qwen3-Next answer as alone.
#             Nothing warns, and no prefix cache is in play.
# Who         Whoever evaluates or serves these models in batches: scores depend on the batch size and on the order of the questions. And
#             whoever compares a cached run with an uncached one: the difference that is seen is not the cache's.
# Documented  No.
# Upstream    https://github.com/ml-explore/mlx-lm/pull/690 names Jamba among the models whose batches nobody had tried; no other report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib import import_module
from importlib.metadata import version

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator

common = dict(
    vocab_size=128, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, head_dim=16,
    max_position_embeddings=512, tie_word_embeddings=False, rms_norm_eps=1e-6, rope_theta=1e4, norm_eps=1e-6, layer_norm_epsilon=1e-6,
    attention_bias=False, use_bias=False, use_conv_bias=True, conv_kernel=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
)
moe = dict(num_shared_experts=1, norm_topk_prob=True, first_k_dense_replace=1, n_group=1, topk_group=1)
linear = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32)
granite = dict(embedding_multiplier=1.0, attention_multiplier=0.25, logits_scaling=1.0, residual_multiplier=1.0, shared_intermediate_size=64)
mamba2 = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1)
heads = dict(mamba_num_heads=8, mamba_head_dim=16, n_groups=2, mamba_proj_bias=False, mlp_bias=False)
ranks = dict(a_low_rank_dim=8, v_low_rank_dim=8, gate_low_rank_dim=8, decay_low_rank_dim=8)
conv = dict(block_dim=64, block_multiple_of=16, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=False, conv_bias=False, conv_L_cache=3)
depends = {
    "mamba": dict(intermediate_size=128, state_size=8, time_step_rank=4),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8, mamba_dt_rank=8,
                  mamba_d_conv=4, mamba_expand=2),
    "rwkv7": ranks,
    "recurrent_gemma": dict(conv1d_width=4, logits_soft_cap=30.0, attention_window_size=24, num_key_value_heads=1,
                            block_types=["recurrent", "recurrent", "attention"]),
    "baichuan_m1": dict(sliding_window=24, sliding_window_layers=[1], conv_window=2),
    "bailing_moe_linear": dict(layer_group_size=3, group_norm_size=2, use_qk_norm=True, **moe),
    "olmo_hybrid": dict(linear_conv_kernel_dim=4, linear_allow_neg_eigval=True, **linear,
                        layer_types=["linear_attention", "full_attention", "linear_attention"]),
    "nemotron_h": dict(hybrid_override_pattern=["M", "*", "-", "M"], ssm_state_size=16, **heads),
}
alike = {
    "mamba2": dict(num_heads=8, intermediate_size=128, state_size=16, n_groups=2, time_step_limit=(0.0, float("inf")), time_step_rank=4),
    "granitemoehybrid": dict(layer_types=["mamba", "attention", "mamba"], mamba_proj_bias=False, mamba_d_conv=4, mamba_conv_bias=True,
                             num_experts_per_tok=None, **mamba2, **granite),
    "falcon_h1": dict(mamba_d_ssm=128, mamba_chunk_size=32, **mamba2),
    "plamo2": dict(hidden_size_per_head=16, attention_window_size=24, mamba_d_state=16, mamba_num_heads=4, mamba_chunk_size=32),
    "lfm2": dict(layer_types=["conv", "full_attention", "conv"], **conv),
    "qwen3_next": dict(full_attention_interval=2, linear_conv_kernel_dim=4, partial_rotary_factor=0.5, decoder_sparse_step=1,
                       mlp_only_layers=[0, 1, 2], shared_expert_intermediate_size=32, **linear),
}


def made(name, own):
    module = import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict({"model_type": name, **common, **own}))
    model.eval()
    # Constructors leave biases, time steps and whole convolutions at zero or one.
    model.update(tree_map(lambda p: p + 0.1 * mx.random.normal(p.shape, p.dtype), model.parameters()))
    return model


def first(model, *prompts):
    """Return the log-probabilities of the first prompt's next token, all prompts computed together."""
    batch = BatchGenerator(model)
    uids = batch.insert([*prompts], max_tokens=[1] * len(prompts))
    found = {}
    while len(found) < len(prompts):
        found |= {part.uid: part.logprobs for part in batch.next()[1]}
    return found[uids[0]]


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: a prompt of 9 tokens has the same next-token log-probabilities beside one of 40 tokens as alone\n")
short, long = [11 + i for i in range(9)], [120 - 2 * i for i in range(40)]
changed = []
for group, off in ((depends, True), (alike, False)):
    for name, own in group.items():
        model = made(name, own)
        by = float(mx.abs(first(model, short) - first(model, short, long)).max())
        print(f"{name:20}differs by {by:.0e}")
        if (by > 1e-3) != off:
            changed.append(name)
if changed:
    raise SystemExit(f"changed: {', '.join(changed)}")
print("\nseen: the answers of the first eight depend on their company")
PYTHON
