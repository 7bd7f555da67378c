#!/usr/bin/env bash
# A prompt that vllm-mlx's scheduler is asked again is computed as a whole and counted as saved, or answered from a state that has read its last token twice.
#
# Package     vllm-mlx 0.6.0 (its scheduler of continuous batching), mlx-lm 0.31.3, mlx 0.32.4
# Surprise    A hit that leaves nothing to compute has no logits to go on from, so the last token must be computed again, in front of itself.
#             With the default cache the scheduler gives such a hit up ("prefilling to avoid duplicating the last token"), though it could cut
#             one token as it does for a prompt that ends otherwise: the prompt that changes its last token costs one token, the same prompt
#             all 300, and so does the front of a prompt that is kept. The cache's `hits`, `hit_rate` and `tokens_saved` (the gauge
#             `vllm_mlx_cache_tokens_saved`) have counted it by then. With `--no-memory-aware-cache`, and with `--use-paged-cache` if the
#             prompt fills its blocks of 64 tokens, the hit is used: the last token is read behind itself, and the answer is that to a prompt
#             which says it twice.
# Who         Whoever compares cold and cached answers by asking the same prompt again: the default shows equal answers that never came from
#             the cache, and a hit rate of it; the others show wrong ones. Retries, several samples of one prompt, warm-up requests.
# Documented  No; a comment in the source says why the default does so.
# Upstream    waybarrios/vllm-mlx#683 of the default, whose remedy this is; none known of the two others (of another server: lablup/mlxcel issue #1760).
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

from mlx_scheduler import VOCABULARY, ask, scheduler, words

LENGTH = 8
CACHES = {"default": {}, "--no-memory-aware-cache": {"use_memory_aware_cache": False}, "--use-paged-cache": {"use_paged_cache": True}}


def other_end(prompt):
    return [*prompt[:-1], (prompt[-1] + 1) % VOCABULARY]


def again(options, first, second):
    """Return (tokens of the second prompt that are read, tokens that the statistics call saved, which answer it gets)."""
    engine = scheduler(**options)
    ask(engine, first, LENGTH)
    read, answer = ask(engine, second, LENGTH)
    (statistics,) = (value for key, value in engine.get_stats().items() if key.endswith("_cache") and isinstance(value, dict))
    uncached = {name: ask(scheduler(enable_prefix_cache=False), prompt, LENGTH)[1] for name, prompt in
                {"right": second, "that of its last token twice": [*second, second[-1]]}.items()}
    return read, statistics["tokens_saved"], next((name for name, value in uncached.items() if value == answer), "another")


print("vllm-mlx", version("vllm-mlx"), "mlx-lm", version("mlx-lm"), "mlx", version("mlx"))
print("expected: a prompt asked again is answered as without a cache, from one token; where it is computed, nothing is counted as saved\n")
print("cache                     prompt behind one of 320 tokens    length   read   counted as saved   answer")
prompt = words(1, 320)
PROMPTS = {"the same, another last token": other_end(prompt), "the same": prompt, "its first 300 tokens": prompt[:300]}
seen = {}
for cache, options in CACHES.items():
    for name, second in PROMPTS.items():
        seen[cache, name] = again(options, prompt, second)
        read, saved, answer = seen[cache, name]
        print(f"{cache:26}{name:35}{len(second):<9}{read:<7}{saved:<19}{answer}")
TWICE = "that of its last token twice"
EXPECTED = [(1, 319, "right"), (320, 320, "right"), (300, 300, "right"),  # the default
            (320, 0, "right"), (1, 320, TWICE), (1, 300, TWICE),  # --no-memory-aware-cache
            (64, 256, "right"), (1, 320, TWICE), (44, 256, "right")]  # --use-paged-cache
if list(seen.values()) != EXPECTED:
    raise SystemExit(f"changed: {list(seen.values())}")
print("\nseen: a prompt that is known to its end is computed as a whole and counted, or read one token too far")
PYTHON
