"""Which cache a question needs: what is left of each group's answers when all of one kind of cache
is lost.

    python -m benchmarks.needed [FOLDER …] [--questions 96]

For each checkpoint the shared prefixes are cached, and questions go on from them with one kind of
cache zeroed, or with another tenant's in its place: in this repository's paged execution, with
answers generated freely, and in transformers for a checkpoint that it loads, with answers compared
token by token under forcing.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

import torch
from torch import Tensor

from benchmarks.damages import DAMAGES, WHOLE
from benchmarks.probe import Probe, Questions
from cachewitness._util.data import fixtures
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.toy.problems.fixture import STOP
from cachewitness.toy.service import ToyService
from cachewitness_reference.toy_model import checkpoint
from cachewitness_reference.toy_model.tokenizer import Tokenizer

LEFT_AT_MOST, OTHERS_AT_LEAST = 0.30, 0.95
"""A group needs its cache if without it at most so many answers are right; the others do not if at
least so many stay."""
QUESTIONS, PAGES = 96, 2048
BLOCK_SIZE = 16
"""Longer than what any two questions of a tenant have in common, so that all resume at the end of
their prefix."""
BY_NAME = {damage.name: damage for damage in DAMAGES}
LAYERS = {
    "recurrent": ("linear_attention", "mamba2"),
    "window": ("sliding_attention",),
    "full": ("full_attention",),
}


@dataclass(frozen=True)
class Row:
    """What was lost, of which kind of cache (none: nothing), and the share of right answers per
    group of questions.
    """

    damage: str
    cache: str
    right: Mapping[str, float]

    def alone(self, groups: Sequence[str]) -> bool:
        """Return whether, of these groups, that of the cache alone needs it."""
        return all(self._as_wanted(group) for group in groups)

    def _as_wanted(self, group: str) -> bool:
        return (
            self.right[group] <= LEFT_AT_MOST
            if group == self.cache
            else self.right[group] >= OTHERS_AT_LEAST
        )


def caches(folder: Path) -> list[str]:
    """Return the kinds of cache that a checkpoint's model has; those are the groups of questions
    that are meant for it.
    """
    config = checkpoint.load(folder).config
    return [kind for kind, types in LAYERS.items() if set(types) & set(config.layer_types)]


def paged(folder: Path, count: int = QUESTIONS) -> list[Row]:
    """Measure a checkpoint in this repository's paged execution."""
    questions = Questions(count)
    service = ToyService(folder, block_size=BLOCK_SIZE, pages=PAGES)
    probe = Probe.of(service, questions)
    rows = []
    for cache, name in _losses(folder):
        if not service.reset():
            raise SystemExit("needed: the engine did not forget its cache")
        probe.begin(None, keep=False)
        service.answer(questions.warming("hit"))
        probe.begin(BY_NAME[name] if name else None, keep=False)
        scores = questions.scores(name, service.answer(questions.asks()))
        rows.append(Row(name, cache, _shares([(row.group, row.correct) for row in scores.rows])))
    service.close()
    return rows


