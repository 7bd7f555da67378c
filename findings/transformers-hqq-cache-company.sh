#!/usr/bin/env bash
# With the HQQ backend of transformers' quantized cache the answer to a prompt depends by default on the other prompts of its batch.
#
# Package     transformers 5.23.0, hqq 0.2.8.post1, torch 2.13.0 (a Llama of two layers with random weights)
# Surprise    Quantized is approximate, but one expects a text's keys and values to be rounded by themselves. On the axis that is the
#             default (`axis_key=0`, `axis_value=0`) each of HQQ's groups of 64 numbers is drawn across the whole tensor, batch included, so
#             the texts of a batch share scales and zero points: another text beside the prompt moves its logits by more than the
#             quantization does. On axis 1 groups are a text's own. (By its source the quanto backend, of the same defaults, groups within a text.)
# Who         Evaluations and servers that batch, and whoever compares an answer with the same prompt alone: padding is not the cause here.
# Documented  The guide recommends axis 1 for HQQ, and does not say that the default mixes texts.
# Upstream    No report known.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip transformers==5.23.0 hqq==0.2.8.post1
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 PYTHONPATH=$lib PYTHONDONTWRITEBYTECODE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
import transformers
from random_llama import config, model
from transformers import QuantizedCache

PROMPT, ANSWER = 64, 8
TEXTS = torch.randint(1, 200, (8, PROMPT + ANSWER))


@torch.no_grad()
def answers(texts, **options):
    """Logits behind each token of the answers, which are given, not chosen; no padding: all texts are of one length."""
    cache = QuantizedCache("hqq", config, nbits=4, q_group_size=64, **options)
    model(texts[:, :PROMPT], past_key_values=cache)
    return torch.stack([model(texts[:, at : at + 1], past_key_values=cache).logits[:, -1] for at in range(PROMPT, PROMPT + ANSWER)])


with torch.no_grad():
    exact = model(TEXTS[:1], use_cache=False).logits[0, PROMPT:]
print("transformers", transformers.__version__, "hqq", version("hqq"))
print("expected: the first text's logits do not depend on which texts are beside it\n")
print("axes      alone, beside others: differ by   beside these, beside others   from a cache that is not quantized")
off = {}
for axes, options in (("default", {}), ("1 and 1", {"axis_key": 1, "axis_value": 1})):
    alone = answers(TEXTS[:1], **options)[:, 0]
    beside = [answers(texts, **options)[:, 0] for texts in (TEXTS[:4], TEXTS[[0, 4, 5, 6]], TEXTS[[0, 7, 7, 7]])]
    company = max((one - beside[0]).abs().max().item() for one in beside)
    off[axes] = max((one - alone).abs().max().item() for one in beside), company, (alone - exact).abs().max().item()
    print(f"{axes:10}{off[axes][0]:<34.1g}{company:<29.1g}{off[axes][2]:.1g}")
facts = [min(off["default"][:2]) > 0.1, max(off["1 and 1"][:2]) < 1e-2]
if not all(facts):
    raise SystemExit(f"changed: {facts} {off}")
print("\nseen: with HQQ and its default axes the company decides")
PYTHON
