#!/usr/bin/env bash
# `batch_select_indices` of a transformers cache rearranges the attention of a hybrid layer and leaves its recurrent states where they were.
#
# Package     transformers 5.23.0, torch 2.13.0 (a Falcon-H1 and a Llama of two layers with random weights), hqq 0.2.8.post1
# Surprise    `Cache.batch_select_indices` is to keep the given rows of a batch. In layers that have attention and a recurrent state side by
#             side (`hybrid`: Falcon-H1) it is the method of attention alone: keys and values are rearranged, convolution and recurrent
#             states are not, so row 0 goes on from the keys of one text and the state of another. Of a quantized cache only the tokens that
#             are not quantized yet are rearranged. `reorder_cache`, of the same arguments, is right for both. Where the number of rows
#             changes, the next call raises; where it does not, nothing does.
# Who         Whoever permutes or duplicates rows of a batched cache: schedulers, best-of-n, beams of their own making.
# Documented  No: "Select indices from the cache".
# Upstream    huggingface/transformers pull request #45510 (closed without a merge) says so of the quantized layers; of hybrids no report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip transformers==5.23.0 hqq==0.2.8.post1
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import torch
import transformers
from transformers import DynamicCache, FalconH1Config, FalconH1ForCausalLM, LlamaConfig, LlamaForCausalLM, QuantizedCache

torch.set_num_threads(1)
torch.manual_seed(0)
common = dict(vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=32,
              pad_token_id=0)
hybrid = FalconH1ForCausalLM(FalconH1Config(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16,
                                            mamba_chunk_size=16, **common)).eval()
attention = LlamaForCausalLM(LlamaConfig(bos_token_id=None, eos_token_id=None, **common)).eval()
for weight in [*hybrid.parameters(), *attention.parameters()]:
    if weight.dim() == 2:
        torch.nn.init.normal_(weight, 0, 0.15)
TEXTS = torch.randint(1, 200, (4, 41))
ROWS = torch.tensor([2, 0, 3, 1])


@torch.no_grad()
def continued(model, make, method, texts):
    """Logits behind the last token of the rearranged texts, where all tokens before it come from the rearranged cache."""
    cache = make()
    model(TEXTS[:, :35], past_key_values=cache)
    for at in range(35, 40):
        model(TEXTS[:, at : at + 1], past_key_values=cache)
    if method:
        getattr(cache, method)(ROWS)
    return model(texts[:, 40:], past_key_values=cache).logits[:, -1]


print("transformers", transformers.__version__)
print("expected: rows that are selected, without a change of their number, go on as they would have gone on where they were\n")
print("cache                            method                  largest difference   logits of two texts differ by")
off = {}
caches = {
    "attention, DynamicCache": (attention, lambda: DynamicCache(config=attention.config)),
    "attention, QuantizedCache": (attention, lambda: QuantizedCache("hqq", attention.config, axis_key=1, axis_value=1, residual_length=32)),
    "hybrid layers, DynamicCache": (hybrid, lambda: DynamicCache(config=hybrid.config)),
}
for name, (model, make) in caches.items():
    right = continued(model, make, None, TEXTS)
    for method in ("reorder_cache", "batch_select_indices"):
        off[name, method] = (continued(model, make, method, TEXTS[ROWS]) - right[ROWS]).abs().max().item()
        print(f"{name:33}{method:24}{off[name, method]:<21.1g}{(right[ROWS] - right).abs().max().item():.1g}")
wrong = {key for key, difference in off.items() if difference > 0.01}
if wrong != {(name, "batch_select_indices") for name in list(caches)[1:]} or max(off[key] for key in set(off) - wrong) > 1e-3:
    raise SystemExit(f"changed: {off}")
print("\nseen: a permutation by batch_select_indices mixes the texts of a hybrid's and of a quantized cache, and raises nothing")
PYTHON
