#!/usr/bin/env bash
# A tokenizer that was called with truncation is saved with it: transformers reads the file and forgets it, whoever reads it otherwise cuts.
#
# Package     transformers 5.23.0, tokenizers 0.23.3
# Surprise    `tokenizer(text, truncation=True, max_length=64, padding="max_length")` looks like a matter of one call. It sets truncation and
#             padding in the tokenizer behind it, and `save_pretrained` writes them into tokenizer.json. transformers sets both anew in each
#             call, so a model that was saved by whoever evaluated or trained it is right for every user of transformers, and for vLLM. What
#             reads tokenizer.json by the tokenizers library itself cuts each prompt to 64 tokens, and fills each shorter one, without a word.
# Who         Fleets whose router or index makes tokens of prompts with the tokenizers library, in front of engines that use transformers:
#             block keys of 64 tokens at most, of which the last are padding where a prompt is shorter: longer prefixes are never found,
#             and prompts that begin alike are one. Counts of tokens by the same file are wrong too.
# Documented  Of the file, that it holds truncation and padding; of `save_pretrained` or a call, no.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
from importlib.metadata import version

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
saver = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w99", model_max_length=4096)
system = " ".join(f"w{2 + number % 80}" for number in range(100))
prompts = {"one of 3 tokens": "w2 w3 w4", "one of 120": system + " w5" * 20, "another of 120": system + " w6" * 20}


def lengths(tokens):
    return [len(ids) for ids in tokens], tokens[1] == tokens[2]


print("transformers", version("transformers"), "tokenizers", version("tokenizers"))
print("expected: the same tokens from one folder, whoever reads it and whatever was called before it was saved\n")
print("called before it was saved             truncation in the file   read by        tokens of three prompts   the two of 120")
seen = []
for call, options in (("nothing", None), ("truncation=True, max_length=64, padded ", {"truncation": True, "max_length": 64, "padding": "max_length"}), ("a call without either", {})):
    if options is not None:
        saver(prompts["one of 120"], **options)
    saver.save_pretrained("model")
    kept = json.load(open("model/tokenizer.json"))["truncation"]
    readers = {"transformers": lambda text, load=AutoTokenizer.from_pretrained("model"): load(text)["input_ids"],
               "tokenizers": lambda text, load=Tokenizer.from_file("model/tokenizer.json"): load.encode(text).ids}
    for name, read in readers.items():
        counts, equal = lengths([read(text) for text in prompts.values()])
        seen.append((kept and kept["max_length"], name, counts, equal))
        print(f"{call:39}{kept['max_length'] if kept else '-':<25}{name:15}{', '.join(map(str, counts)):26}{'equal' if equal else 'differ'}")
right, cut = ([3, 120, 120], False), ([64, 64, 64], True)
expected = [(None, "transformers", *right), (None, "tokenizers", *right), (64, "transformers", *right), (64, "tokenizers", *cut), (None, "transformers", *right), (None, "tokenizers", *right)]
if seen != expected:
    raise SystemExit(f"changed: {seen}")
print("\nseen: the options of the last call before saving are the file's, and transformers alone does not heed them")
PYTHON
