#!/usr/bin/env bash
# vllm-mlx resumes a prompt from a short prompt that is kept whole, and never looks at a longer beginning that it shares with another.
#
# Package     vllm-mlx 0.6.0 (its memory-aware prefix cache, the default, under its scheduler of continuous batching), mlx-lm 0.31.3, mlx 0.32.4
# Surprise    The cache keeps whole texts, prompt and answer, and of a text that goes on otherwise it can use the beginning. But it asks first
#             whether any kept text is the beginning of the prompt, and takes the longest such; the longest common beginning is looked for only
#             where there is none (memory_cache.py, `fetch`). In a conversation there is always one, the turn before. So a document that came
#             with the second turn is computed again with each other question or edited second turn, as long as the first turn is kept: 1,020
#             tokens, where a conversation that begins with the document computes 20. A cache that holds more hits less, and says "hit".
# Who         Conversations in which a turn is edited, retried or branched; agents that try several continuations. Measured hit rates, which
#             depend on how the document was brought in.
# Documented  No; `fetch` "searches for exact matches, prefix matches, supersequence matches, and longest-common-prefix (LCP) matches".
# Upstream    No report known. rapid-mlx 0.16.10, which has a cache of the same name and layout, compares the two lengths.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$(cd "$(dirname "$0")" && pwd)
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.31.3 psutil==7.2.2
pip --no-deps vllm-mlx==0.6.0 2>/dev/null # the scheduler of text needs no more of its requirements
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 PYTHONPATH=$here/lib "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

from mlx_scheduler import ask, scheduler, words

LENGTH = 8
greeting, document, question, other = words(1, 150), words(2, 1000), words(3, 20), words(5, 20)


def kept(engine, prompt):
    """Ask a prompt, and return it with its answer, as the next turn begins."""
    return prompt + ask(engine, prompt, LENGTH)[1]


def of_the_other(engine, start):
    """Ask about the document, then another question about it; return what is read of the second, and whether its answer is right."""
    ask(engine, start + document + question, LENGTH)
    prompt = start + document + other
    read, answer = ask(engine, prompt, LENGTH)
    return read, answer == ask(scheduler(enable_prefix_cache=False), prompt, LENGTH)[1]


print("vllm-mlx", version("vllm-mlx"), "mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: of another question about a document that was just read, its 20 tokens are read\n")
print("in front of the document                        kept as a text of its own   read   answer")
alone, conversation, forgotten = (scheduler() for _ in range(3))
turn = kept(conversation, greeting)
seen = {("nothing", "-"): of_the_other(alone, []), ("a turn of 150 tokens and its answer", "no"): of_the_other(forgotten, turn),
        ("a turn of 150 tokens and its answer", "yes"): of_the_other(conversation, turn)}
for (front, whole), (read, right) in seen.items():
    print(f"{front:48}{whole:28}{read:<7}{'right' if right else 'wrong'}")
statistics = conversation.get_stats()["memory_aware_cache"]
print(f"\nthe last conversation's cache: {statistics['hits']} hits of {statistics['hits'] + statistics['misses']} requests")
if list(seen.values()) != [(20, True), (20, True), (1020, True)] or statistics["hits"] != 2:
    raise SystemExit(f"changed: {list(seen.values())}, {statistics}")
print("seen: the document is read again because the turn in front of it is kept as well")
PYTHON
