#!/usr/bin/env bash
# With suffix decoding, rapid-mlx keeps accepted drafts that were never answered in the cached prefix: the next turn is answered behind them.
#
# Package     rapid-mlx 0.16.10 (its scheduler, with the default prefix cache and `enable_suffix_decoding`), mlx-lm 0.31.3, mlx 0.32.4
# Surprise    A step of suffix decoding reads the last token and guesses, keeps those that are right, and answers the token now and the guesses
#             one by one behind it. Where an answer ends at a guess, the guesses behind it are taken out of the cache, since they would "poison
#             prefix-cache reuse" (scheduler.py, `_suffix_next`). Where it ends at the token in front of the guesses, they stay: the cache
#             goes to the prefix cache under the tokens of prompt and answer, and has up to eight more. Each answer is right; the next turn
#             resumes and is wrong. Which answers it hits depends on how many guesses were right before: here those of 1, 4 and every ninth
#             length, be it `max_tokens` or a stop token that ends them. An answer of one token, as one asks to warm a prefix, is among them.
# Who         Conversations and agents with suffix decoding, which is for texts that repeat; whoever warms a prefix. A test of the two options,
#             each without the other, shows nothing.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$(cd "$(dirname "$0")" && pwd)
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.31.3 psutil==7.2.2 requests==2.34.2
pip --no-deps rapid-mlx==0.16.10 2>/dev/null # the scheduler of text needs no more of its requirements
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 PYTHONPATH=$here/lib "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import mlx.core as mx
import mlx_scheduler
from mlx_scheduler import VOCABULARY, ask, scheduler, words

COUNTED = 90  # behind a smaller token the next number follows, so that guesses are right; what follows others depends on the whole text


class Counting(mlx_scheduler.Model):
    def __call__(self, inputs, *arguments, **options):
        follows = mx.where(inputs < COUNTED, inputs + 1, VOCABULARY)
        return super().__call__(inputs, *arguments, **options) + 1000.0 * (mx.arange(VOCABULARY) == follows[..., None])


def text(seed, length):
    """Return a text of tokens that no number follows."""
    return [COUNTED + 1 + token % (VOCABULARY - COUNTED - 1) for token in words(seed, length)]


mlx_scheduler.model.__class__ = Counting
DRAFTS, UNCACHED = {"enable_suffix_decoding": True}, {"enable_prefix_cache": False}
CASES = {"prefix cache alone": {}, "suffix decoding alone": DRAFTS | UNCACHED, "both": DRAFTS, "both, ended by a token": DRAFTS}
LENGTHS = range(1, 31)
prompt = [*text(1, 60), *range(60), *text(2, 20), 5, 6]


def wrong(name, options):
    """Return the lengths of answer that are wrong, and those behind which the next turn's answer is."""
    first, second = [], []
    for length in LENGTHS:
        right = ask(scheduler(**UNCACHED), prompt, length)[1]
        turn = prompt + right + text(3, 10)
        engine = scheduler(**options)
        limits = (2 * length, [right[-1]]) if "ended" in name else (length,)
        if ask(engine, prompt, *limits)[1] != right:
            first.append(length)
        if ask(engine, turn, 4)[1] != ask(scheduler(**UNCACHED), turn, 4)[1]:
            second.append(length)
    return first, second


print("rapid-mlx", version("rapid-mlx"), "mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print(f"expected: answers of {LENGTHS[0]} to {LENGTHS[-1]} tokens, and those of the turns behind them, are what they are without either\n")
print("                        wrong answers   lengths behind which the next turn's answer is wrong")
seen = {name: wrong(name, options) for name, options in CASES.items()}
for name, (first, second) in seen.items():
    print(f"{name:24}{len(first):<16}{', '.join(map(str, second)) or 'none'}")
if any(seen[name] != ([], []) for name in list(CASES)[:2]) or any(seen[name] != ([], [1, 4, 9, 18, 27]) for name in list(CASES)[2:]):
    raise SystemExit(f"changed: {seen}")
print("\nseen: where an answer ends in front of guesses, the cached text goes on with them")
PYTHON
