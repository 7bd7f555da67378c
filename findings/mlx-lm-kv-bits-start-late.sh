#!/usr/bin/env bash
# mlx-lm's `kv_bits` quantizes nothing of a context below 5,000 tokens, and a model with windows, which it never can, takes the option
# until then.
#
# Package     mlx-lm 0.32.2 on mlx and mlx-cpu 0.32.4 (generate.py, models/cache.py)
# Surprise    `kv_bits` (`--kv-bits` of `mlx_lm.generate`, `mlx_lm.cache_prompt` and `mlx_lm.server`) quantizes from the step
#             `quantized_kv_start` on, which is 5,000 unless it is given. So at 2, 4 or 8 bits a shorter prompt has the same
#             log-probabilities as without, to the bit, and so has each further token. Gemma 3's windows have no quantized form: with
#             them the option is taken, changes nothing, and raises when the context reaches 5,000 tokens, in the middle of an answer
#             if it is there.
# Who         Whoever measures what quantized keys and values cost: most prompts of evaluations are shorter (gsm8k with five examples
#             has about 900 tokens), so every number of bits scores what none scores. And whoever tries the option on Gemma 3 with
#             a short prompt and then serves long ones.
# Documented  the number, in the help of `--quantized-kv-start`; not that `--kv-bits` alone has no effect below it.
# Upstream    https://github.com/ml-explore/mlx-lm/issues/1573 is about the exception, not about the start.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version
from itertools import islice

import mlx.core as mx
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START, generate_step
from mlx_lm.models import gemma3_text, llama

WORDS, MORE = 64, 8
shape = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 1, "head_dim": 64, "vocab_size": WORDS}


def made(module, **own):
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict({"model_type": "any", "num_key_value_heads": 1, **shape, **own}))
    model.eval()
    return model


models = {
    "llama": made(llama, num_hidden_layers=2, rms_norm_eps=1e-6),
    "gemma3_text": made(gemma3_text, num_hidden_layers=2, sliding_window=32, sliding_window_pattern=2),
}


def asked(model, length, bits):
    """Return the log-probabilities of so many tokens behind a prompt, or how it ends."""
    prompt = mx.array([3 + 7 * i % (WORDS - 3) for i in range(length)])
    steps = []
    try:
        for _, logprobs in islice(generate_step(prompt, model, max_tokens=MORE, kv_bits=bits), MORE):
            mx.eval(logprobs)
            steps.append(logprobs)
    except NotImplementedError as error:
        return f"NotImplementedError: {error}, after {len(steps)} tokens"
    return mx.stack(steps)


def apart(model, length, bits):
    whole, rounded = asked(model, length, None), asked(model, length, bits)
    if isinstance(rounded, str):
        return rounded
    by = mx.abs(whole - rounded).max().item()
    return "0" if by == 0 else "more than 0"


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: with kv_bits keys and values are rounded, so log-probabilities differ from those without; or the option is refused\n")
print(f"model        prompt  bits  its next {MORE} log-probabilities differ by")
seen = {}
for name, model in models.items():
    for length, bits in ((900, 8), (900, 2), (4980, 2), (4996, 2), (5100, 2)):
        seen[name, length, bits] = apart(model, length, bits)
        print(f"{name:12} {length:6} {bits:5}  {seen[name, length, bits]}")
raised = "NotImplementedError: RotatingKVCache Quantization NYI, after {} tokens"
for name in models:
    short = [seen[name, *asking] for asking in ((900, 8), (900, 2), (4980, 2))]
    long = [seen[name, *asking] for asking in ((4996, 2), (5100, 2))]
    expected = ["more than 0"] * 2 if name == "llama" else [raised.format(3), raised.format(0)]
    if short != ["0"] * 3 or long != expected or DEFAULT_QUANTIZED_KV_START != 5000:
        raise SystemExit(f"changed: {name}: {short}, {long}")
print("\nseen: below 5,000 tokens no number of bits changes anything; from there on, windows raise")
PYTHON
