#!/usr/bin/env bash
# Inspect's cache of answers does not tell local models apart: what `model_path` names is not in its key, nor any other model argument.
#
# Package     inspect-ai 0.3.285, transformers 5.23.0, torch 2.13.0 (two tiny Llamas with random weights)
# Surprise    A model that lies in a folder is named `hf/local`, and its folder is given as a model argument (`-M model_path=...`). With
#             `cache=True` answers are kept under the model's name, the base URL, the prompt, the generation config and the tools
#             (inspect_ai/model/_cache.py, `_cache_key`; _model.py, where the entry is made of `str(self)`, "hf/local"). So another folder
#             is not asked at all: it gets the first folder's answers, its score, and a log that names its own path. By the source the same
#             holds for `dtype`, `revision`, `attn_implementation` and `chat_template`, which are arguments too.
# Who         Whoever compares two local models, or one model with two caches, precisions, kernels or templates, within a week (the
#             cache's default expiry): they agree in everything.
# Documented  By a list of what is in the key ("Model name and base URL", ...). That folders share a name is not said there, and the page on
#             local models, which has `--model hf/local -M model_path=./my-model`, does not speak of the cache.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }
index=()
[[ -n ${TORCH_INDEX:-} ]] && index=(--extra-index-url "$TORCH_INDEX")
pip "${index[@]}" torch==2.13.0
pip inspect-ai==0.3.285 transformers==5.23.0 accelerate==1.15.0
cd "$work"
HOME=$work HF_HUB_OFFLINE=1 INSPECT_CACHE_DIR=$work/cache "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
from importlib.metadata import version

import torch
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import match
from inspect_ai.solver import generate
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.set_num_threads(1)
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w0")
tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
config = LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                     pad_token_id=0, bos_token_id=0, eos_token_id=0)
for seed, folder in enumerate(("first", "second")):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for weight in model.parameters():
        if weight.dim() >= 2:
            torch.nn.init.normal_(weight, 0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def asked(folder, right, cache):
    """A task of one question: the answer, its accuracy, what the cache did, and the folder that the log names."""
    question = Sample(input="w5 w6 w7", target=right)
    task = Task(dataset=[question], solver=generate(cache=cache), scorer=match(location="exact"), config=GenerateConfig(max_tokens=5))
    arguments = {"model_path": folder, "do_sample": False}
    log = eval(task, model="hf/local", model_args=arguments, display="none", log_dir="logs")[0]
    assert log.status == "success", log.error
    call = next(event for event in log.samples[0].events if event.event == "model")
    accuracy = log.results.scores[0].metrics["accuracy"].value
    return log.samples[0].output.completion, accuracy, call.cache, log.eval.model_args["model_path"]


print("inspect-ai", version("inspect-ai"), "transformers", version("transformers"))
print("expected: the answer of the model in each folder; what the second one says is the right answer here\n")
right = asked("second", "-", False)[0]
print("folder   cache   the call   answer                    accuracy   path in the log")
seen = []
for folder, cache in (("first", False), ("second", False), ("first", True), ("second", True)):
    answer, accuracy, call, path = asked(folder, right, cache)
    seen.append((answer, accuracy, call, path))
    print(f"{folder:9}{'on' if cache else 'off':8}{call or 'asked':11}{answer:26}{accuracy:<11.0f}{path}")
first = seen[0][0]
expected = [(first, 0, None, "first"), (right, 1, None, "second"), (first, 0, "write", "first"), (first, 0, "read", "second")]
if first == right or seen != expected:
    raise SystemExit(f"changed: {seen}")
print("\nseen: the second model is not asked, and is scored by what the first one said")
PYTHON
