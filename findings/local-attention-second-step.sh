#!/usr/bin/env bash
# local-attention's cache holds from the first step and no further: keys that went through a step are rotated again in each one behind it.
#
# Package     local-attention 1.11.2 (`LocalMHA`), torch 2.13.0
# Surprise    `LocalMHA` takes `cache` and gives one back with `return_cache`, for decoding token by token. The cache behind a prompt holds
#             keys as they are; a step with a cache rotates all keys by their place in the window, and gives back the rotated ones, which the
#             next step takes for keys as they are. So a test of one step passes to the last digit, and every later one is wrong, within the
#             window and behind it, by default. With `qk_rmsnorm` the first step is wrong as well: without a cache queries are scaled by
#             `qk_scale`, with one by the root of the size of a head.
# Who         Whoever decodes with such layers, keeps their keys and values as a prefix, or takes them for the reference of a window.
# Documented  No; of what can be cached an assertion says "only allow caching for specific configuration": causal, no bias, no mask.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip --no-deps numpy==2.4.6 einops==0.8.2 hyper-connections==0.4.11 local-attention==1.11.2
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
from local_attention.transformer import LocalMHA

torch.set_num_threads(1)
torch.set_grad_enabled(False)
WINDOW, STEPS = 8, 4


def off_by(prompt, **options):
    """Return by how much each step behind a prompt differs from the same place of a forward of the whole, and the largest number there."""
    torch.manual_seed(0)
    layer = LocalMHA(dim=32, window_size=WINDOW, heads=2, dim_head=16, causal=True, prenorm=True, **options).eval()
    text = torch.randn(1, prompt + STEPS, 32)
    whole = layer(text)
    _, cache = layer(text[:, :prompt], return_cache=True)
    steps = []
    for at in range(prompt, prompt + STEPS):
        out, cache = layer(text[:, at : at + 1], cache=cache, return_cache=True)
        steps.append((out - whole[:, at : at + 1]).abs().max().item())
    return steps, whole.abs().max().item()


print("local-attention", version("local-attention"), "torch", torch.__version__.split("+")[0])
print(f"expected: a step behind a cache gives what the whole text gives there; the window has {WINDOW} tokens\n")
print(f"{'options':30}{'prompt':9}{'steps 1 to 4 are off by':33}largest output")
cases = {"default": {}, "xpos": {"use_xpos": True, "xpos_scale_base": WINDOW}, "no rotary embedding": {"use_rotary_pos_emb": False}, "qk_rmsnorm": {"qk_rmsnorm": True}}
seen = {}
for name, options in cases.items():
    for prompt in (4, 20):
        steps, largest = off_by(prompt, **options)
        print(f"{name:30}{prompt:<9}{'  '.join(f'{step:.0e}' for step in steps):33}{largest:.1f}")
        seen[name, prompt] = [step > 1e-3 for step in steps]
wrong = {"default": [False, True, True, True], "xpos": [False, True, True, True], "no rotary embedding": [False] * 4, "qk_rmsnorm": [True] * 4}
if any(steps != wrong[name] for (name, _), steps in seen.items()):
    raise SystemExit(f"changed: {seen}")
print("\nseen: the first step is right and none behind it, unless nothing is rotated")
PYTHON
