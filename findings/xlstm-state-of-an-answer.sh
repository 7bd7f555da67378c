#!/usr/bin/env bash
# The state that xLSTM gives back with an answer has not read the answer's last token, and a state that is given is written over.
#
# Package     xlstm 2.0.6 (`xlstm_large`), mlstm-kernels 2.0.6, torch 2.13.0
# Surprise    `generate` returns tokens and "state: State dictionary of the model after the last generation step". The last token is drawn
#             from that state and never read, so going on with the next turn's text leaves it out, the end of the answer as a rule: the
#             model continues a text that nobody has. And `forward` and `generate` take a state and return a state, like functions, but the
#             one returned is the one given, into whose tensors every step is copied ("we update the state in place"). Without a state a new
#             one is made, so the first call behind a prompt looks right; the second continuation of the same prompt goes on from the first.
# Who         Conversations over a kept state; whoever keeps a prompt's state for several questions, as a prefix cache does.
# Documented  No; the arguments are said to be "State dictionary of the model".
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip numpy==2.4.6 einops==0.8.2 PyYAML==6.0.3 safetensors==0.8.0 packaging==26.3 setuptools==80.9.0
pip --no-deps xlstm==2.0.6 mlstm-kernels==2.0.6
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
from xlstm.xlstm_large import xLSTMLarge, xLSTMLargeConfig

torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_grad_enabled(False)
kernels = {"chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "native_sequence__native", "step_kernel": "native"}
model = xLSTMLarge(xLSTMLargeConfig(
    embedding_dim=64, num_heads=2, num_blocks=2, vocab_size=100, mode="inference", return_last_states=True, autocast_kernel_dtype="float32", **kernels,
)).eval()
for weight in model.parameters():
    if weight.dim() >= 2:
        torch.nn.init.normal_(weight, 0, 0.3)


def text(seed, length):
    return torch.randint(0, 100, (1, length), generator=torch.Generator().manual_seed(seed))


def behind(tokens, state=None):
    """Return what follows these tokens behind a state."""
    return model(tokens, state)[0][:, -1]


def off(logits, *tokens):
    """Return how far logits are off from those of a whole text."""
    return (logits - behind(torch.cat(tokens, 1))).abs().max().item()


prompt, one, other = text(1, 70), text(2, 2), text(3, 2)
print("xlstm", version("xlstm"), "mlstm-kernels", version("mlstm-kernels"), "torch", version("torch"))
print("expected: what follows a kept state is what follows the whole text, however often the state is used\n")
_, kept = model(prompt)
first, second = behind(one, kept), behind(other, kept)
answer, state = model.generate(prompt, 5)
next_turn = behind(other, state)
rows = [
    ("one question behind a prompt's state", off(first, prompt, one), "-", None),
    ("another behind the same state", off(second, prompt, other), "prompt, one question, another", off(second, prompt, one, other)),
    ("the next turn behind generate's state", off(next_turn, prompt, answer, other), "prompt, answer but its last token, turn",
     off(next_turn, prompt, answer[:, :-1], other)),
]
print(f"{'asked':40}{'off by':9}{'off from another text by':42}largest logit {behind(prompt).abs().max():.1f}")
for asked, wrong, what, least in rows:
    print(f"{asked:40}{wrong:<9.1g}{what if least is None else f'{what}: {least:.0e}'}")
tokens, _ = model.generate(prompt, 5)
if rows[0][1] > 1e-3 or any(row[1] < 0.05 or row[3] > 1e-3 for row in rows[1:]) or not torch.equal(tokens, answer):
    raise SystemExit(f"changed: {rows}")
print("\nseen: the state is a token behind its answer, and a state that was used is another prompt's")
PYTHON
