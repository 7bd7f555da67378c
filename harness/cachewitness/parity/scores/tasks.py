"""What is asked: the problems of the fixture, or gsm8k itself, as tasks of lm-eval made without its
index of fourteen thousand.

Prompt, metric and both filters (`strict-match`, `flexible-extract`) are gsm8k's, read from the
definition that lm-eval ships. What differs, and why:

* Problems bring their context, which all questions of a tenant share, so there are no further
  examples (0 shots), and an answer ends with an empty line.
* gsm8k draws other examples for every question, so its prompts share ten characters and a prefix
  cache has nothing to do. Here the examples are the first rows unless random ones are asked for.
  They come from a file of their own, or from the hub's training split; without either they are rows
  of the questions' file and not asked (random ones: all rows but the question).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cachewitness._util import jsonl
from cachewitness._util.errors import UsageError
from cachewitness.parity.scores.gate import PRIMARY
from cachewitness.parity.scores.offline import evaluated, quiet
from cachewitness.toy.problems import fixture

SHOTS = 5
MAX_TOKENS = {"problems": 64, "gsm8k": 256}
"""The most tokens of an answer; lm-eval's own default for gsm8k."""
HUB = "hub"
FLOOR, KNOWN = 0.1, 0.9
"""The share of right answers under which nothing passes; and that of problems which a model that
knows their language has."""


class Doc(msgspec.Struct, frozen=True, kw_only=True):
    """A question as lm-eval sees it. `row` is its line in the file, from 1."""

    question: str
    answer: str
    row: int
    context: str = ""
    group: str = ""
    family: str = ""
    tenant: str = ""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how.

    `shots` are the examples in front of every question, or, if they are random, what they are drawn
    from: without any, the other questions. `limit` says how many of `docs` are asked, 0: all. Of
    what a server is asked, a model that knows the task answers the share `known` right. `prompt`
    makes one of a context and a question.
    """

    name: str
    source: str
    docs: tuple[Doc, ...]
    shots: tuple[Doc, ...] = ()
    num_shots: int = 0
    random_shots: bool = False
    until: tuple[str, ...] = ()
    max_tokens: int = 256
    limit: int = 0
    known: float = 0.0
    prompt: str = fixture.PROMPT

    @property
    def asked(self) -> tuple[Doc, ...]:
        """Return the questions that are asked."""
        return self.docs[: self.limit] if self.limit else self.docs

    def floor(self, *, server: bool) -> float:
        """Return the share of right answers under which nothing passes: the model is too weak, or
        wrong cold and cached alike.

        The toy's models are this package's own, and one without recurrent layers knows half of the
        problems.
        """
        return max(self.known, FLOOR) if server else FLOOR

    @property
    def primary(self) -> str:
        """Return the filter that decides."""
        return PRIMARY

    @property
    def digest(self) -> str:
        """Return a hash of every row, examples included."""
        return hashlib.sha256(msgspec.json.encode([self.docs, self.shots])).hexdigest()

    def evaluate(self, model: Any, seed: int) -> list[Mapping[str, Any]]:
        """Have lm-eval ask a model and score it; return its samples."""
        with quiet():
            from lm_eval.tasks import TaskManager

            random.seed(seed)
            (loaded,) = TaskManager(include_defaults=False).load([self.config()])["tasks"].values()
            loaded.set_fewshot_seed(seed=seed)
        return evaluated(loaded, model, limit=self.limit or None)

    def config(self) -> dict[str, Any]:
        """Return lm-eval's configuration of the task; lm-eval must be installed."""
        config = _shipped()
        for key in ("tag", "dataset_path", "dataset_name", "training_split"):
            config.pop(key, None)
        generation = dict(config["generation_kwargs"]) | {"max_gen_toks": self.max_tokens}
        if self.until:
            generation["until"] = list(self.until)
        config |= {
            "task": f"cachewitness_{self.name}",
            "custom_dataset": self._dataset,
            "generation_kwargs": generation,
            "num_fewshot": self.num_shots,
            "fewshot_split": "test" if self.random_shots and not self.shots else "train",
            "fewshot_config": {"sampler": "default" if self.random_shots else "first_n"},
        }
        text = _prompt if self.name == "problems" else _compiled(config["doc_to_text"])
        return config | {"doc_to_text": text, "doc_to_target": _compiled(config["doc_to_target"])}

    def _dataset(self, **_: Any) -> dict[str, Any]:
        from datasets import Dataset

        splits = {"test": self.docs, "train": self.shots or self.docs[:1]}
        return {
            name: Dataset.from_list([msgspec.to_builtins(doc) for doc in docs])
            for name, docs in splits.items()
        }


