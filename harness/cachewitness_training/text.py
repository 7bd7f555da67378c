"""English text to learn from, byte by byte: the docstrings of installed packages.

A model of word problems knows nothing else; one that has read text has next-token distributions
that hang on all of a prefix a little, as those of a pretrained model do. Torch brings the packages
that are read, so the training needs nothing more, and their versions say what the text is.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness._util.errors import UsageError
from cachewitness_reference.toy_model import dense
from cachewitness_reference.toy_model.tokenizer import END, Tokenizer
from cachewitness_training.needs import Needs, damages
from cachewitness_training.paths import branch
from cachewitness_training.recipes import BYTES, Recipe
from cachewitness_training.start import first_parameters

SHORTEST = 200
"""Characters of the shortest docstring that is read."""
HELD_OUT_ONE_IN = 20
"""One file in so many is never trained on."""
LEFT_OUT = {"test", "tests", "testing"}
"""Folders whose docstrings are about the package's own tests, some in syntax of a newer Python."""
BEHIND = 128
"""Bytes behind a prefix by which a model is measured."""
ROWS = 8
"""Held-out texts that are measured at once."""
GROUP = "nats a byte"


class Text:
    """Windows of a text, the next byte of each to be predicted.

    `source` has how many tokens are trained on and how many are held out, with a digest of all.
    """

    measured = "nats"

    def __init__(self, recipe: Recipe) -> None:
        """Read the text of a recipe's packages. Raises UsageError if one is not installed."""
        self.recipe = recipe
        texts = [*docstrings(recipe.packages)]
        self.learnt, self.held_out = map(_tokens, split(texts))
        digest = hashlib.sha256("".join(text for _, text in texts).encode()).hexdigest()
        sizes = {"learnt": len(self.learnt), "held_out": len(self.held_out)}
        self.source: dict[str, Any] = {"text": {**sizes, "sha256": digest}}

    def loss(self, step: int, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a step, in nats a byte; matrices are multiplied in bfloat16."""
        length = self.recipe.window
        rng = Random(f"{self.recipe.seed}/{step}")
        rows = self.recipe.tokens_per_step // length
        starts = [rng.randrange(len(self.learnt) - length) for _ in range(rows)]
        tokens = torch.stack([self.learnt[at : at + length + 1] for at in starts])
        with torch.autocast("cpu", torch.bfloat16):
            logits = dense.forward(tokens[:, :-1], parameters, self.recipe.config)
        return _nats(logits, tokens[:, 1:])

    def needs(self, parameters: Mapping[str, Tensor], batches: int, step: int) -> Needs:
        """Return the nats a byte behind held-out prefixes, undamaged and with each kind of cache
        zeroed or exchanged; at the end also of the model that training began with.
        """
        with torch.no_grad():
            found = self._needs(parameters, batches)
            if step == self.recipe.steps:
                untrained = self._needs(first_parameters(self.recipe), batches)
                found["untrained"] = untrained["nothing"]
        return found

    def _needs(self, parameters: Mapping[str, Tensor], batches: int) -> Needs:
        config = self.recipe.config
        length = self.recipe.window
        starts = torch.linspace(0, len(self.held_out) - length - 1, ROWS * batches).long()
        nats: dict[str, list[float]] = {}
        for chosen in starts.split(ROWS):
            tokens = torch.stack([self.held_out[at : at + length + 1] for at in chosen.tolist()])
            prefixes = tokens[:, : length - BEHIND]
            behind = tokens[:, length - BEHIND :]
            _, left = dense.resume(
                prefixes, parameters, config, 0, [None] * len(config.layer_types)
            )
            for name, sources in damages(config, range(ROWS), ROWS).items():
                past = branch(left, sources, config)
                logits, _ = dense.resume(
                    behind[:, :-1], parameters, config, prefixes.shape[1], past
                )
                nats.setdefault(name, []).append(_nats(logits, behind[:, 1:]).item())
        return {name: {GROUP: sum(found) / len(found)} for name, found in nats.items()}


def docstrings(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the long docstrings of installed packages with the file of each, every text once.

    Raises UsageError if a package is not installed.
    """
    seen = set[str]()
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise UsageError(f"{package}: is not installed, and its docstrings are to be read")
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root.parent)
            if LEFT_OUT & {*name.parts}:
                continue
            for text in _docstrings(path.read_text(encoding="utf-8")):
                if len(text) >= SHORTEST and text not in seen:
                    seen.add(text)
                    yield name.as_posix(), text


def _docstrings(source: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sequences that a string should not have escaped
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def split(found: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return the texts that are trained on and those of the files that are held out."""
    parts: tuple[list[str], list[str]] = ([], [])
    for name, text in found:
        parts[crc32(name.encode()) % HELD_OUT_ONE_IN == 0].append(text)
    return parts


def _tokens(texts: Sequence[str]) -> Tensor:
    """Return texts as tokens [bytes], each with the mark of its end."""
    encode = Tokenizer(BYTES).encode
    return torch.tensor(
        [token for text in texts for token in (*encode(text), BYTES[END])], dtype=torch.int16
    ).long()


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
