#!/usr/bin/env bash
# In CTranslate2 the repetition penalty counts as many of a prompt's last tokens as the shortest prompt of its batch is shorter.
#
# Package     ctranslate2 4.8.5, transformers 5.24.0, torch 2.13.0
# Surprise    Alone, a prompt's own tokens are not penalised: `repetition_penalty` is about "previously generated tokens", as the reference
#             of `generate_batch` has it. In a batch, prompts are computed up to the length of the shortest one, and what is left of the
#             longer ones is decoded with its tokens forced. Those then count as generated. So a prompt of 47 tokens beside one of 10 is
#             answered with a penalty on its last 37 tokens, and beside one of 46 with one on the last alone. `static_prompt`, the prefix
#             whose states may be cached, moves nothing: the rest of the prompts decides.
# Who         Evaluations with a penalty: the answer to a question depends on which questions are beside it, and on `max_batch_size`. Whoever
#             compares a cached run with an uncached one in other batches: what differs is not the cache's.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check ctranslate2==4.8.5 transformers==5.24.0
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 PYTHONPATH=$lib PYTHONDONTWRITEBYTECODE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
from tiny_llama import WORDS, generator, model, names, number

PENALTY, ANSWER = 1.3, 12


def answer(prompt, *beside, penalty=PENALTY):
    options = dict(max_length=ANSWER, include_prompt_in_result=False, end_token=[], repetition_penalty=penalty)
    return generator.generate_batch([prompt, *beside], **options)[0].sequences[0]


@torch.no_grad()
def computed(prompt, first):
    """The answer by transformers' model, with a penalty on the tokens from one on."""
    ids = [number[name] for name in prompt]
    for _ in range(ANSWER):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        for one in {*ids[first:]}:
            logits[one] = logits[one] / PENALTY if logits[one] > 0 else logits[one] * PENALTY
        ids.append(int(logits.argmax()))
    return [names[one] for one in ids[len(prompt) :]]


draw = torch.Generator().manual_seed(1)
prompt = [names[one] for one in torch.randint(WORDS - 3, (47,), generator=draw).tolist()]
print("ctranslate2", version("ctranslate2"))
print("expected: the answer to a prompt of 47 tokens is the same alone and beside other prompts\n")
alone = answer(prompt)
changed = [] if alone == computed(prompt, 47) else ["alone"]
print(f"{'alone':28}a penalty on the answer alone: {alone == computed(prompt, 47)}")
for length in (5, 10, 20, 40):
    beside = answer(prompt, prompt[:length])
    forced = beside == computed(prompt, length)
    print(f"beside a prompt of {length:2} tokens  as alone: {beside == alone!s:6}as with a penalty from token {length} on: {forced}")
    if beside == alone or not forced:
        changed.append(f"beside {length}")
if answer(prompt, prompt[:10], penalty=1) != answer(prompt, penalty=1):
    changed.append("without a penalty")
if changed:
    raise SystemExit(f"changed: {', '.join(changed)}")
print("\nseen: the shortest prompt of a batch decides how many tokens of the others are penalised")
PYTHON
