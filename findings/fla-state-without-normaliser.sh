#!/usr/bin/env bash
# The final state that fla's ABC and GSA give back cannot be resumed from: the sum that normalises the slots is not in it.
#
# Package     fla-core 0.6.0 (`naive_recurrent_abc`, `naive_recurrent_gsa`: its references in plain PyTorch)
# Surprise    Both take `initial_state` and give back a final state of the same shape, as every recurrent operation there does. Without
#             explicit decays (`g`) they weigh the slots by a running logsumexp over the tokens of the call, which starts anew in each
#             call and is part of no state. A sequence in two calls, the second from the first's final state, differs from one call by
#             more than its outputs are large. With `g` given the split is exact.
# Who         Prefix caches, chunked prefill and decoding of models with such layers: a snapshot that is whole by its shapes resumes
#             wrongly, from the first token on. (By its source, the layer `fla/layers/abc.py` of flash-linear-attention 0.6.0 passes
#             on exactly such a state.)
# Documented  No: "Initial states of shape ..., final state of shape ..." in `chunk_abc`, whose kernel by its source computes the same
#             sum over its own tokens alone.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip einops==0.8.2 numpy==2.4.6
pip --no-deps fla-core==0.6.0
cd "$work"
HOME=$work "$work/venv/bin/python" - <<'PYTHON'
import importlib.util
from importlib.metadata import distribution

import torch

found = distribution("fla-core")


def reference(name):
    """The operation of fla/ops/NAME/naive.py; the package itself would import Triton."""
    spec = importlib.util.spec_from_file_location(name, found.locate_file(f"fla/ops/{name}/naive.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"naive_recurrent_{name}")


torch.manual_seed(0)
BATCH, HEADS, TOKENS, KEYS, VALUES, SLOTS, CUT = 1, 2, 96, 16, 16, 32, 64


def draw(*shape):
    return torch.randn(BATCH, HEADS, TOKENS, *shape, dtype=torch.float64).float()


inputs = [draw(KEYS), draw(KEYS), draw(VALUES), draw(SLOTS)]
decays = -torch.rand(BATCH, HEADS, TOKENS, SLOTS)
print("fla-core", found.version, "torch", torch.__version__)
print("expected: two calls, the second from the state of the first, say what one call says, up to rounding\n")
print("operation   decays   largest output   largest difference behind the cut   at the first token behind it")
seen = {}
for name, time in (("abc", 2), ("gsa", 1)):  # abc has the tokens in dimension 2, gsa in dimension 1
    operation = reference(name)
    for given in (True, False):
        arguments = inputs + ([decays] if given else [])
        arguments = [x.transpose(1, 2).contiguous() if name == "gsa" else x for x in arguments]
        whole, _ = operation(*arguments)
        front, state = operation(*(x.narrow(time, 0, CUT) for x in arguments), output_final_state=True)
        rest, _ = operation(*(x.narrow(time, CUT, TOKENS - CUT) for x in arguments), initial_state=state)
        assert torch.equal(front, whole.narrow(time, 0, CUT))
        off = (rest - whole.narrow(time, CUT, TOKENS - CUT)).abs()
        scale = whole.narrow(time, CUT, TOKENS - CUT).abs().max().item()
        seen[name, given] = off.max().item() / scale
        print(f"{name:12}{'given' if given else 'none':9}{scale:<17.2g}{off.max().item():<36.2g}{off.narrow(time, 0, 1).max().item():.2g}")
if max(seen["abc", True], seen["gsa", True]) > 1e-5 or min(seen["abc", False], seen["gsa", False]) < 0.3:
    raise SystemExit(f"changed: differences as parts of the largest output are {seen}")
print("\nseen: without decays the state does not say what was before")
PYTHON
