#!/usr/bin/env bash
# A quantized cache of transformers says that it can be cropped: `crop` takes nothing from the quantized part, and the length stays what it was.
#
# Package     transformers 5.23.0, hqq 0.2.8.post1, torch 2.13.0 (a Llama of two layers with random weights)
# Surprise    `QuantizedCache` keeps the last tokens as they are (the residual) and all before them quantized. `is_croppable` is true, yet
#             `crop` is the method of layers that are not quantized: it cuts the residual alone. A crop that is longer than the residual
#             removes the residual and no more, without a word; with an empty residual, as behind every prompt, it raises an IndexError.
#             `get_seq_length()` counts the removed tokens for good, so the next token gets a position that is too high.
# Who         Whoever takes back tokens of a kept cache: rejected drafts, retried or edited turns. Only a crop within the residual, with
#             explicit positions, one token at a time, is right.
# Documented  No: the guide to caches describes `crop` for a rejected continuation and excepts windows and linear attention, not this.
# Upstream    huggingface/transformers pull request #45510 (closed without a merge) says so of the quantized layers of April 2026.
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
import torch
import transformers
from random_llama import config, model
from transformers import QuantizedCache

TEXT = torch.randint(1, 200, (1, 80))
PROMPT, RESIDUAL = 40, 32


@torch.no_grad()
def fed(tokens):
    """A cache of so many tokens: the prompt in one call, quantized, and each token behind it by itself, kept as it is."""
    cache = QuantizedCache("hqq", config, axis_key=1, axis_value=1, residual_length=RESIDUAL)
    model(TEXT[:, :PROMPT], past_key_values=cache)
    for at in range(PROMPT, tokens):
        model(TEXT[:, at : at + 1], past_key_values=cache)
    return cache


@torch.no_grad()
def following(cache, tokens, **positions):
    """What the model says behind token number `tokens`, and the number of entries that attention saw."""
    logits = model(TEXT[:, tokens : tokens + 1], past_key_values=cache, **positions).logits[0, -1]
    nothing = torch.zeros(1, 2, 0, 32)
    return logits, cache.layers[0].update(nothing, nothing)[0].shape[2] - 1


print("transformers", transformers.__version__)
print("expected: behind crop(-n) a cache is the one that never had these n tokens, or is_croppable is false\n")
print("tokens   residual   crop   entries left   length   off by   off by, with explicit positions")
seen = {}
for tokens, removed in ((50, 5), (55, 15), (50, 10), (PROMPT, 3)):
    rest = tokens - removed
    residual = tokens - PROMPT
    line = f"{tokens:<9}{residual:<11}{removed:<7}"
    cache, other = fed(tokens), fed(tokens)
    assert cache.is_croppable
    try:
        cache.crop(-removed)
        other.crop(-removed)
    except IndexError as error:
        seen[tokens, removed] = "IndexError"
        print(f"{line}IndexError: {error}")
        continue
    length = cache.get_seq_length()
    right, _ = following(fed(rest), rest)
    wrong, left = following(cache, rest)
    placed, _ = following(other, rest, position_ids=torch.tensor([[rest]]))
    seen[tokens, removed] = left, length, (wrong - right).abs().max().item(), (placed - right).abs().max().item()
    print(f"{line}{left:<15}{length:<9}{seen[tokens, removed][2]:<9.1g}{seen[tokens, removed][3]:.1g}")
cache = fed(50)
cache.crop(-12)
_, left = following(cache, 38)
print(f"{50:<9}{10:<11}{12:<7}{left} entries, where 38 are asked for")
facts = [seen[50, 5][:2] == (45, 50) and seen[50, 5][2] > 0.1 and seen[50, 5][3] < 1e-4, seen[55, 15][1] == 55 and seen[55, 15][2] > 0.1,
         seen[PROMPT, 3] == "IndexError", left == PROMPT]
if not all(facts):
    raise SystemExit(f"changed: {facts} {seen}")
print("\nseen: the residual alone is cropped, and the length not at all")
PYTHON
