#!/usr/bin/env bash
# lm-eval's cache of requests answers for a changed task, and the report shows the task that was not asked.
#
# Package     lm-eval 0.4.13
# Surprise    `--cache_requests true` (`simple_evaluate(cache_requests=True)`) keeps a task's built prompts in a file that is named
#             after the task's name, the number of shots and the tokenizer's name. The prompt template, the data, the seed of the
#             shots and the generation arguments are in no name. Whoever changes one of them is served the old prompts with the
#             old arguments, and the results file shows the new template and the new arguments as if they had been used.
# Who         Whoever compares scores of two runs of an engine, cached and uncached: an edited task or another seed changes
#             nothing, and a run with `temperature=0.7` was in truth greedy. Prompts that were meant to share a prefix (another
#             sampler of shots) go on not sharing it.
# Documented  The help of `--cache_requests` says that it speeds evaluation up, and names `refresh` and `delete`. What the name of
#             a file is made of is said nowhere but in the source (`Task.build_all_requests`).
# Upstream    EleutherAI/lm-evaluation-harness#3881 (generation arguments), #4084 and pull request #4166 (seed); of the template and the
#             data none was found.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check lm-eval==0.4.13
cd "$work"
HOME=$work HF_HOME=$work/hf HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 LM_HARNESS_CACHE_PATH=$work/requests "$work/venv/bin/python" - 2>"$work/log" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import json
from importlib.metadata import version

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager


class Recorder(LM):
    """Answers 4 to everything and keeps what it was asked."""

    def generate_until(self, requests, disable_tqdm=False):
        self.asked = [request.args for request in requests]
        return ["4"] * len(requests)

    def loglikelihood(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def data(name, sums):
    with open(name, "w") as file:
        file.writelines(json.dumps({"q": q, "a": str(eval(q))}) + "\n" for q in sums)


def task(**changes):
    return {
        "task": "sums", "dataset_path": "json", "dataset_kwargs": {"data_files": {"train": "shots.jsonl", "test": "test.jsonl"}},
        "test_split": "test", "fewshot_split": "train", "num_fewshot": 1, "output_type": "generate_until",
        "doc_to_text": "Q: {{q}}\nA:", "doc_to_target": "{{a}}", "generation_kwargs": {"until": ["\n"], "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}], **changes,
    }


tasks = TaskManager(include_defaults=False)


def run(label, what, **arguments):
    model = Recorder()
    report = simple_evaluate(model=model, tasks=[what], task_manager=tasks, bootstrap_iters=0, cache_requests=True, limit=3, **arguments)
    prompt, asked = model.asked[0]
    shown = report["configs"]["sums"]
    print(f"{label}\n  the model was asked     {prompt!r}\n                          {asked}"
          f"\n  the report says         {shown['doc_to_text']!r}\n                          {shown['generation_kwargs']}")
    return model.asked, shown


print("lm-eval", version("lm-eval"))
print("expected: a task whose template, data, seed or generation arguments change is built anew\n")
data("test.jsonl", [f"{n}+{n}" for n in range(2, 8)])
data("shots.jsonl", [f"{n}+1" for n in range(20, 60)])
first, _ = run("first run", task())
again, shown = run("another template", task(doc_to_text="Compute {{q}}:"))
same = {"template": again == first and shown["doc_to_text"] == "Compute {{q}}:"}
again, shown = run("other generation arguments", task(), gen_kwargs="temperature=0.7,do_sample=true,max_gen_toks=9")
same["generation arguments"] = again == first and shown["generation_kwargs"]["temperature"] == 0.7
again, _ = run("another seed for the shots", task(), fewshot_random_seed=99)
same["seed"] = again == first
data("test.jsonl", [f"{n}*{n}" for n in range(2, 8)])
again, _ = run("other data", task())
same["data"] = again == first
fresh = Recorder()
simple_evaluate(model=fresh, tasks=[task()], task_manager=tasks, bootstrap_iters=0, limit=3, fewshot_random_seed=99)
print(f"without the cache         {fresh.asked[0][0]!r}")
changed = [name for name, was in same.items() if not was]
if changed or fresh.asked == first:
    raise SystemExit(f"changed: a new {', '.join(changed) or 'file'} now reaches the model through the cache of requests")
print("\nseen: the same requests five times, and a report that describes other ones")
PYTHON
