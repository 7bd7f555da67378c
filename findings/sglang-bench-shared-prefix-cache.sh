#!/usr/bin/env bash
# SGLang's benchmark of shared prefixes keeps its prompts in a file named after the tokenizer's class, and serves them to other models.
#
# Package     sglang 0.5.23 (`--dataset-name generated-shared-prefix`; its Python files, transformers 5.23.0)
# Surprise    The prompts are kept in ~/.cache/sglang/benchmark under the seed, the sizes and `tokenizer.__class__.__name__`. That class
#             is one for whole families of models, so the next model is sent the last one's prompts: as text of other lengths, and with
#             `--tokenize-prompt` as ids of another vocabulary, some beyond its end. The seed names the file and seeds nothing: two
#             machines with the same seed have other prompts, and after the first run `--seed` of the caller has no effect either.
# Who         Whoever measures hit rates with it: lengths, and with them the number of full blocks in a prefix, are not the ones asked
#             for, and a cold run is not cold where an earlier run sent the same prompts.
# Documented  No; a line is printed ("Loading cached generated input data from ...").
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip "$@" -qq --disable-pip-version-check; }
pip install transformers==5.23.0 numpy==2.4.6 tqdm==4.70.1
pip download --no-deps --only-binary :all: --dest "$work/wheel" sglang==0.5.23
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import contextlib, io, pathlib, random, sys, types, zipfile

import numpy
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

with zipfile.ZipFile(next(pathlib.Path("wheel").glob("*.whl"))) as wheel:  # two plain files of it; the package itself wants a GPU's stack
    wheel.extractall("src", [n for n in wheel.namelist() if n.startswith("sglang/benchmark/datasets/") and n.endswith(".py")])
for name in ("sglang", "sglang.benchmark", "sglang.benchmark.datasets"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [str(pathlib.Path("src", *name.split(".")))]
from sglang.benchmark.datasets.generated_shared_prefix import sample_generated_shared_prefix_requests as sample


def tokenizer(name, words):
    """A model's tokenizer as it is loaded: from a folder, by AutoTokenizer."""
    plain = Tokenizer(models.WordLevel({f"{name}{n}": n for n in range(words)}, unk_token=f"{name}0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, unk_token=f"{name}0").save_pretrained(name)
    return AutoTokenizer.from_pretrained(name)


large, small = tokenizer("large", 5000), tokenizer("small", 300)


def prompts(tokenizer, seed, ids=False, caller=0):
    random.seed(caller)  # what the benchmark's own main does with --seed
    numpy.random.seed(caller)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        rows = sample(num_groups=2, prompts_per_group=3, system_prompt_len=64, question_len=8, output_len=4, range_ratio=1, tokenizer=tokenizer,
                      seed=seed, ordered=True, input_ids=ids)
    return [row.prompt for row in rows], "Loading cached" in printed.getvalue()


print("sglang 0.5.23")
print(f"the tokenizers are a {type(large).__name__} of {len(large)} tokens and a {type(small).__name__} of {len(small)}")
print("expected: each model gets prompts of its own vocabulary, and a seed says which\n")
text_large, _ = prompts(large, seed=1)
text_small, from_file = prompts(small, seed=1)
ids_large, _ = prompts(large, seed=1, ids=True)
ids_small, ids_from_file = prompts(small, seed=1, ids=True)
beyond = sum(token >= len(small) for token in ids_small[0])
print(f"text for the large model   {text_large[0][:40]}...")
print(f"text for the small model   {text_small[0][:40]}...   from the file: {from_file}")
print(f"ids for the small model    {beyond} of {len(ids_small[0])} lie beyond its vocabulary   from the file: {ids_from_file}")
one, _ = prompts(large, seed=2, caller=7)
other, _ = prompts(large, seed=3, caller=7)
pathlib.Path(".cache").rename("another-machine")
elsewhere, _ = prompts(large, seed=2, caller=8)
print(f"seeds 2 and 3 give the same prompts: {one == other}; seed 2 on a machine with an empty folder: {one == elsewhere}")
facts = [type(large) is type(small), from_file, text_small == text_large, ids_from_file, beyond > 0, one == other, one != elsewhere]
if not all(facts):
    raise SystemExit(f"changed: {facts}")
print("\nseen: the small model is sent the large one's prompts, and `seed` decides which file is read, not what is in it")
PYTHON
