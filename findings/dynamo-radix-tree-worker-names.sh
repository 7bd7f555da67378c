#!/usr/bin/env bash
# Dynamo's radix tree knows a worker's prompt by its first block alone if another worker named equal blocks otherwise, and all of it if they came in one event.
#
# Package     ai-dynamo-runtime 1.6.1, `dynamo.llm.RadixTree`
# Surprise    The tree compares tokens, and each worker's events name blocks by that worker's hashes. Where two workers have the same
#             tokens under other names, the second one's first event is taken, and what comes behind it is refused ("Failed to find
#             parent block"): the tree looks for the parent under the name that the first worker gave it. If a whole prompt comes in
#             one event, all of it is known; if it comes in chunks, as vLLM publishes a long prompt or an answer, the first chunk is.
# Who         Fleets in which hashes are seeded for each process (vLLM's `xxhash` without PYTHONHASHSEED, older releases by default)
#             or in which two releases serve side by side: the router sends requests away from the workers that have them.
# Documented  That hashes should be the same on all workers, for vLLM; not what the tree does if they are not, and the type says
#             nothing of names. The process logs a warning for each event.
# Upstream    ai-dynamo/dynamo#2924 asks for the documentation.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet ai-dynamo-runtime==1.6.1
cd "$work"
"$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
from importlib.metadata import version

from dynamo.llm import RadixTree, compute_block_hash_for_seq

SIZE = 16
tokens = list(range(4 * SIZE))
of_tokens = compute_block_hash_for_seq(tokens, SIZE)


def tell(tree, worker, names, first, last):
    """Store the blocks [first, last) of the prompt; return 1 if the tree refuses them."""
    stored = {
        "parent_hash": names[first - 1] if first else None,
        "blocks": [{"block_hash": names[at], "tokens_hash": of_tokens[at]} for at in range(first, last)],
    }
    event = {"event_id": first, "data": {"stored": stored}, "dp_rank": 0}
    try:
        tree.apply_event(worker, json.dumps(event).encode())
    except RuntimeError:
        return 1
    return 0


def known(names, chunk):
    tree = RadixTree()
    refused = 0
    for worker, called in ((0, [1, 2, 3, 4]), (1, names)):
        for first in range(0, 4, chunk):
            refused += tell(tree, worker, called, first, first + chunk)
    scores = {worker: blocks for (worker, _), blocks in tree.find_matches(of_tokens).scores.items()}
    return scores.get(0, 0), scores.get(1, 0), refused


print("ai-dynamo-runtime", version("ai-dynamo-runtime"))
print("expected: both workers stored the same four blocks, so the tree knows four of each\n")
print("names on the second worker   blocks in an event   known of the first, the second   refused events")
seen = {}
for what, names in (("the same", [1, 2, 3, 4]), ("its own", [11, 12, 13, 14])):
    for chunk in (4, 2, 1):
        first, second, refused = seen[what, chunk] = known(names, chunk)
        print(f"{what:<28} {chunk:>18} {first:>20}, {second} {refused:>23}")
expected = {("the same", chunk): (4, 4, 0) for chunk in (4, 2, 1)}
expected |= {("its own", 4): (4, 4, 0), ("its own", 2): (4, 2, 1), ("its own", 1): (4, 1, 3)}
if seen != expected:
    raise SystemExit(f"changed: {seen}")
print("\nseen: with names of its own the second worker is known by its first event alone")
PYTHON
