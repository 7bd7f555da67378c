#!/usr/bin/env bash
# With its check of tokens switched on, AIBrix's second tier gives back the first block of a prompt and none behind it, and says that all exist.
#
# Package     aibrix-kvcache 0.8.0, torch 2.13.0
# Surprise    AIBRIX_KV_CACHE_OL_TOKEN_VALIDATION_ENABLED=1 writes the tokens of its prefix and its own beside each block, and compares them
#             when a block comes back, against collisions of hashes. They are read back at the wrong place: the two lengths are taken for
#             the prefix, and the prefix's first tokens for the block's. So every block that has a prefix is refused as a mismatch, whatever
#             it holds. `exists` checks no tokens where the connector gets block by block, so it promises what `get` then refuses.
# Who         Whoever switches the check on for safety: a second tier that never hits beyond one block, without an error, and block counts
#             of look-ups that loads do not keep.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check aibrix-kvcache==0.8.0
cd "$work"
for validation in 0 1; do
    HOME=$work AIBRIX_KV_CACHE_OL_TOKEN_VALIDATION_ENABLED=$validation "$work/venv/bin/python" - "$validation" 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import torch
from aibrix_kvcache.cache_hashable import TokenListView
from aibrix_kvcache.l2 import L2Cache
from aibrix_kvcache.memory import ManagedMemoryRegion, TensorPoolAllocator
from aibrix_kvcache.spec import KVCacheBlockLayout, KVCacheBlockSpec, KVCacheTensorSpec

BLOCK, BLOCKS = 16, 4
checked = sys.argv[1] == "1"
if not checked:
    print("aibrix-kvcache", version("aibrix-kvcache"))
    print(f"expected: the {BLOCKS} blocks that were put come back, with and without the check of their tokens\n")
TensorPoolAllocator.SLAB_MAX_NBYTES = 1 << 20
spec = KVCacheBlockSpec(BLOCK, torch.float32, KVCacheBlockLayout.NCLD, KVCacheTensorSpec(heads=[0], layers=[0], head_size=8))
pool = TensorPoolAllocator.create(capacity_nbytes=1 << 20)
tokens = TokenListView([*range(BLOCK * BLOCKS)])


def region(stop):
    """A region for the block that ends there, and what is in front of it."""
    found = pool.alloc([ManagedMemoryRegion.calculate_size(spec.block_nbytes, stop)]).get()[0]
    found.block_nbytes = spec.block_nbytes
    return found


def filled(stop):
    found = region(stop)
    found.to_tensor(spec.block_dtype, spec.block_shape).fill_(float(stop))
    start = stop - BLOCK
    found.pack_tokens(prefix=tokens[:start] if start else None, query=tokens[start:stop])
    found.seal()
    return found


async def there_and_back():
    tier = L2Cache("MOCK", "SIMPLE", "finding", spec, ThreadPoolExecutor(2))  # a dict in this process
    assert tier.open().is_ok()
    ends = [BLOCK * (number + 1) for number in range(BLOCKS)]
    put = (await tier.put(None, tokens, [filled(stop) for stop in ends])).get()
    exists = (await tier.exists(None, tokens)).get()
    got = (await tier.get(None, tokens, [region(stop) for stop in ends])).get()
    return put, exists, got


found = asyncio.run(there_and_back())
print(f"tokens are {'compared' if checked else 'not compared':14}put {found[0]}, exist {found[1]}, got {found[2]}")
if found != (BLOCKS, BLOCKS, 1 if checked else BLOCKS):
    raise SystemExit(f"changed: {found}")
PYTHON
done
printf '\nseen: with the check the first block alone comes back\n'
