#!/usr/bin/env bash
# Rows that are selected of a batch: layers with attention and states select their keys and values, and the states stay in the order of before.
#
# Package     transformers 5.24.0, torch 2.13.0 (a Falcon-H1 and a Llama of two layers with random weights)
# Surprise    `Cache.batch_select_indices` and `batch_repeat_interleave` are methods of every cache. A layer that has a recurrent or convolution
#             state beside attention (Falcon-H1, Inkling 2) inherits them from its attention: keys and values are selected, states are not, and
#             nothing is raised as long as the number of rows stays. Each row goes on from its own keys and another row's state.
#             `reorder_cache`, which beam search calls, moves both. A layer with states alone has neither method: AttributeError.
# Who         Whoever drops, repeats or orders the rows of a batch of a hybrid model: best-of-n, pruned candidates, servers that refill a batch.
# Documented  No: "Only keep the `indices` in the batch dimension of the cache."
# Upstream    None known of these methods; #46612 was about `reorder_cache`, which beam search did not call for states (repaired).
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
STATES = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 32, "mamba_d_ssm": 128}
DELTA = {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4}
MODELS = {"falcon_h1": STATES, "llama": {}, "qwen3_5_text": DELTA}
TEXTS = torch.randint(3, 128, (2, 41), generator=torch.Generator().manual_seed(1))
TURNED = torch.tensor([1, 0])


@torch.inference_mode()
def off(name, method):
    """Turn two rows of 40 tokens around, and go on for one: the largest difference from each text alone."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[name](**SIZES, **MODELS[name])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    cache = transformers.DynamicCache(config=model.config)
    model(TEXTS[:, :40], cache=cache)
    try:
        getattr(cache, method)(TURNED)
    except AttributeError as error:
        return f"AttributeError: {error}"
    after = model(TEXTS[TURNED, 40:], cache=cache, position_ids=torch.full((2, 1), 40)).logits[:, -1]
    alone = model(TEXTS[TURNED], use_cache=False).logits[:, -1]
    return (after - alone).abs().max().item()


print("transformers", transformers.__version__)
print("expected: two rows that change places answer as each text does alone, or the method is refused\n")
print(f"{'model':<14}{'reorder_cache off by':<22}batch_select_indices off by")
seen = {}
for name in MODELS:
    seen[name] = [off(name, method) for method in ("reorder_cache", "batch_select_indices")]
    print(f"{name:<14}" + "".join(f"{one:<22.1g}" if isinstance(one, float) else one for one in seen[name]).rstrip())
facts = [seen["falcon_h1"][0] < 1e-4, seen["falcon_h1"][1] > 0.1, max(seen["llama"]) < 1e-4, str(seen["qwen3_5_text"][1]).startswith("AttributeError")]
if not all(facts):
    raise SystemExit(f"changed: {facts} {seen}")
print("\nseen: keys and values are selected, and states stay where they were")
PYTHON
