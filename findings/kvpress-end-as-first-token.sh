#!/usr/bin/env bash
# An answer of kvpress's pipeline does not end where the model ends it at once: the first token is not compared with the end of a sequence.
#
# Package     kvpress 0.5.5, transformers 5.2.0, torch 2.13.0 (a Llama of two layers with random weights)
# Surprise    The pipeline "kv-press-text-generation", by which kvpress's own evaluation asks, ends an answer at the tokens that the model's
#             generation config names as its end, from the second token on. If the first token is one of them, the pipeline goes on behind it
#             as if nothing were, and the text has no sign of it, as special tokens are skipped. `generate` of the same model gives an
#             empty answer.
# Who         Scores of compressed caches: a compression that makes the model say nothing is given up to `max_new_tokens` of text to be
#             scored, and the uncompressed baseline the same.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip transformers==5.2.0 kvpress==0.5.5
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import kvpress  # noqa: F401  registers the pipeline
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, pipeline

torch.set_num_threads(1)
torch.manual_seed(0)
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(200)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w0", pad_token="w0")
config = LlamaConfig(vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                     head_dim=32, pad_token_id=0, bos_token_id=0, eos_token_id=199)
model = LlamaForCausalLM(config).eval()
for weight in model.parameters():
    if weight.dim() >= 2:
        torch.nn.init.normal_(weight, 0, 0.15)
ask = pipeline("kv-press-text-generation", model=model, tokenizer=tokenizer)
context, question = (" ".join(f"w{number}" for number in torch.randint(1, 199, (length,)).tolist()) for length in (60, 5))
prompt = tokenizer.encode("w0 " + context + " " + question, add_special_tokens=False)


def pipeline_says():
    return ask(" " + context + " ", question=question, max_new_tokens=8)["answer"].split()


def generate_says():
    given = torch.tensor([prompt])
    answer = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
    return tokenizer.decode(answer).split()


print("kvpress", version("kvpress"), "transformers", version("transformers"))
print("expected: the answer ends with the first token that ends a sequence, wherever it is\n")
whole = pipeline_says()
assert whole == generate_says()
print("what ends a sequence        generate                  pipeline")
seen = {}
for name, at in (("none of the tokens", None), ("the third token", 2), ("the second token", 1), ("the first token", 0)):
    model.generation_config.eos_token_id = [199] if at is None else [199, tokenizer.convert_tokens_to_ids(whole[at])]
    seen[name] = generate_says(), pipeline_says()
    print(f"{name:28}{len(seen[name][0])} tokens                  {len(seen[name][1])} tokens")
lengths = [(len(one), len(other)) for one, other in seen.values()]
if lengths != [(8, 8), (3, 3), (2, 2), (1, 8)]:
    raise SystemExit(f"changed: {lengths}")
print("\nseen: an end that comes first is passed over")
PYTHON
