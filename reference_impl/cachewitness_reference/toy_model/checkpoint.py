"""Checkpoints on disk: a folder that says what it holds and proves that it still does.

`config.json`, `model.safetensors`, `tokenizer.json`, `recipe.json` (what trained it, and how well
it answers) and `SHA256SUMS` over all of them, as `sha256sum -c` reads it. The sums are written last
and compared first: a score of half-written or altered parameters would say something about no model
that anyone trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from cachewitness_reference.toy_model import laguna
from cachewitness_reference.toy_model import weights as parameters
from cachewitness_reference.toy_model.config import ModelError, ToyConfig, from_dict, to_dict

CONFIG, WEIGHTS, TOKENIZER, RECIPE, SUMS = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "recipe.json",
    "SHA256SUMS",
)
WEIGHTS_BYTES_MAX = 12_000_000
FILE_BYTES_MAX = 1 << 28
"""What is written at most, and what is read of one file."""
REMEDY = "restore the folder or train the model again"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model: `weights` by name, `sha256` of the file that held them, the folder `path`."""

    config: ToyConfig
    weights: dict[str, Tensor]
    sha256: str
    path: Path


def save(
    folder: Path, config: ToyConfig, weights: Mapping[str, Tensor], tokenizer: Any, recipe: Any
) -> None:
    """Write a checkpoint in its own dtype. `tokenizer` and `recipe` are the JSON contents of their
    files.

    Raises ModelError if the parameters are not those of the configuration or take more than 12 MB.
    """
    check_shapes(weights, config, folder / WEIGHTS)
    write(folder, weights, {CONFIG: to_dict(config), TOKENIZER: tokenizer, RECIPE: recipe})


def write(folder: Path, weights: Mapping[str, Tensor], files: Mapping[str, Any]) -> None:
    """Write parameters, JSON files by name, and the sums of both."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    raw = safetensors.torch.save(plain, {"format": "pt"})
    if len(raw) > WEIGHTS_BYTES_MAX:
        raise ModelError(
            f"{folder / WEIGHTS}: {len(raw)} bytes; at most {WEIGHTS_BYTES_MAX} are kept, so choose"
            " smaller sizes"
        )
    contents = {WEIGHTS: raw} | {
        name: (json.dumps(content, indent=1) + "\n").encode() for name, content in files.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    sums = (
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(contents.items())
    )
    (folder / SUMS).write_text("".join(sums))


def load(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Checkpoint:
    """Read a checkpoint; its parameters come in `dtype`, whatever was stored.

    Raises ModelError if a file is missing or altered, or if the parameters are not those of the
    configuration.
    """
    verified = _verified(folder)
    config = from_dict(_json(verified[CONFIG], folder / CONFIG), str(folder / CONFIG))
    try:
        stored = safetensors.torch.load(verified[WEIGHTS])
    except SafetensorError as error:
        raise ModelError(f"{folder / WEIGHTS}: not safetensors: {error}; {REMEDY}") from None
    if config.attention_gate == "softplus" and laguna.is_theirs(stored):
        stored = laguna.ours(stored, config)
    check_shapes(stored, config, folder / WEIGHTS)
    weights = {name: tensor.to(device=device, dtype=dtype) for name, tensor in stored.items()}
    return Checkpoint(config, weights, hashlib.sha256(verified[WEIGHTS]).hexdigest(), folder)


def check_shapes(weights: Mapping[str, Tensor], config: ToyConfig, where: Path) -> None:
    """Raise ModelError unless `weights` are exactly the parameters of the configuration."""
    expected = dict(parameters.shapes(config))
    for name, shape in expected.items():
        if name not in weights:
            raise ModelError(
                f"{where}: {name} is missing; parameters and {CONFIG} must come from the same"
                " training"
            )
        found = tuple(weights[name].shape)
        if found != shape:
            raise ModelError(
                f"{where}: {name} has the shape {found}, {CONFIG} describes {shape}; correct one of"
                " them"
            )
    for name in weights:
        if name not in expected:
            raise ModelError(
                f"{where}: {name} belongs to no layer that {CONFIG} describes; correct one of them"
            )


def _verified(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files by name, each found to have its sum."""
    contents = {}
    for line in _read(folder / SUMS).decode(errors="replace").splitlines():
        expected, separator, name = line.partition("  ")
        if not separator or Path(name).name != name:
            raise ModelError(f"{folder / SUMS}: {line!r} is no sum of a file here; {REMEDY}")
        content = _read(folder / name)
        if hashlib.sha256(content).hexdigest() != expected:
            raise ModelError(f"{folder / name}: its SHA-256 is not the one in {SUMS}; {REMEDY}")
        contents[name] = content
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        if name not in contents:
            raise ModelError(f"{folder / SUMS}: {name} is not listed; {REMEDY}")
    return contents


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{path}: cannot be read ({why}); {REMEDY}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ModelError(f"{path}: larger than {FILE_BYTES_MAX:,} bytes; {REMEDY}")
    return content


def _json(content: bytes, where: Path) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: not a JSON object: {error}; {REMEDY}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{where}: not a JSON object; {REMEDY}")
    return found
