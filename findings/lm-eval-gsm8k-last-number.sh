#!/usr/bin/env bash
# lm-eval's gsm8k takes dots, commas and dollar signs for a number, so how a right answer ends decides whether it is right.
#
# Package     lm-eval 0.4.13 (the shipped task gsm8k, version 3)
# Surprise    `flexible-extract` is the filter for answers without `####`: "the last number". Its pattern matches any two or more of
#             `$ 0-9 . ,` in a row, so an ellipsis, `.,` or `$.` behind the number is the last number. And both filters compare
#             text: `18.00` is not 18, and `strict-match` finds nothing in `#### $18`.
# Who         Whoever compares two arms question by question. Arms that differ in rounding alone agree on the number and part at
#             the full stop: the pair is counted as a lost or a gained answer, and it is neither.
# Documented  No; the pattern is in the task's YAML.
# Upstream    EleutherAI/lm-evaluation-harness pull request #3254 for `.00`; of the dots none was found.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check lm-eval==0.4.13
cd "$work"
HOME=$work HF_HOME=$work/hf HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json, pathlib
from importlib.metadata import version

import lm_eval
import yaml
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

# (what the model says where 18 is right, strict-match, flexible-extract)
ANSWERS = [
    ("#### 18", 1, 1), ("The answer is 18.", 0, 1), ("The answer is $18.", 0, 1), ("The answer is **18**!", 0, 1),
    ("The answer is 18...", 0, 0), ("18 coins. That is all..", 0, 0), ("18 coins (rings, shells, etc.,)", 0, 0),
    ("#### 18\n\nPaid in $...", 1, 0), ("#### 18.", 1, 1), ("#### 18.00", 0, 0), ("#### $18", 0, 1), ("#### 18 coins", 1, 1),
]
with open("sums.jsonl", "w") as file:
    file.writelines(json.dumps({"question": f"Question number {n}?", "answer": "9 + 9 = 18\n#### 18"}) + "\n" for n in range(len(ANSWERS)))
shipped = pathlib.Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml"
task = yaml.safe_load(shipped.read_text()) | {"dataset_path": "json", "dataset_name": None, "num_fewshot": 0}
task |= {"dataset_kwargs": {"data_files": {"train": "sums.jsonl", "test": "sums.jsonl"}}}
task.pop("tag", None)


class Said(LM):
    def generate_until(self, requests, disable_tqdm=False):
        return [ANSWERS[request.doc_id][0] for request in requests]

    def loglikelihood(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


result = simple_evaluate(model=Said(), tasks=[task], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0, log_samples=True)
seen = {}
for row in result["samples"]["gsm8k"]:
    seen[row["doc_id"], row["filter"]] = (int(row["exact_match"]), row["filtered_resps"][0])
print("lm-eval", version("lm-eval"), "gsm8k, version", task["metadata"]["version"])
print("expected: 18 is found in each of these, by flexible-extract at least\n")
print(f"{'answer':40}{'strict-match':>18}{'flexible-extract':>18}")
changed = []
for n, (text, *expected) in enumerate(ANSWERS):
    strict, flexible = seen[n, "strict-match"], seen[n, "flexible-extract"]
    print(f"{text!r:40}{f'{strict[0]}  {strict[1]!r}':>18}{f'{flexible[0]}  {flexible[1]!r}':>18}")
    if [strict[0], flexible[0]] != expected:
        changed.append(text)
if changed:
    raise SystemExit(f"changed: scored otherwise now: {changed}")
print("\nseen: punctuation behind the number is scored as the number, and 18.00 is wrong by both filters")
PYTHON