def problems(limit: int = 0, folder: Path | None = None) -> Task:
    """Return the problems of the fixture, or `limit` of them, drawn from all tenants alike.

    Raises UsageError if a file of the fixture is damaged.
    """
    items = fixture.load(folder)
    docs = [
        Doc(
            row=number,
            context=item.context,
            **{key: getattr(item.row, key) for key in fixture.Row.__struct_fields__},
        )
        for number, item in enumerate(items, start=1)
    ]
    return Task(
        name="problems",
        source=str(folder or "fixtures/gsm8k_format"),
        docs=tuple(_even(docs, limit)),
        until=(fixture.STOP,),
        max_tokens=MAX_TOKENS["problems"],
        known=KNOWN,
    )


class _Text(msgspec.Struct, frozen=True):
    prefix: str
    text: str


def texts(path: Path, limit: int = 0) -> Task:
    """Return a file of JSON lines, each a `prefix`, which others share, and the `text` behind it;
    or `limit` of them, of all prefixes alike. They are to be gone on with, and no answer is right.

    Raises UsageError if the file cannot be read, a line does not fit, or there is none.
    """
    names: dict[str, str] = {}
    docs = []
    for row, one in jsonl.rows(path, _Text):
        tenant = names.setdefault(one.prefix, f"p{len(names)}")
        docs.append(Doc(question=one.text, answer="", row=row, context=one.prefix, tenant=tenant))
    if not docs:
        raise UsageError(f"--texts: {path} has no line")
    chosen = tuple(_even(docs, limit))
    return Task(name="texts", source=str(path), docs=chosen, prompt="{context}{question}")


def _prompt(doc: Mapping[str, Any]) -> str:
    return fixture.PROMPT.format(context=doc["context"], question=doc["question"])


def gsm8k(
    source: str,
    *,
    limit: int = 0,
    shots: int = SHOTS,
    random_shots: bool = False,
    shots_from: str = "",
) -> Task:
    """Return gsm8k, from a file of JSON lines or from the hub (`hub`), with examples from another
    file if one is named.

    Raises UsageError if a file cannot be read, a line does not fit, or too few questions are left.
    """
    if source == HUB:
        asked, examples = _hub()
    else:
        asked = _file(Path(source))
        examples = _file(Path(shots_from)) if shots_from else [] if random_shots else asked[:shots]
        asked = asked if random_shots or shots_from else asked[shots:]
    if not asked or len(examples or asked) < shots + (not examples):
        raise UsageError(f"--gsm8k: {source} has too few rows for {shots} examples and a question")
    return Task(
        name="gsm8k",
        source=source,
        docs=tuple(asked),
        shots=tuple(examples if random_shots else examples[:shots]),
        num_shots=shots,
        random_shots=random_shots,
        max_tokens=MAX_TOKENS["gsm8k"],
        limit=limit,
    )


def _file(path: Path) -> list[Doc]:
    docs = []
    for number, row in jsonl.rows(path, _Row):
        if "####" not in row.answer:
            raise UsageError(
                f"{path}:{number}: $.answer: ends without `#### NUMBER`, by which answers are"
                " compared"
            )
        docs.append(Doc(question=row.question, answer=row.answer, row=number))
    return docs


class _Row(msgspec.Struct, frozen=True):
    question: str
    answer: str


def _hub() -> tuple[list[Doc], list[Doc]]:
    from datasets import load_dataset

    try:
        whole = load_dataset("openai/gsm8k", "main")
    except Exception as error:
        raise UsageError(
            f"--gsm8k hub: cannot be had ({type(error).__name__}: {error}); give a file instead"
        ) from None
    asked, examples = (
        [
            Doc(question=row["question"], answer=row["answer"], row=i)
            for i, row in enumerate(whole[split], start=1)
        ]
        for split in ("test", "train")
    )
    return asked, examples


def _even(docs: Sequence[Doc], limit: int) -> list[Doc]:
    """Return `limit` rows, as many of each tenant as can be, in the order of the file."""
    if not limit:
        return list(docs)
    turns: dict[str, int] = {}
    order = []
    for index, doc in enumerate(docs):
        turns[doc.tenant] = turns.get(doc.tenant, 0) + 1
        order.append((turns[doc.tenant], index))
    return [docs[index] for index in sorted(index for _, index in sorted(order)[:limit])]


def _compiled(template: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a template of lm-eval as a function; lm-eval itself compiles it anew for every
    question, a dozen times.
    """
    from lm_eval.utils import env

    compiled = env.from_string(template)
    return lambda doc: str(compiled.render(**doc))


def _shipped() -> dict[str, Any]:
    """Read gsm8k's definition as lm-eval ships it."""
    import lm_eval
    import yaml

    path = Path(str(lm_eval.__file__)).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config
