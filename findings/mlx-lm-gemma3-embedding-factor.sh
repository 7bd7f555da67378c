#!/usr/bin/env bash
# mlx-lm multiplies the embeddings of Gemma 3 by a factor that is rounded to bfloat16, also where weights and activations are float32.
#
# Package     mlx-lm 0.32.2 on mlx and mlx-cpu 0.32.4 (models/gemma3_text.py)
# Surprise    Gemma's embeddings are multiplied by the square root of the hidden size. For Gemma 3, and for no other Gemma of the library,
#             the root goes through bfloat16: 25.25 in place of 25.298 for the 270M model, 34 in place of 33.941 for 1B. Float32 does not
#             undo it, so a float32 model is as far from other float32 implementations (transformers keeps the root in the weights' type)
#             as a rounded one: a change that no tolerance of float32 allows, at every token.
# Who         Whoever compares likelihoods or answers across engines in float32, or measures what a cache, a quantised key or a kernel
#             costs by the same weights on another engine. On Gemma 3 270M's own weights the likelihoods of next tokens differ from
#             transformers' by up to 0.04 nats; with the rounded factor in both by 0.0002.
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
from mlx_lm.models import gemma2, gemma3_text

WORDS, LAYERS = 64, 6
shape = {"num_hidden_layers": LAYERS, "intermediate_size": 32, "num_attention_heads": 1, "head_dim": 8, "vocab_size": WORDS}
tokens = mx.array([list(range(16))])


def gemma_3(size):
    return gemma3_text.Model(gemma3_text.ModelArgs("gemma3_text", hidden_size=size, **shape))


def gemma_2(size):
    return gemma2.Model(gemma2.ModelArgs("gemma2", hidden_size=size, rms_norm_eps=1e-6, num_key_value_heads=1, **shape))


def factor(model):
    """What the first layer gets, divided by the embedding."""
    got = []

    def layer(h, mask, cache):
        got.append(h)
        return h

    model.model.layers = [layer] * LAYERS
    model(tokens)
    embedded = model.model.embed_tokens(tokens)
    assert got[0].dtype == embedded.dtype == mx.float32
    return (got[0].sum() / embedded.sum()).item()


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: in float32 embeddings are multiplied by the root of the hidden size\n")
print("hidden size      root   Gemma 2   Gemma 3")
seen = {}
for size in (640, 1152, 2560, 3840):
    seen[size] = round(factor(gemma_2(size)), 2), round(factor(gemma_3(size)), 2)
    print(f"{size:11} {size**0.5:9.3f} {seen[size][0]:9.2f} {seen[size][1]:9.2f}")

mx.random.seed(0)
model = gemma_3(640)
base = model.model
embed = lambda: base.embed_tokens(tokens)  # noqa: E731
log = lambda h: (lambda x: x - mx.logsumexp(x, axis=-1, keepdims=True))(base.embed_tokens.as_linear(h))  # noqa: E731
as_it_is = log(base(tokens))
same = log(base(tokens, input_embeddings=embed()))
exact = log(base(tokens, input_embeddings=embed() * (640**0.5 / 25.25)))
apart, again = (mx.abs(as_it_is - other).max().item() for other in (exact, same))
print(f"\na model with drawn weights, hidden size 640: by the exact root its log-probabilities are {apart:.1e} apart, asked again {again:.1e}")
expected = {640: (25.3, 25.25), 1152: (33.94, 34.0), 2560: (50.6, 50.5), 3840: (61.97, 62.0)}
if seen != expected or not apart > 100 * max(again, 1e-7):
    raise SystemExit(f"changed: {seen}, {apart}, {again}")
print("\nseen: Gemma 3's factor is the root in bfloat16, Gemma 2's is the root")
PYTHON
