#!/usr/bin/env bash
# What mlx-lm calls the state of a cache is the cache at work: kept as a snapshot it holds for attention and changes under windows and states.
#
# Package     mlx-lm 0.32.2, mlx 0.32.4
# Surprise    `cache.state`, what is saved to a file and what `from_state` makes a cache of, gives the arrays and lists themselves, and
#             caches write into them. As a snapshot it holds as long as attention grows, which is what one tries. It changes with the next
#             token of a full window (but not with four tokens at once, which make new arrays), with tokens that follow a `trim`, and at
#             every step of a recurrent layer, whose state is the list it works on. `from_state` copies nothing either, so two requests
#             that go on from one snapshot of a recurrent layer go on from each other.
# Who         Whoever keeps prefixes for mlx-lm by `state` instead of `copy.deepcopy`: right on an attention-only model, silently wrong
#             on windows and hybrids.
# Documented  No; the library's own `LRUPromptCache` copies.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache


def feed(cache, *tokens):
    """One call of a layer with these tokens; what attention keeps of a token is its number."""
    if isinstance(cache, ArraysCache):
        cache[0] = mx.array([float(sum(tokens))]) + (0 if cache[0] is None else cache[0])  # a state that sums what it has read
    else:
        keys = mx.array(tokens, dtype=mx.float32).reshape(1, 1, -1, 1)
        cache.update_and_fetch(keys, keys)
    return cache


def content(state):
    """What a state says: the last numbers that attention keeps in front of its offset, or the sum of a recurrent layer."""
    if isinstance(state[0], list):
        return state[0][0].tolist()
    return state[0][0, 0, : state[2], 0].tolist()[-8:]


def grown(cache):
    feed(cache, 20, 21)


def trimmed(cache):
    cache.trim(2)
    feed(cache, 50, 51)


print("mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: what was read from `state` stays what it was when it was read\n")
ten, eight = range(1, 11), range(1, 9)
rows = [
    ("attention", "two more tokens", feed(KVCache(), *ten), grown, True),
    ("attention", "two trimmed, two others", feed(KVCache(), *ten), trimmed, False),
    ("full window of 8", "four tokens at once", feed(RotatingKVCache(max_size=8), *eight), lambda c: feed(c, 20, 21, 22, 23), True),
    ("full window of 8", "one token", feed(RotatingKVCache(max_size=8), *eight), lambda c: feed(c, 20), False),
    ("recurrent", "one token", feed(ArraysCache(size=1), *ten), lambda c: feed(c, 20), False),
]
changed = []
for layer, then, cache, act, holds in rows:
    snapshot = cache.state
    before = content(snapshot)
    act(cache)
    after = content(snapshot)
    print(f"{layer:18}{then:26}{'holds' if before == after else f'{before} became {after}'}")
    if (before == after) != holds:
        changed.append(f"{layer}, {then}")
cache = feed(ArraysCache(size=1), *ten)
one, two = ArraysCache.from_state(cache.state), ArraysCache.from_state(cache.state)
feed(one, 100)
print(f"{'recurrent':18}{'two caches from_state':26}the first reads 100, and the second's state is {content(two.state)}, not {[55.0]}")
if changed or content(two.state) != [155.0]:
    raise SystemExit(f"changed: {changed or 'from_state copies now'}")
print("\nseen: the snapshot of an attention layer that grows is the only one that holds however the tokens come")
PYTHON
