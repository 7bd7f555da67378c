#!/usr/bin/env bash
# A static cache of a model whose layers have attention and convolutions says that it can be cropped: `crop` takes back the convolutions alone.
#
# Package     transformers 5.24.0, torch 2.13.0 (an Inkling 2 of two layers and a Llama with random weights)
# Surprise    Behind `activate_past_recording`, `is_croppable` of such a cache is true, and `crop(-n)` raises nothing. The static layers with
#             attention and convolutions inherit both from the part with convolutions: the number of tokens stays, so what is computed next
#             is written behind the tokens that were taken back, and these are read on. A window that is full is asked no more than that.
#             Of `DynamicCache` the same layers crop both.
# Who         Whoever takes back tokens of a kept static cache: rejected drafts, retried or edited turns.
# Documented  No: the guide to caches names `activate_past_recording` and `crop` for windows and linear attention, and no static cache.
# Upstream    A review of pull request #47950 (the guide's section on `crop`) says that hybrid static layers would crop the linear part alone.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip transformers==5.24.0
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import torch
import transformers

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
SIZES = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "num_hidden_layers": 2, "initializer_range": 0.1, "pad_token_id": None, "tie_word_embeddings": False}
CONVOLVED = {"layer_types": ["hybrid_sliding", "hybrid"], "n_layers_per_attn_res_block": 1, "swa_num_attention_heads": 4,
             "swa_num_key_value_heads": 2, "swa_head_dim": 16, "sliding_window_size": 24, "d_rel": 4, "rel_extent": 64,
             "unpadded_vocab_size": 128, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS = {"inkling2_text": CONVOLVED, "llama": {}}
TEXT = torch.randint(3, 128, (1, 41), generator=torch.Generator().manual_seed(1))
TAKEN = 7


@torch.inference_mode()
def cropped(name, static):
    """Crop 40 tokens to 33 and go on with the same eight: the tokens that the cache counts, and the difference from no cache."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[name](**SIZES, **MODELS[name])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    cold = model(TEXT, use_cache=False).logits[:, -1]
    cache = transformers.StaticCache(config=model.config, max_cache_len=64) if static else transformers.DynamicCache(config=model.config)
    cache.activate_past_recording()
    model(TEXT[:, :40], cache=cache)
    assert cache.is_croppable
    cache.crop(-TAKEN)
    counted = [int(layer.get_seq_length()) for layer in cache.layers]
    positions = torch.arange(40 - TAKEN, 41)[None]
    warm = model(TEXT[:, 40 - TAKEN :], cache=cache, position_ids=positions).logits[:, -1]
    return counted, (warm - cold).abs().max().item()


print("transformers", transformers.__version__)
print("expected: behind crop(-7) a cache of 40 tokens is one of 33, or is_croppable is false\n")
print(f"{'model':<16}{'cache':<10}{'tokens by layer':<18}off by")
seen = {}
for name in MODELS:
    for static in (False, True):
        seen[name, static] = counted, off = cropped(name, static)
        print(f"{name:<16}{'static' if static else 'dynamic':<10}{str(counted):<18}{off:.1g}")
wrong = seen.pop(("inkling2_text", True))
facts = [wrong[0] == [40, 40], wrong[1] > 0.1, all(counted == [33, 33] and off < 1e-4 for counted, off in seen.values())]
if not all(facts):
    raise SystemExit(f"changed: {facts} {wrong} {seen}")
print("\nseen: convolutions are cropped, attention is not")
PYTHON
