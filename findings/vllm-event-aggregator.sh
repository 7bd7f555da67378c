#!/usr/bin/env bash
# vLLM's aggregator of KV events drops an event that every worker reports, if they report it twice.
#
# Package     vllm 0.33.0 (its Python part; `vllm.distributed.kv_events.KVEventAggregator`)
# Surprise    "Return events that appeared in all workers" is done by counting: an event is common if it was seen as often as there are
#             workers. A block that each worker stores, removes and stores again within a step counts twice as often, so its store is
#             dropped and its removal stays: what is published says the opposite of what holds. One worker that reports an event
#             twice makes it common although the other never did, and with a single worker a repeated event is lost. An
#             `AllBlocksCleared` cannot be counted at all: it raises `TypeError`.
# Who         Routers and indexes that live on the events of a connector (LMCache's go through this class): they send requests to
#             workers that do not have the prefix, and forget those that have it.
# Documented  No.
# Upstream    vllm-project/vllm pull request #49689, open when this was written.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.33.0
cd "$work"
HOME=$work VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 PYTHONPATH=$work/src "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventAggregator


def stored(name):
    return BlockStored(block_hashes=[name], parent_block_hash=None, token_ids=[1, 2, 3, 4], block_size=4, lora_id=None, medium="CPU", lora_name=None)


def removed(name):
    return BlockRemoved(block_hashes=[name], medium="CPU")


def common(*workers):
    aggregator = KVEventAggregator(len(workers))
    for events in workers:
        aggregator.add_events(events)
    return [f"{'+' if isinstance(event, BlockStored) else '-'}{event.block_hashes[0].decode()}" for event in aggregator.get_common_events()]


again = [stored(b"a"), removed(b"a"), stored(b"a")]
rows = [
    ("two workers: a stored", common([stored(b"a")], [stored(b"a")]), ["+a"], ["+a"]),
    ("two workers: a stored, removed, stored", common(again, again), ["+a", "-a", "+a"], ["-a"]),
    ("one worker of two: a stored twice", common([stored(b"a"), stored(b"a")], []), [], ["+a"]),
    ("one worker alone: a stored twice", common([stored(b"a"), stored(b"a")]), ["+a"], []),
]
try:
    KVEventAggregator(1).add_events([AllBlocksCleared()])
    cleared = "accepted"
except TypeError as error:
    cleared = f"TypeError: {error}"
print("vllm", version("vllm"))
print("expected: what all workers reported, in the order and as often as each of them did\n")
print(f"{'events':42}{'expected':16}common, as it is")
for label, seen, expected, before in rows:
    print(f"{label:42}{' '.join(expected) or 'none':16}{' '.join(seen) or 'none'}")
print(f"{'AllBlocksCleared':42}{'counted':16}{cleared}")
changed = [label for label, seen, _, before in rows if seen != before]
if changed or "unhashable" not in cleared:
    raise SystemExit(f"changed: {changed or 'AllBlocksCleared is counted now'}")
print("\nseen: an event is common if it was counted as often as there are workers")
PYTHON
