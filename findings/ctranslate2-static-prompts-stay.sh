#!/usr/bin/env bash
# CTranslate2 keeps the states of every static prompt that it was ever given, without a bound and with no call that clears them.
#
# Package     ctranslate2 4.8.5, transformers 5.24.0, torch 2.13.0
# Surprise    `static_prompt` is the prefix that the prompts of a call share, and `cache_static_prompt`, which is on unless it is switched off,
#             keeps its states "for future runs using the same static prompt". They are kept for all other static prompts as well, one after
#             another: there is no number or size of entries, none is evicted, and no method empties the cache. A system prompt with a date,
#             a user's name or a document in it makes each call leave its whole KV cache behind.
# Who         Servers and evaluations with a prefix for each user or document: memory grows with the number of different prefixes.
# Documented  That the state is cached, yes; that nothing ever leaves, no.
# Upstream    No report known.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check ctranslate2==4.8.5 transformers==5.24.0
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 PYTHONPATH=$lib PYTHONDONTWRITEBYTECODE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

from tiny_llama import generator, names

LENGTH, MANY, LITTLE = 180, 400, 12


def memory():
    """MiB that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4 // 1024


def grown(prefixes, keep):
    """Ask behind each prefix once; return by how many MiB this process has grown."""
    before = memory()
    for prefix in prefixes:
        generator.generate_batch([["t1"]], static_prompt=prefix, cache_static_prompt=keep, max_length=1, end_token=[])
    return memory() - before


def prefix(user):
    return [names[user // 61**digit % 61] for digit in range(3)] * (LENGTH // 3)


print("ctranslate2", version("ctranslate2"))
print(f"expected: the memory for kept prefixes of {LENGTH} tokens has a bound\n")
grown([prefix(user) for user in range(50)], keep=False)  # what the first calls allocate
rows = [
    ("one prefix, kept", grown([prefix(0)] * MANY, keep=True)),
    (f"{MANY} prefixes, not kept", grown([prefix(1 + user) for user in range(MANY)], keep=False)),
    (f"{MANY} prefixes, kept", grown([prefix(1 + user) for user in range(MANY)], keep=True)),
    (f"{MANY} other prefixes, kept", grown([prefix(1 + MANY + user) for user in range(MANY)], keep=True)),
    ("the first of them again", grown([prefix(1 + user) for user in range(MANY)], keep=True)),
]
for what, size in rows:
    print(f"{what:28}{size:4} MiB")
small, kept = [rows[at][1] for at in (0, 1, 4)], [rows[at][1] for at in (2, 3)]
if max(small) > LITTLE or min(kept) < 3 * LITTLE:
    raise SystemExit(f"changed: {rows}")
print("\nseen: each new prefix stays")
PYTHON
