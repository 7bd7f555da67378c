#!/usr/bin/env bash
# minGRU's language model reads the last token alone of what it is given with a state, so a text that goes on from a kept prompt is dropped.
#
# Package     minGRU-pytorch 0.2.1 (`minLM`, with minGRU and minLSTM), torch 2.13.0
# Surprise    `minLM` gives its states back (`return_prev_hiddens=True`) and takes them (`prev_hiddens=`), and its layers take a state with any
#             number of tokens. The model, given a state, cuts what it is given to the last token (`x = x[:, -1:]`): that suits a sampler
#             which hands over the whole text each time. A second turn, a question behind a kept prompt or a prompt in chunks loses all of its
#             tokens but one. No error; the logits come back for one place, and the states have read one token.
# Who         Whoever keeps a prompt's state and goes on from it with more than a token, as chunked prefill and prefix caches do.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip --no-deps numpy==2.4.6 einops==0.8.2 minGRU-pytorch==0.2.1
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
from minGRU_pytorch.minLM import minLM

torch.set_num_threads(1)
torch.set_grad_enabled(False)
PROMPT = 20
print("minGRU-pytorch", version("minGRU-pytorch"), "torch", torch.__version__.split("+")[0])
print(f"expected: tokens behind the state of a prompt of {PROMPT} are read as those behind the prompt\n")
print("layers    tokens  logits for  last off by  off from the prompt and the last token by  largest logit")
seen = {}
for lstm in (False, True):
    torch.manual_seed(0)
    model = minLM(num_tokens=100, dim=32, depth=2, use_lstm=lstm).eval()
    for weight in model.parameters():
        if weight.dim() >= 2:
            torch.nn.init.normal_(weight, 0, 0.3)
    text = torch.randint(100, (1, PROMPT + 10))
    whole = model(text)
    _, state = model(text[:, :PROMPT], return_prev_hiddens=True)
    for count in (1, 2, 10):
        logits = model(text[:, PROMPT : PROMPT + count], prev_hiddens=state)
        last = model(torch.cat([text[:, :PROMPT], text[:, PROMPT + count - 1 : PROMPT + count]], 1))[:, -1]
        off = (logits[:, -1] - whole[:, PROMPT + count - 1]).abs().max().item()
        dropped = (logits[:, -1] - last).abs().max().item()
        name, largest = "minLSTM" if lstm else "minGRU", whole.abs().max().item()
        print(f"{name:10}{count:<8}{logits.shape[1]:<12}{off:<13.0e}{dropped:<43.0e}{largest:.1f}")
        seen[name, count] = (logits.shape[1], off > 0.1, dropped < 1e-3)
if any(found != (1, count > 1, True) for (_, count), found in seen.items()):
    raise SystemExit(f"changed: {seen}")
print("\nseen: all but the last token are dropped, without a word")
PYTHON
