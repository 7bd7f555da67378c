#!/usr/bin/env bash
# The recurrent state that lmdeploy's PyTorch engine keeps of an answer has seen one token more than the prefix that it is found by.
#
# Package     lmdeploy 0.18.0 (its scheduler, its checkpoints of states and its maker of forwards; nothing is computed)
# Surprise    With `prefix_cache_decode_state_interval` the state of a hybrid model is kept every so many tokens of an answer. A forward is
#             made while the one before computes, so the request's count of tokens is one behind, which a comment in
#             `create_model_inputs_delta` says; `reserve_decode_save` (pytorch/paging/block_trie/checkpoint_lifecycle.py) goes by that
#             count. The copy is made behind the new forward. Who hits such a state computes the next token onto a state that has seen
#             a token there already, the old answer's.
# Who         Whoever sets the option, which is there for conversations that go on behind an answer, on a model with recurrent layers.
#             Wrong answers on cache hits alone. With the default, 0, no state is kept of answers.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=lib/lmdeploy.sh
source "$lib/lmdeploy.sh"
lmdeploy_scheduler "$work" lmdeploy==0.18.0
cd "$work"
export HOME=$work PYTHONPATH=$lib
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from lmdeploy_paging import Engine, enter

print("lmdeploy", enter())
print("expected: the state that is kept for the first N tokens is the one after N tokens\n")
engine = Engine(blocks=20, states=4, prefix_cache_decode_state_interval=64)
seq = engine.submit(range(100, 160))
seen = []
for step in range(200):
    told, plan = engine.forward()
    if plan is not None and plan.state_save_plan is not None:
        _, start, stop, _ = told[0]
        key = seq.prefix_cache.pending_save.step
        seen.append(stop - key)
        print(f"forward {step:3} computes [{start},{stop}); the state behind it is kept for the first {key} tokens")
if seen != [0, 1, 1, 1]:
    raise SystemExit(f"changed: {seen}")
print("\nseen: the prompt's state is right, and each of the answer's has seen a token more")
PYTHON
