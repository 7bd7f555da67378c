"""The frozen problems: contexts of several tenants and what is asked behind each.

`python -m cachewitness.toy.problems` writes them.

Two files of JSON lines: `contexts.jsonl` (tenant, context) and `problems.jsonl` (tenant, family,
group, question, answer), the last two fields being those of gsm8k.
"""

from __future__ import annotations

import copy
from pathlib import Path
from random import Random

import msgspec

from cachewitness._util import files, jsonl
from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.toy.problems.contexts import Context, draw_examples, draw_names, new_context
from cachewitness.toy.problems.families import GROUPS, Problem, pose
from cachewitness.toy.problems.words import VOCABULARY
from cachewitness_reference.toy_model.tokenizer import Tokenizer

SEED = "gsm8k_format/2"
TENANTS, QUESTIONS_PER_TENANT = 8, 50
EXAMPLES, CONTEXT_TOKENS = 12, 512
"""Every context has exactly so many tokens: four blocks of 128, the block size that vLLM gives the
published architecture among the checkpoints. A shared prefix ends where blocks of 16 ... 128
tokens end, so all of it is resumed from."""
PROMPT = "{context}Question: {question}\nAnswer:"
STOP = "\n\n"
"""A worked answer ends with an empty line."""


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A context that questions share."""

    tenant: str
    context: str


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of a tenant; `group` names the cache that the answer needs most."""

    tenant: str
    family: str
    group: str
    question: str
    answer: str


class Item(msgspec.Struct, frozen=True):
    """A question with its context."""

    row: Row
    context: str

    @property
    def prompt(self) -> str:
        """The text that is to be continued with the answer."""
        return PROMPT.format(context=self.context, question=self.row.question)


def generate() -> tuple[list[Tenant], list[Row]]:
    """Return the problems; the same every time. Questions of one tenant do not change its world
    for each other.
    """
    tenants = []
    rows = []
    for number in range(TENANTS):
        name = f"t{number}"
        context = _context(Random(f"{SEED}/{name}"))
        tenants.append(Tenant(name, context.text))
        rows += [
            Row(name, p.family, p.group, p.question, p.answer)
            for p in _questions(context, Random(f"{SEED}/{name}/asked"))
        ]
    return tenants, rows


def _context(rng: Random) -> Context:
    encode = Tokenizer(VOCABULARY).encode
    names = draw_names(rng)
    while True:
        context = new_context(rng, names, draw_examples(rng, EXAMPLES))
        if len(encode(context.text)) == CONTEXT_TOKENS:
            return context


def _questions(context: Context, rng: Random) -> list[Problem]:
    asked: dict[str, Problem] = {}
    while len(asked) < QUESTIONS_PER_TENANT:
        families = [*GROUPS.values()][len(asked) % len(GROUPS)]
        posed = pose(copy.deepcopy(context.world), rng.choice(families).__name__, rng)
        asked.setdefault(posed.question, posed)
    return [*asked.values()]


def write(folder: Path) -> None:
    """Write both files into a folder."""
    tenants, rows = generate()
    encode = msgspec.json.encode
    files.write(folder / "contexts.jsonl", [encode(tenant) + b"\n" for tenant in tenants])
    files.write(folder / "problems.jsonl", [encode(row) + b"\n" for row in rows])


def load(folder: Path | None = None) -> list[Item]:
    """Read the problems of a folder (by default those that are frozen here), tenant by tenant.

    Raises UsageError naming file, line and field if one is damaged or its tenant has no context.
    """
    folder = fixtures() / "gsm8k_format" if folder is None else folder
    contexts = {t.tenant: t.context for _, t in jsonl.rows(folder / "contexts.jsonl", Tenant)}
    items = []
    for number, row in jsonl.rows(folder / "problems.jsonl", Row):
        if row.tenant not in contexts:
            raise UsageError(
                f"{folder / 'problems.jsonl'}:{number}: $.tenant: {row.tenant!r} has no context in"
                " contexts.jsonl"
            )
        items.append(Item(row, contexts[row.tenant]))
    return items
