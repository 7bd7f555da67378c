"""Checkpoints come back as they were saved, or not at all and with one line that says why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cachewitness_reference.toy_model import checkpoint
from cachewitness_reference.toy_model.config import ModelError
from cachewitness_reference.toy_model.weights import random_weights
from suites.support.toy_models import EVERY_TYPE, model

pytestmark = pytest.mark.toy
CONFIG = model(*EVERY_TYPE)
TOKENIZER = {"model": {"vocab": {"<|pad|>": 0, "<|endoftext|>": 1}}}
RECIPE = {"seed": 1, "steps": 10, "accuracy": {"local": 0.5}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    checkpoint.save(folder, CONFIG, random_weights(CONFIG, 1), TOKENIZER, RECIPE)
    return folder


def test_checkpoint_comes_back_as_it_was_saved(saved: Path) -> None:
    loaded = checkpoint.load(saved)
    original = random_weights(CONFIG, 1)
    assert (loaded.config, loaded.path) == (CONFIG, saved)
    assert all(torch.equal(loaded.weights[name], original[name]) for name in original) and len(
        loaded.weights
    ) == len(original)
    assert loaded.sha256 == hashlib.sha256((saved / "model.safetensors").read_bytes()).hexdigest()
    assert json.loads((saved / "recipe.json").read_text()) == RECIPE
    assert {tensor.dtype for tensor in checkpoint.load(saved, torch.float64).weights.values()} == {
        torch.float64
    }


def test_equal_models_are_equal_files(saved: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "again", CONFIG, random_weights(CONFIG, 1), TOKENIZER, RECIPE)
    assert (tmp_path / "again" / "SHA256SUMS").read_text() == (saved / "SHA256SUMS").read_text()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def resum(folder: Path) -> None:
    names = [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    sums = (
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names
    )
    (folder / "SHA256SUMS").write_text("".join(sums))


def reconfigure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    resum(folder)


def overwrite(path: Path, text: str) -> None:
    path.write_text(text)
    if path.name != "SHA256SUMS":
        resum(path.parent)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no sums": (
        lambda f: (f / "SHA256SUMS").unlink(),
        "SHA256SUMS: cannot be read (No such file or directory); restore",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "model.safetensors: cannot be read",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json: cannot be read"),
    "a bit of the weights": (
        lambda f: flip(f / "model.safetensors"),
        "model.safetensors: its SHA-256 is not the one in",
    ),
    "a bit of the recipe": (
        lambda f: flip(f / "recipe.json"),
        "recipe.json: its SHA-256 is not the one in",
    ),
    "no sum of the weights": (
        lambda f: overwrite(f / "SHA256SUMS", ""),
        "SHA256SUMS: config.json is not listed",
    ),
    "sums of something else": (
        lambda f: overwrite(f / "SHA256SUMS", "nonsense\n"),
        "SHA256SUMS: 'nonsense' is no sum",
    ),
    "a configuration cut short": (
        lambda f: overwrite(f / "config.json", "{"),
        "config.json: not a JSON object",
    ),
    "weights that are none": (
        lambda f: overwrite(f / "model.safetensors", "x" * 99),
        "model.safetensors: not safetensors",
    ),
    "a larger model": (
        lambda f: reconfigure(f, hidden_size=64),
        "model.embed_tokens.weight has the shape (61, 32)",
    ),
    "a layer more": (
        lambda f: reconfigure(f, layer_types=[*EVERY_TYPE, "mamba2"]),
        "layers.4.input_layernorm.weight is missing",
    ),
    "a layer less": (
        lambda f: reconfigure(f, layer_types=EVERY_TYPE[:3]),
        "belongs to no layer that config.json describes",
    ),
    "an unknown layer": (
        lambda f: reconfigure(f, layer_types=["hyena"]),
        "layer_types: 'hyena' is unknown",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoint_is_refused_in_one_line_naming_the_file(
    damage: str, saved: Path
) -> None:
    harm, expected = DAMAGE[damage]
    harm(saved)
    with pytest.raises(ModelError) as refused:
        checkpoint.load(saved)
    assert expected in str(refused.value) and str(saved) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError,
        match=r"none/SHA256SUMS: cannot be read .*; restore the folder or train the model again",
    ):
        checkpoint.load(tmp_path / "none")


def test_parameters_of_another_model_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is missing"):
        checkpoint.save(tmp_path, CONFIG, random_weights(model("mamba2"), 1), TOKENIZER, RECIPE)
    assert not [*tmp_path.iterdir()]


def test_checkpoint_of_more_than_twelve_megabytes_is_refused(tmp_path: Path) -> None:
    large = model("mamba2", vocab_size=100_000)
    with pytest.raises(ModelError, match="at most 12000000 are kept, so choose smaller sizes"):
        checkpoint.save(tmp_path, large, random_weights(large, 1), TOKENIZER, RECIPE)
