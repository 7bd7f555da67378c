#!/usr/bin/env bash
# The cache-aware routers of vLLM and SGLang send everything that comes one at a time to one worker, and leave the other caches empty.
#
# Package     vllm-router 0.1.17 and sglang-router 0.3.2, policy `cache_aware` (their default)
# Surprise    A prompt that matches nothing goes to "the worker with the smallest tree", says the docstring of both: caches fill evenly.
#             It goes to a worker with the fewest requests in flight, and of several idle ones always to the same. A client that waits
#             for each answer (an evaluation with one request at a time, a nightly job) uses one cache of three, whatever it asks;
#             twelve unrelated prompts at once are spread four to each.
# Who         Whoever measures the hit rate of a fleet with a slow client, or fills its caches beforehand: one worker's cache overflows,
#             and the measured rate is that of a third of the memory.
# Documented  Otherwise: `cache_threshold` in `router.py` of both packages.
# Upstream    sgl-project/sglang#32983, mended for SGLang's router by pull request #33138, later than 0.3.2; vllm-project/router pull
#             request #198 mentions the same.
set -euo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check vllm-router==0.1.17 sglang-router==0.3.2
cd "$work"
HOME=$work PYTHONPATH=$lib "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import random, sys, threading
from collections import Counter
from importlib.metadata import distribution

from router import post, routed

rng = random.Random(0)


def unrelated(suffix=""):
    return {"model": "m", "prompt": "".join(rng.choice("abcdefgh ") for _ in range(600)) + suffix, "max_tokens": 1}


print("expected: twelve unrelated prompts fill the caches of three workers alike, however fast they come\n")
print(f"{'router':24}{'one at a time':36}twelve at once")
changed = []
for package, name in (("vllm_router", "vllm-router"), ("sglang_router", "sglang-router")):
    found = distribution(name)
    says = "smallest" in found.locate_file(f"{package}/router.py").read_text()
    with routed(package, "--policy", "cache_aware") as (port, workers):
        slowly = [workers[post(port, "/v1/completions", unrelated())["worker"]] for _ in range(12)]
        at_once = []
        threads = [threading.Thread(target=lambda: at_once.append(workers[post(port, "/v1/completions", unrelated("wait"))["worker"]])) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spread = dict(sorted(Counter(at_once).items()))
    print(f"{name + ' ' + found.version:24}{' '.join(slowly):36}{spread}")
    if len(set(slowly)) != 1 or len(spread) != 3 or not says:
        changed.append(name)
if changed:
    raise SystemExit(f"changed: {', '.join(changed)} no longer keeps to one worker, or its docstring no longer names the smallest tree")
print("\nseen: one worker has all of them, though all are idle each time")
PYTHON
