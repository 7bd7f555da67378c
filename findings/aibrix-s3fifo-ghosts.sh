#!/usr/bin/env bash
# The default eviction policy of AIBrix's KV cache never forgets an evicted key: its map grows with every block that was ever put.
#
# Package     aibrix-kvcache 0.8.0, torch 2.13.0
# Surprise    `S3FIFO`, what AIBRIX_KV_CACHE_OL_L1_CACHE_EVICTION_POLICY is unless set, keeps the keys of evicted blocks in a ghost queue
#             that is to be bounded by the bytes of the main queue. A ghost has no value any more, so it counts 0 bytes, and the bound is
#             never reached. A cache of 10 blocks keeps 20,000 keys after 20,000 puts, each with the tokens of its whole prompt. And whoever
#             comes back after any time goes to the main queue and is told as hot (`on_hot_access`), which is what is offloaded to the second
#             tier where only hot blocks are. LRU and FIFO forget.
# Who         Operators of long-running engines (memory of the process, which no capacity bounds); whoever measures hit rates by policy.
# Documented  No. The paper bounds the ghost queue (Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023).
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check aibrix-kvcache==0.8.0
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

from aibrix_kvcache.cache_hashable import KVCacheKey, TokenListView
from aibrix_kvcache.l1.eviction_policy import BaseEvictionPolicy

BLOCKS, PUTS, SIZE = 10, 20_000, 1024


class Region:
    """A block as a policy sees it: its size and its count of references."""

    def __len__(self):
        return SIZE

    def ref_up(self):
        pass

    def ref_down(self):
        pass


def key(number):
    return KVCacheKey(None, TokenListView([number] * 16))


print("aibrix-kvcache", version("aibrix-kvcache"))
print(f"expected: a policy with room for {BLOCKS} blocks remembers a number of keys that does not grow with the puts\n")
found = {}
for name in ("S3FIFO", "LRU", "FIFO"):
    policy = BaseEvictionPolicy.create(name, BLOCKS * SIZE)
    for number in range(PUTS):
        policy.put(key(number), Region())
    hot = []
    policy.set_on_hot_access_callback(lambda of, region: hot.append(of))
    blocks, remembered = len(policy) // SIZE, len(policy._hashmap)
    policy.put(key(0), Region())
    found[name] = (blocks, remembered, bool(hot))
    print(f"{name:8}{found[name][0]} blocks, {remembered:,} keys; the first key, put again: {'hot' if hot else 'new'}")
if found != {"S3FIFO": (BLOCKS, PUTS, True), "LRU": (BLOCKS, BLOCKS, False), "FIFO": (BLOCKS, BLOCKS, False)}:
    raise SystemExit(f"changed: {found}")
print("\nseen: S3FIFO remembers every key that was ever put")
PYTHON
