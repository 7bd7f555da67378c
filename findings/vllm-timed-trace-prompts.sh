#!/usr/bin/env bash
# vLLM's benchmark replays a trace with other prompts in each run: the seed of a block's tokens is Python's `hash()` of a string.
#
# Package     vllm 0.33.0 (its Python part: `vllm.benchmarks.datasets.datasets`, what `vllm bench serve --dataset-name timed_trace` asks)
# Surprise    The tokens of a trace's block are drawn from a "deterministic seed", `hash(f"{hash_id}:{size}")` (datasets.py, `_expand_prompt`).
#             Python salts the hash of a string in each process, so two runs on one trace have no block in common. `--seed`, which other
#             datasets of the benchmark obey, changes nothing here; PYTHONHASHSEED, which no option or message names, decides.
# Who         Whoever replays a trace twice to measure a warm cache, an offload tier or a store that outlives the engine (nothing hits), who
#             replays it by several clients at once (they share nothing), and who repeats a run to compare two engines (other prompts).
# Documented  No; a comment in the code says "deterministic".
# Upstream    No report known for vLLM. Another replayer had the same and was mended: callanjfox/kv-cache-tester#11.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/vllm.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vllm_without_libraries "$work" vllm==0.33.0
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps einops==0.8.2
cd "$work"
cat >prompts.py <<'PYTHON'
import contextlib, json, sys

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from vllm.benchmarks.datasets.datasets import add_dataset_parser, get_samples
from vllm.utils.argparse_utils import FlexibleArgumentParser

words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(5000)}, unk_token="w0"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
parser = FlexibleArgumentParser()
add_dataset_parser(parser)
found = []
with contextlib.redirect_stdout(sys.stderr):
    for seed in "0", "1":
        options = ["--dataset-name", "timed_trace", "--dataset-path", "trace.jsonl", "--num-prompts", "2", "--seed", seed]
        found.append([request.prompt for request in get_samples(parser.parse_args(options), tokenizer)])
print(json.dumps(found))
PYTHON
python() { HOME=$work HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=WARNING VLLM_NO_USAGE_STATS=1 PYTHONPATH=$work/src "$work/venv/bin/python" "$@" 2>>"$work/log"; }
cat >trace.jsonl <<'JSON'
{"timestamp": 0, "input_length": 64, "output_length": 8, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 1, "input_length": 64, "output_length": 8, "hash_ids": [0, 1, 2, 4]}
JSON
for run in 1 2; do
    python prompts.py >"unset$run" || { tail -5 "$work/log" >&2; exit 1; }
    PYTHONHASHSEED=0 python prompts.py >"set$run" || { tail -5 "$work/log" >&2; exit 1; }
done
python - <<'PYTHON'
import json
from importlib.metadata import version
from pathlib import Path


def shared(one, other):
    """Count the tokens that two prompts share in front."""
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), len(one))


print("vllm", version("vllm"))
print("expected: one trace and one seed give one list of prompts; here each has 64 tokens, of which the second shares 48 with the first\n")
print("PYTHONHASHSEED   within a run   two runs   two seeds of one run")
seen = {}
for name, label in (("unset", "not set"), ("set", "0")):
    one, other = (json.loads(Path(f"{name}{run}").read_text()) for run in (1, 2))
    seen[name] = shared(*one[0]), shared(one[0][0], other[0][0]), shared(one[0][0], one[1][0])
    print(f"{label:17}{seen[name][0]:<15}{seen[name][1]:<11}{seen[name][2]}")
if seen["unset"] != (48, seen["unset"][1], 64) or seen["unset"][1] > 3 or seen["set"] != (48, 64, 64):
    raise SystemExit(f"changed: {seen}")
print("\nseen: tokens that are shared in front; a second run of the trace shares nothing, whatever the seed is")
PYTHON
