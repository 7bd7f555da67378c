#!/usr/bin/env bash
# On a hybrid model, lmdeploy's PyTorch engine lets a preempted request apply a token twice to its recurrent state.
#
# Package     lmdeploy 0.18.0 (its scheduler and its maker of forwards; nothing is computed)
# Surprise    A forward is made while the one before computes. If a request finds no block then, it is preempted, and the token that the
#             forward before is computing for it is thrown away (`if msg.status != MessageStatus.RUNNING: continue`,
#             pytorch/strategies/ar/sequence.py), its count of computed tokens with it. The request keeps its blocks and its state. If
#             nobody takes them it goes on with the token that was computed: keys and values are written again as they were, but the
#             recurrent state has seen the token, and sees it again.
# Who         Whoever serves models with recurrent layers (Qwen3-Next, Qwen3.5, Mamba hybrids) under enough load that requests are preempted,
#             with lmdeploy's defaults, with or without prefix caching. The answer goes on from a wrong state, without a message.
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
print("expected: each token of a request is applied once to its state, or its state begins anew\n")
print("two requests with prompts of 60 tokens on a hybrid model, no prefix caching, blocks of 64, room for 5 blocks\n")
engine = Engine(blocks=5, states=1, caching=False)
first, second = engine.submit(range(100, 160)), engine.submit(range(200, 260))
names = {first.seq_id: "first", second.seq_id: "second"}
behind, twice = {}, []
for step in range(80):
    if step == 73:
        engine.end(second)
    told, _ = engine.forward()
    for seq, start, stop, _ in told:
        name, state = names[seq.seq_id], seq.logical_state
        if start and behind.get((name, state)) != start:
            twice.append((name, start, behind.get((name, state))))
        behind[name, state] = stop
        if step in (0, 68, 69, 73, 74, 75):
            print(f"forward {step:2}  {name:6} computes [{start},{stop}) with the state in row {state}")
if twice != [("first", 127, 128)]:
    raise SystemExit(f"changed: {twice}")
print("\nseen: the first request computes its token 127 onto a state that has seen 128 tokens")
PYTHON
