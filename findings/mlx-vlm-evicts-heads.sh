#!/usr/bin/env bash
# mlx-vlm's prefix cache evicts a prompt from its front: one block that is evicted makes the whole prompt a miss, and its other blocks stay.
#
# Package     mlx-vlm 0.7.10 (its module `apc`), mlx 0.32.4
# Surprise    The pool is a chain of hashes with the least recently used free block evicted first, as in vLLM, on which it is modelled by its
#             terms. vLLM frees the blocks of a request from the last to the first, so a prompt loses its tail. `APCManager.release` frees
#             them from the first to the last: the next eviction takes block 0 of the oldest prompt, without which no later block can be
#             found, and the pool goes on to hold those until they are oldest in turn. A prompt that is used again goes to the end of the
#             queue head first again. One block more than the pool has room for, and a prompt of ten blocks has no hit; in vLLM it has nine.
# Who         Servers whose working set is a little larger than the pool: hit rates fall to nothing at once, not by degrees.
# Documented  No; "LRU".
# Upstream    No report known for mlx-vlm. The same was reported of others: llm-d/llm-d-inference-sim issue #704, LMCache/LMCache pull #4867.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip mlx==0.32.4 mlx-cpu==0.32.4 numpy==2.4.6
pip --no-deps mlx-vlm==0.7.10 2>/dev/null # the module needs none of its requirements, which are 1 GB
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import sys
import types
from importlib.metadata import distribution

import mlx.core as mx

found = distribution("mlx-vlm")
package = types.ModuleType("mlx_vlm")  # what the package itself imports is not installed
package.__path__ = [str(found.locate_file("mlx_vlm"))]
sys.modules["mlx_vlm"] = package
from mlx_vlm.apc import APCManager  # noqa: E402

BLOCK, PROMPT, POOL = 16, 10, 12


def prompt(blocks, number):
    return [1000 * number + at for at in range(blocks * BLOCK)]


def store(cache, tokens):
    keys = [mx.zeros((1, 1, len(tokens), 8)) for _ in range(2)]
    cache.release(cache.store_kv_blocks(tokens, keys, keys))


def found_blocks(cache, tokens):
    blocks, matched = cache.lookup_prefix(tokens)
    cache.release(blocks)
    return matched // BLOCK


print("mlx-vlm", found.version, "mlx", distribution("mlx").version)
print(f"expected: a pool of {POOL} blocks has nine of a prompt of ten behind {POOL - PROMPT + 1} other blocks, and the first of them hit\n")
print("other blocks   used again before   blocks of the prompt in the pool   hit")
seen = {}
for again in (False, True):
    for others in (2, 3, 4, 8):
        cache = APCManager(num_blocks=POOL, block_size=BLOCK)
        tokens = prompt(PROMPT, 1)
        store(cache, tokens)
        mine = set(cache.hash_table)
        if again:
            assert found_blocks(cache, tokens) == PROMPT
        for number in range(others):
            store(cache, prompt(1, 2 + number))
        seen[again, others] = len(mine & set(cache.hash_table)), found_blocks(cache, tokens)
        print(f"{others:<15}{again!s:20}{seen[again, others][0]:<35}{seen[again, others][1]}")
if any(seen[again, others] != ((10, 10) if others == 2 else (12 - others, 0)) for again, others in seen):
    raise SystemExit(f"changed: {seen}")
print("\nseen: the first block goes first, and the others can no longer be found")
PYTHON
