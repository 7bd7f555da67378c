#!/usr/bin/env bash
# lm-eval scores an option whose loglikelihood is NaN as the one that the model has chosen.
#
# Package     lm-eval 0.4.13
# Surprise    In a task of several options a loglikelihood that is not a number wins (`numpy.argmax` takes the first NaN for the
#             largest). A model whose every answer is NaN gets a plausible accuracy and no warning: that of an eager guesser of
#             the first option. If NaN is where the right option stands, the accuracy is 1.0.
# Who         Whoever gates a cache, a kernel or a hybrid's recurrent state by such a score. NaN is what a state that was never
#             written, or a block that was filled for debugging, gives; a gate by accuracy can then even rise.
# Documented  No.
# Upstream    No report known.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check lm-eval==0.4.13 numpy==2.4.6
cd "$work"
HOME=$work HF_HOME=$work/hf HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
from importlib.metadata import version

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

RIGHT = [0, 0, 1, 2, 0, 3, 0, 2] * 10  # the first option is right in half of the questions
with open("test.jsonl", "w") as file:
    file.writelines(json.dumps({"q": f"question {n}", "options": ["w", "x", "y", "z"], "right": r}) + "\n" for n, r in enumerate(RIGHT))
TASK = {
    "task": "options", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "test.jsonl"}}, "test_split": "test",
    "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "{{options}}", "doc_to_target": "{{right}}",
    "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")],
}
NAN = float("nan")


class Scores(LM):
    def __init__(self, score):
        super().__init__()
        self.score = score

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(self.score(request.idx, request.doc["right"]), False) for request in requests]

    def generate_until(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = generate_until


tasks = TaskManager(include_defaults=False)


def accuracy(score):
    result = simple_evaluate(model=Scores(score), tasks=[dict(TASK)], task_manager=tasks, bootstrap_iters=0)["results"]["options"]
    return float(result["acc,none"]), float(result["acc_norm,none"])


print("lm-eval", version("lm-eval"))
print("expected: an error, a NaN as the score, or at least no credit for an option that is not a number\n")
rows = [
    ("right option -1, others -3", lambda option, right: -1.0 if option == right else -3.0, 1.0),
    ("every option NaN", lambda option, right: NAN, 0.5),
    ("as the first, the last option NaN", lambda option, right: NAN if option == 3 else -1.0 if option == right else -3.0, 0.125),
    ("right option NaN, others -0.1", lambda option, right: NAN if option == right else -0.1, 1.0),
]
for label, score, expected in rows:
    seen = accuracy(score)
    print(f"{label:36} acc {seen[0]:.3f}   acc_norm {seen[1]:.3f}")
    if seen != (expected, expected):
        raise SystemExit(f"changed: {label!r} scores {seen}, not {expected}")
print("\nseen: NaN is the best option; a model of nothing but NaN scores as often as the first option is right, without a warning")
PYTHON
if grep -qi "nan" "$work/log"; then echo "changed: lm-eval now says something of NaN: $(grep -i nan "$work/log" | head -1)"; exit 1; fi
