"""A task of lm-eval by its name, with its documents from a folder or from where the task says.

lm-eval does all of it: its `include_path` finds tasks that a folder defines, and `dataset_path:
json` (or `parquet`, `csv`) with `data_files` replaces where the documents come from. A file is the
split that its name begins with: `test.jsonl`, `train-00000-of-00001.parquet`.

The examples in front of the questions are the first rows of what the task takes its examples from,
so that questions share a prefix; lm-eval by itself draws others for each question. If that is the
split that is asked, these rows are not asked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest
from cachewitness.parity.scores.asking import MAX_TOKENS
from cachewitness.parity.scores.offline import evaluated, quiet
from cachewitness.parity.scores.tasks import FLOOR, Task

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}
GENERATED = "generate_until"
CHOSEN = ("loglikelihood", "multiple_choice")
OURS = ("problems", "gsm8k")
"""Tasks that are this package's, if no folder is given."""
OWN_SEED = 1234
"""The seed by which lm-eval draws examples unless it is given one."""


class NamedTask:
    """A task as lm-eval loaded it, behind `prefixes` sets of `num_shots` examples each; `asked` are
    the documents that are asked, by their index. `random_shots`: behind the examples that lm-eval
    draws for each of them.
    """

    def __init__(
        self,
        task: Any,
        *,
        shots: int,
        prefixes: int,
        limit: int,
        source: str,
        random_shots: bool = False,
    ) -> None:
        """Take the examples off the documents that are asked. Raises UsageError if the task has too
        few for that.
        """
        self.name = str(task.task_name)
        self.kind = str(task.OUTPUT_TYPE)
        self.num_shots = shots
        self.limit = limit
        self.source = source
        self.random_shots = random_shots
        self._task = task
        self._drawn = task.sampler
        pool = list(task.sampler.fewshot_docs()) if shots else []
        self.prefixes = min(prefixes, len(pool) // shots) if shots else prefixes
        if not self.prefixes:
            raise UsageError(
                f"--shots: task {self.name} has {len(pool)} documents for examples, not {shots}"
            )
        examples = pool[: shots * self.prefixes]
        docs = list(task.eval_docs)
        rows = [index for index, doc in enumerate(docs) if random_shots or doc not in examples]
        self.asked = rows[:limit] if limit else rows
        if not self.asked:
            raise UsageError(f"--shots: all documents of task {self.name} are examples")
        self.prefixes = min(self.prefixes, max(1, len(self.asked) // 2))
        self._first = [examples[shots * turn : shots * (turn + 1)] for turn in range(self.prefixes)]
        self.digest = hashlib.sha256(
            json.dumps([examples, [docs[row] for row in self.asked]], default=str).encode()
        ).hexdigest()
        task.set_config("num_fewshot", shots)

    @property
    def generation(self) -> Mapping[str, Any]:
        """Return the parameters of its generated answers; empty if it generates none."""
        return self._task.config.generation_kwargs or {}

    @property
    def max_tokens(self) -> int:
        """Return the tokens of an answer at most."""
        return int(self.generation.get("max_gen_toks", MAX_TOKENS))

    @property
    def primary(self) -> str:
        """Return the filter that decides: the first one of the task."""
        return str((self._task.config.filter_list or [{"name": "none"}])[0]["name"])

    def floor(self, *, server: bool) -> float:
        """Return the share of right answers under which nothing passes."""
        return FLOOR

    def shorten(self, max_tokens: int) -> None:
        """Let answers have so many tokens at most."""
        self._task.set_config("generation_kwargs", {"max_gen_toks": max_tokens}, update=True)

    def evaluate(self, model: Any, seed: int) -> list[Mapping[str, Any]]:
        """Have lm-eval ask a model and score it by the first metric of the task; return its
        samples.

        Raises UsageError if that metric is neither right nor wrong.
        """
        samples: list[Mapping[str, Any]] = []
        for sample in self.samples(model, drawn=self.random_shots, seed=seed):
            metric = sample["metrics"][0]
            if sample[metric] not in (0, 1):
                raise UsageError(
                    f"--task {self.name}: {metric} is {sample[metric]!r} for an answer, neither"
                    " right nor wrong; compare the task by --likelihood"
                )
            (text, *_), *_ = sample["arguments"]
            doc = {
                "question": text.rsplit("\n\n", 1)[-1],
                "row": self.asked[sample["doc_id"]] + 1,
                **dict.fromkeys(("group", "family", "tenant"), ""),
            }
            samples.append({**sample, "exact_match": sample[metric], "doc": doc})
        return samples

    def samples(
        self, model: Any, *, drawn: bool = False, seed: int = OWN_SEED
    ) -> list[Mapping[str, Any]]:
        """Have lm-eval ask a model and score it; return its samples, documents numbered as they are
        asked. `drawn`: behind the examples that lm-eval draws by itself.
        """
        self._task.sampler = self._drawn if drawn else _InTurn(self._first)
        self._task.set_fewshot_seed(seed=seed)
        found = evaluated(self._task, model, samples={self.name: self.asked})
        places = {row: place for place, row in enumerate(self.asked)}
        return [{**sample, "doc_id": places[sample["doc_id"]]} for sample in found]


AnyTask = Task | NamedTask
"""What `score` asks: a task of this package's, or of lm-eval's."""


class _InTurn:
    """Examples for lm-eval: each document gets the next set."""

    def __init__(self, examples: Sequence[Sequence[Any]]) -> None:
        self._examples = examples
        self._turn = -1

    def sample(self, n: int, **_: Any) -> Sequence[Any]:
        """Return the examples of the next document."""
        self._turn = (self._turn + 1) % len(self._examples)
        return self._examples[self._turn]

    def set_rnd(self, *_: Any) -> None:
        """Begin again: nothing is drawn."""
        self._turn = -1


def load(name: str, folder: Path | None) -> Any:
    """Return a task of lm-eval. Raises UsageError if there is none of that name, its documents
    cannot be had, or it is of a kind that cannot be asked here.
    """
    with quiet():
        manager = _manager(name, folder)
        _check_single(name, manager)
        overrides = _documents(manager.task_index[name].cfg, folder) if folder else {}
        entry = {"group": "cachewitness", "task": [{"task": name, **overrides}]}
        try:
            (task,) = manager.load([entry])["tasks"].values()
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            hint = "" if folder else "; give its documents in a folder: --data DIR"
            raise UsageError(f"--task {name}: lm-eval cannot load it ({why}){hint}") from None
    _check_kind(name, task)
    return task


def _manager(name: str, folder: Path | None) -> Any:
    """Return what finds tasks: of the folder alone if it defines the task, which is quick, since
    lm-eval reads all its own fourteen thousand definitions to find one.
    """
    from lm_eval.tasks import TaskManager

    if folder is not None:
        if not folder.is_dir():
            raise UsageError(f"--data: {folder} is no folder")
        own = TaskManager(include_path=str(folder), include_defaults=False)
        if name in own.all_tasks:
            return own
    return TaskManager(include_path=str(folder) if folder else None)


def _check_single(name: str, manager: Any) -> None:
    if name in manager.all_subtasks:
        return
    if name not in manager.all_tasks:
        near = nearest(name, [*OURS, *manager.all_subtasks])
        raise UsageError(f"--task: lm-eval has no task {name!r}{near}")
    raise UsageError(f"--task {name}: lm-eval has a group of that name; name one task of it")


def _check_kind(name: str, task: Any) -> None:
    kind = getattr(task, "OUTPUT_TYPE", None)
    if kind not in (GENERATED, *CHOSEN) or not hasattr(task, "sampler"):
        raise UsageError(
            f"--task {name}: of kind {kind}; {', '.join((GENERATED, *CHOSEN))} can be asked"
        )
    if kind == GENERATED and task.config.repeats > 1:
        raise UsageError(f"--task {name}: asks each question {task.config.repeats} times")
    if getattr(task, "MULTIMODAL", False) or getattr(task, "UNSAFE_CODE", False):
        raise UsageError(f"--task {name}: shows pictures or sounds, or runs what a model writes")


def _documents(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what replaces a task's documents by those of a folder; nothing if the folder has none
    and the task brings its own.
    """
    wanted = {config[key] for key in SPLITS if config.get(key)}
    files: dict[str, list[str]] = {}
    formats = set()
    for path in sorted(folder.iterdir()):
        split = re.split(r"[-.]", path.name)[0]
        if path.suffix in FORMATS and split in wanted:
            files.setdefault(split, []).append(str(path.resolve()))
            formats.add(FORMATS[path.suffix])
    if config.get("test_split") not in files and config.get("validation_split") not in files:
        if config.get("dataset_path") in FORMATS.values():
            return {}
        names = ", ".join(f"{split}.jsonl" for split in sorted(wanted))
        raise UsageError(f"--data: {folder} has no documents to ask: {names} (or .json, .parquet)")
    if len(formats) > 1:
        raise UsageError(f"--data: {folder} has documents in several formats: {sorted(formats)}")
    absent = {key: None for key in SPLITS if config.get(key) and config[key] not in files}
    return absent | {
        "dataset_path": formats.pop(),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
    }
