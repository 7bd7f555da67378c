#!/usr/bin/env bash
# On a hybrid model, lmdeploy's PyTorch engine resumes every later turn of a conversation where its first prompt ended.
#
# Package     lmdeploy 0.18.0 (its scheduler, its checkpoints of states and its maker of forwards; nothing is computed)
# Surprise    A recurrent state is kept at the exact end of each prompt, with a copy of the block in which it ends. Who resumes there has
#             that block, and all that it computes of its prompt behind it, to itself: none of it goes into the prefix trie before it
#             is computed (pytorch/paging/block_trie/trie.py, `_apply_state_checkpoint_hit`). A state can be kept only where the trie
#             has a block, and is looked for when the forward is made, so none is kept at the end of that prompt. The next turn finds
#             the old one, resumes inside a block again, and so on.
# Who         Conversations, agents, growing documents on models with recurrent layers: the hit rate falls with each turn and the
#             time to the first token grows as if all behind the first prompt were new. Tests with two turns see a cache that works,
#             and so do prompts that end with a block.
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
print("expected: each turn resumes where the prompt before it ended\n")


def turns(first):
    """How many tokens are cached of each prompt of a conversation; each is 100 tokens longer than the one before."""
    engine, cached = Engine(blocks=200, states=32), []
    for length in range(first, first + 600, 100):
        seq = engine.submit(range(1000, 1000 + length))
        engine.forward()
        cached.append(seq.cached_tokens)
        for _ in range(5):
            engine.forward()
        engine.end(seq)
    return cached


print("first prompt   its prompts in turn               cached of them, blocks of 64")
seen = {first: turns(first) for first in (100, 128)}
for first, cached in seen.items():
    print(f"{first:12}   {', '.join(map(str, range(first, first + 600, 100))):33} {', '.join(map(str, cached))}")
if seen != {100: [0] + [100] * 5, 128: [0, 128] + [228] * 4}:
    raise SystemExit(f"changed: {seen}")
print("\nseen: behind the first prompt that ends inside a block no state is kept any more")
PYTHON
