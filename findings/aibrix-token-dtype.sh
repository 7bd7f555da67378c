#!/usr/bin/env bash
# Two token lists that AIBrix calls equal have other hashes and other keys if one came from a numpy array of the default type.
#
# Package     aibrix-kvcache 0.8.0, numpy, torch 2.13.0
# Surprise    `TokenListView` of a list makes int32 of it; one of an array, and `from_numpy`, keep the array's type, which is int64 for
#             `np.array([1, 2])` on Linux. Equality compares numbers, hash and keys the bytes. So the two are equal and hash apart, against
#             Python's rule: a dictionary does not find one by the other, and the first tier, which is one, misses what it holds. The keys
#             of the second tier differ too, by each of its ways to build them. Nothing raises.
# Who         Authors of connectors that take tokens from numpy or a tensor on one side and from a list on the other: no hit, and no error.
# Documented  No.
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

import numpy as np
from aibrix_kvcache.cache_hashable import KVCacheKey, TokenListView
from aibrix_kvcache.l2.key_builders import KeyBuilder

tokens = [11, 12, 13, 14]
made = {
    "a list": TokenListView(tokens),
    "an int32 array": TokenListView.from_numpy(np.array(tokens, dtype=np.int32)),
    "an array": TokenListView.from_numpy(np.array(tokens)),
}
print("aibrix-kvcache", version("aibrix-kvcache"), "numpy", version("numpy"))
print("expected: what is equal has one hash and one key\n")
listed = made["a list"]
held = {KVCacheKey(None, listed): "a block"}
builders = [KeyBuilder.create(name, block_size=4) for name in ("RAW", "ROLLING_HASH", "SIMPLE_HASH")]
keys = [builder.build(None, listed)[0][1] for builder in builders]
found = []
for name, view in made.items():
    same = [builder.build(None, view)[0][1] == key for builder, key in zip(builders, keys)]
    found.append((view == listed, hash(view) == hash(listed), KVCacheKey(None, view) in held, *same))
    print(f"{name:16}equal {found[-1][0]!s:6}same hash {found[-1][1]!s:6}found {found[-1][2]!s:6}same keys (raw, rolling, simple) {same}")
if found != [(True,) * 6, (True,) * 6, (True, *[False] * 5)]:
    raise SystemExit(f"changed: {found}")
print("\nseen: the tokens of an array of numpy's default type are equal, and a miss")
PYTHON
