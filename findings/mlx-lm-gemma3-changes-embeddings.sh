#!/usr/bin/env bash
# mlx-lm's Gemma 3 changes the embeddings that it is given: whoever asks twice with one array gets another answer the second time.
#
# Package     mlx-lm 0.32.2 on mlx and mlx-cpu 0.32.4 (models/gemma3_text.py)
# Surprise    The model multiplies `input_embeddings` by its factor with `*=`, which on an MLX array works in place, though operations on MLX
#             arrays are otherwise lazy and give new ones. So the caller's own array is multiplied with each call. The other models that
#             take embeddings leave it as it was.
# Who         Whoever keeps embeddings (of images, of soft prompts, of a shared prefix) and computes over them again: a cold run beside a
#             cached one, a retry, a prompt that is computed anew after its cache was dropped. The second answer is to a prompt 25 to 73 times
#             as large, without a message. `mlx_lm.generate` passes slices, which are arrays of their own, and does not show it.
# Documented  no.
# Upstream    none found.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2
cd "$work"
HF_HUB_OFFLINE=1 "$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.models import gemma3_text, llama

shape = {"num_hidden_layers": 6, "intermediate_size": 32, "num_attention_heads": 1, "head_dim": 8, "vocab_size": 64}
models = {
    "gemma3_text": gemma3_text.Model(gemma3_text.ModelArgs("gemma3_text", hidden_size=640, **shape)),
    "llama": llama.Model(llama.ModelArgs("llama", hidden_size=640, rms_norm_eps=1e-6, num_key_value_heads=1, **shape)),
}
tokens = mx.array([list(range(16))])
print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: equal calls give equal answers, and the caller's array stays as it was\n")
seen = {}
for name, model in models.items():
    embedded = model.model.embed_tokens(tokens)
    before = mx.abs(embedded).sum().item()
    first = model(tokens, input_embeddings=embedded)
    mx.eval(first)
    grown = mx.abs(embedded).sum().item() / before
    apart = mx.abs(model(tokens, input_embeddings=embedded) - first).max().item()
    seen[name] = round(grown, 2), apart > 0
    print(f"{name:<12} the array is {grown:.2f} times as large after a call; the second answer's logits are {apart:.2g} apart")
if seen != {"gemma3_text": (25.25, True), "llama": (1.0, False)}:
    raise SystemExit(f"changed: {seen}")
print("\nseen: one call multiplies the caller's embeddings, and the next one answers another prompt")
PYTHON