def in_transformers(folder: Path, count: int = QUESTIONS) -> list[Row]:
    """Measure a checkpoint in transformers, whose cache is damaged in the same way."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    questions = Questions(count)
    encode = Tokenizer.load(folder / checkpoint.TOKENIZER).encode
    texts = [encode(context) for context in questions.contexts]
    prefixes = torch.tensor([text[: min(map(len, texts))] for text in texts])
    with torch.no_grad():
        after = model(prefixes, use_cache=True).past_key_values
        return [
            _forced(model, questions, encode, prefixes.shape[1], after, cache, name)
            for cache, name in _losses(folder)
        ]


def _forced(
    model: Any, questions: Questions, encode: Any, length: int, after: Any, cache: str, name: str
) -> Row:
    """Run every question with its right answer behind its prefix, all at once."""
    tenant = [questions.contexts.index(doc.context) for doc in questions.docs]
    asked = [encode(prompt)[length:] for prompt in questions.prompts]
    answers = [encode(f" {doc.answer}{STOP}") for doc in questions.docs]
    tokens = torch.zeros(
        len(asked),
        max(len(a) + len(b) for a, b in zip(asked, answers, strict=True)),
        dtype=torch.long,
    )
    for row, (question, answer) in enumerate(zip(asked, answers, strict=True)):
        tokens[row, : len(question) + len(answer)] = torch.tensor(question + answer)
    positions = torch.arange(length, length + tokens.shape[1]).expand(len(tokens), -1)
    past = _damaged(after, tenant, cache, name)
    chosen = model(tokens, past_key_values=past, position_ids=positions).logits.argmax(-1)
    found = []
    for row, (question, answer) in enumerate(zip(asked, answers, strict=True)):
        generated = chosen[row, len(question) - 1 : len(question) + len(answer) - 1].tolist()
        found.append((questions.docs[row].group, generated == answer))
    return Row(name, cache, _shares(found))


def _damaged(after: Any, tenant: Sequence[int], cache: str, name: str) -> Any:
    """Return a cache with a row for each question, taken from its tenant's; what is lost is zero
    or the next tenant's.
    """
    past = copy.deepcopy(after)
    rows = torch.tensor(tenant)
    for layer in past.layers:
        kind = (
            "recurrent"
            if hasattr(layer, "recurrent_states")
            else "window"
            if layer.is_sliding
            else "full"
        )
        lost = kind == cache
        source = (rows + 1) % (int(rows.max()) + 1) if lost and "another" in name else rows
        for holder, key in _tensors(layer):
            taken = holder[key][source]
            holder[key] = taken * (not (lost and "zeroed" in name))
    return past


def _tensors(layer: Any) -> list[tuple[dict[Any, Tensor], Any]]:
    """Return where a layer's memories, or its keys and values, are kept."""
    if hasattr(layer, "recurrent_states"):
        return [(layer.recurrent_states, key) for key in layer.recurrent_states] + [
            (layer.conv_states, key) for key in layer.conv_states
        ]
    return [(vars(layer), "keys"), (vars(layer), "values")]


def _losses(folder: Path) -> list[tuple[str, str]]:
    return [("", ""), *((cache, name) for cache in caches(folder) for name in WHOLE[cache])]


def _shares(found: Sequence[tuple[str, bool]]) -> dict[str, float]:
    groups = sorted({group for group, _ in found})
    return {
        group: sum(right for g, right in found if g == group) / sum(g == group for g, _ in found)
        for group in groups
    }


def measured(folder: Path, count: int = QUESTIONS) -> dict[str, list[Row]]:
    """Measure a checkpoint in every execution that it has, by name."""
    found = {"paged": paged(folder, count)}
    if json.loads((folder / checkpoint.CONFIG).read_text()).get("architectures"):
        found["transformers"] = in_transformers(folder, count)
    return found


def taught() -> list[Path]:
    """Return the checkpoints of this repository that know the problems."""
    folders = sorted((fixtures() / "checkpoints").iterdir())
    return [one for one in folders if "right" in json.loads((one / checkpoint.RECIPE).read_text())]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="default: the checkpoints of this repository that know the problems",
    )
    parser.add_argument(
        "--questions", type=int, default=QUESTIONS, metavar="N", help=f"default {QUESTIONS}"
    )
    given: Any = parser.parse_args(argv)
    try:
        for folder in given.folders or taught():
            groups = caches(folder)
            for where, rows in measured(folder, given.questions).items():
                for row in rows:
                    shares = "  ".join(
                        f"{group} {100 * share:3.0f} %" for group, share in row.right.items()
                    )
                    held = (
                        ""
                        if not row.cache
                        else "  as wanted"
                        if row.alone(groups)
                        else "  NOT AS WANTED"
                    )
                    print(
                        f"{folder.name:10} {where:12} {row.damage or 'nothing lost':50}"
                        f" {shares}{held}",
                        flush=True,
                    )
    except (UsageError, EngineMissing) as error:
        print(f"needed: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
