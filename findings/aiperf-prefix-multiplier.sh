#!/usr/bin/env bash
# AIPerf's prefix-length multiplier of 1.5 lengthens a trace's prompts by blocks that no two of them share: the hit rate falls, to rise again at 2.
#
# Package     aiperf 0.13.0 (its trace synthesizer and its trace analyzer)
# Surprise    `prefix_len_multiplier` (`--synthesis-prefix-len-multiplier`) is to stretch the shared prefixes of a trace. The whole part of
#             the factor does: each shared block becomes so many. The fraction is made up by new blocks that are new in every request, so
#             with 1.5 not a token more is shared, prompts are longer, and the hit rate that the package's own analyzer reports falls below
#             that of the original trace. And a trace in which a whole prompt is repeated cannot be synthesized at all unless its length is a
#             multiple of the block size, with any factors: the last, partial block is counted as a full one (ValueError).
# Who         Whoever studies hit rates by the length of prefixes: the curve has teeth, and its steps are the generator's.
# Documented  No: "Multiplier for core prefix branch lengths".
# Upstream    No report known; ai-dynamo/dynamo pull request #6117 repaired another fault of this option in the tool that it comes from.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
pip numpy==2.4.6 orjson==3.13.0 pydantic==2.14.4 pydantic-settings==2.16.3 ruamel.yaml==0.19.1 jinja2==3.1.6 pyyaml==6.0.4 cyclopts==5.5.2 \
    msgspec==0.23.0 aiohttp==3.14.5 aiofiles==25.1.0 psutil==7.2.2
pip --no-deps aiperf==0.13.0 2>/dev/null # what the two modules import is installed above; the rest of its requirements is 500 MB
cd "$work"
HOME=$work "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

from aiperf.common import random_generator
from aiperf.dataset.synthesis.models import SynthesisParams
from aiperf.dataset.synthesis.prefix_analyzer import PrefixAnalyzer
from aiperf.dataset.synthesis.synthesizer import Synthesizer

random_generator.init(0)
BLOCK, GROUPS, EACH, SHARED, OWN = 512, 20, 10, 4, 2


def trace():
    """20 system prompts of 4 blocks, each in front of 10 prompts of 2 blocks of their own."""
    blocks = iter(range(10**6))
    for _ in range(GROUPS):
        prefix = [next(blocks) for _ in range(SHARED)]
        for _ in range(EACH):
            yield {"input_length": (SHARED + OWN) * BLOCK, "output_length": 8, "hash_ids": prefix + [next(blocks) for _ in range(OWN)]}


def synthesized(requests, factor):
    return Synthesizer(SynthesisParams(prefix_len_multiplier=factor, block_size=BLOCK)).synthesize_traces(requests)


print("aiperf", version("aiperf"))
print("expected: the hit rate does not fall where shared prefixes are made longer\n")
print("factor   blocks of a prompt   shared with the one before   hit rate by the analyzer")
seen = {}
for factor in (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0):
    requests = synthesized(list(trace()), factor)
    first, second = (request["hash_ids"] for request in requests[:2])
    rate = PrefixAnalyzer(BLOCK).analyze_traces(requests).cache_hit_rate
    seen[factor] = len(second), len(set(first) & set(second)), round(rate, 2)
    print(f"{factor:<9}{seen[factor][0]:<21}{seen[factor][1]:<29}{rate:.2f}")
repeats = {}
for tokens in (2 * BLOCK, BLOCK + 188):
    try:
        repeats[tokens] = len(synthesized([{"input_length": tokens, "output_length": 8, "hash_ids": [1, 2]}] * 2, 1.0))
    except ValueError as error:
        repeats[tokens] = str(error)
    print(f"{'' if tokens % BLOCK else chr(10)}one prompt of {tokens} tokens, twice, factor 1: {repeats[tokens]}")
shared = {factor: row[1] for factor, row in seen.items()}
rates = [row[2] for row in seen.values()]
facts = [shared == {1.0: 4, 1.25: 4, 1.5: 4, 1.75: 4, 2.0: 8, 2.5: 8, 3.0: 12}, rates[0] > rates[1] > rates[2] > rates[3] < rates[4] > rates[5] < rates[6],
         repeats[2 * BLOCK] == 2, "fewer tokens" in str(repeats[BLOCK + 188])]
if not all(facts):
    raise SystemExit(f"changed: {facts} {seen} {repeats}")
print("\nseen: a fraction adds blocks that nobody shares")
PYTHON
