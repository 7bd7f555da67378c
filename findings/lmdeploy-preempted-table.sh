#!/usr/bin/env bash
# lmdeploy's PyTorch engine gives a preempted request a block of the prefix cache behind its own blocks, and the request writes over it.
#
# Package     lmdeploy 0.18.0 (its scheduler, its prefix trie and its maker of forwards; nothing is computed)
# Surprise    A request that is preempted for want of blocks keeps those that it has. The trie knows of them only up to where the request
#             last took a block, which is up to 64 + 16 tokens behind. Admitted again, it is matched from there on, and the blocks that
#             match are appended to its table, behind its own, where its next tokens go. So it writes them into a block that others
#             share. `_has_private_local_tail` asks whether a request has blocks beyond its place in the trie, but only where there is a
#             connector (pytorch/paging/prefill_scheduler.py; the append is in pytorch/paging/block_trie/trie.py, `_match_block_prefix`).
# Who         Whoever runs with `enable_prefix_caching=True` and enough load that requests are preempted, where two requests compute equal
#             blocks: one prompt sent twice at temperature 0, several answers to one prompt, a client that asks again. Both answers go
#             wrong from there on, without a message, and so does everybody who hits the block later.
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
print("expected: no request writes into a block in which another one has its tokens\n")
print("two requests with one prompt of 60 tokens, greedy, blocks of 64, room for 5 blocks\n")
engine = Engine(blocks=5)
names = {engine.submit(range(100, 160)).seq_id: name for name in ("first", "second")}
tables, over = {}, []
for step in range(76):
    told, _ = engine.forward()
    for seq, start, stop, table in told:
        name, other = names[seq.seq_id], {"first": "second", "second": "first"}[names[seq.seq_id]]
        tables[name] = table
        column = (stop - 1) // 64
        theirs = tables.get(other, []).index(table[column]) if table[column] in tables.get(other, []) else column
        if theirs != column:
            over.append((name, stop - 1, table[column], other, theirs * 64))
        if step in (0, 68, 69, 70, 71):
            print(f"forward {step:2}  {name:6} computes [{start},{stop}) over the blocks {table}")
if not over:
    raise SystemExit(f"changed: tables {tables}")
name, token, block, other, begin = over[0]
print(f"\nseen: {name} writes its token {token} into block {block}, where {other} has its tokens {begin} to {begin + 63}; {len(over)} such writes")
PYTHON
