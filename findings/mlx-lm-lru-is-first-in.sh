#!/usr/bin/env bash
# mlx-lm's `LRUPromptCache` does not see uses: a prompt that is hit between any two others is evicted as soon as one that is never read.
#
# Package     mlx-lm 0.32.2 (its module `models.cache`), mlx 0.32.4
# Surprise    The class that keeps prompts for mlx-lm's server is named for the least recently used. `fetch_nearest_cache` gives a copy of what
#             it found and leaves the order as it is; only an insertion of the same tokens renews an entry. What is evicted is what was
#             inserted first, within a type. For attention that is hidden in part, as an answer is inserted again with its whole
#             conversation, in front of which the shorter entry is dropped. A prefix of a model with states is an entry of its own that
#             many conversations go on from and nobody inserts again.
# Who         Servers whose prompts have a prefix in common, above all of hybrid models: it is computed anew after `max_size` (10) other
#             insertions, however often it is hit. With `cache_type="system"` it stays as long as there are others to evict.
# Documented  By its name.
# Upstream    ml-explore/mlx-lm issue #1495 (closed, as not essential).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip mlx==0.32.4 mlx-cpu==0.32.4
pip --no-deps mlx-lm==0.32.2 2>/dev/null # the module needs none of its requirements
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import sys
import types
from importlib.metadata import distribution

import mlx.core as mx

found = distribution("mlx-lm")
package = types.ModuleType("mlx_lm")  # what the package itself imports is not installed
package.__path__ = [str(found.locate_file("mlx_lm"))]
sys.modules["mlx_lm"] = package
from mlx_lm.models.cache import ArraysCache, KVCache, LRUPromptCache  # noqa: E402

SIZE, PREFIX = 4, list(range(100))


def layers(states, tokens):
    """A model's cache of so many tokens: one layer of attention, and one with a state if it is a hybrid."""
    attention = KVCache()
    keys = mx.zeros((1, 1, tokens, 8))
    attention.update_and_fetch(keys, keys)
    if not states:
        return [attention]
    recurrent = ArraysCache(size=1)
    recurrent[0] = mx.zeros((1, 8))
    return [attention, recurrent]


def hits(states, kind, touched):
    """Whether each of ten prompts found the prefix, with another prompt that is never read inserted in front of each."""
    cache = LRUPromptCache(max_size=SIZE)
    cache.insert_cache("model", PREFIX, layers(states, len(PREFIX)), cache_type=kind)
    answers = []
    for number in range(10):
        other = [1000 + number] * 20
        cache.insert_cache("model", other, layers(states, len(other)))
        kept, _ = cache.fetch_nearest_cache("model", [*PREFIX, 500 + number])
        answers.append(kept is not None)
        if touched and kept is not None:
            cache.insert_cache("model", PREFIX, kept, cache_type=kind)
    return answers


print("mlx-lm", found.version, "mlx", distribution("mlx").version)
print(f"expected: in a cache of {SIZE} entries, a prefix that is hit after each other insertion is never the least recently used\n")
print("model       type        inserted again   hits of ten prompts")
seen = {}
for states in (False, True):
    for kind, touched in (("assistant", False), ("assistant", True), ("system", False)):
        seen[states, kind, touched] = hits(states, kind, touched)
        marks = " ".join("hit" if one else "-" for one in seen[states, kind, touched])
        print(f"{'hybrid' if states else 'attention':12}{kind:12}{touched!s:17}{marks}")
first_in = [True] * (SIZE - 1) + [False] * (10 - SIZE + 1)
if any(row != (first_in if kind == "assistant" and not touched else [True] * 10) for (_, kind, touched), row in seen.items()):
    raise SystemExit(f"changed: {seen}")
print("\nseen: the prefix goes when it was inserted first, whatever its hits")
PYTHON
