"""Opens a configuration and returns the model that it describes, as the table `[model]` of a layout
does.

A configuration of a model with several parts (`text_config`) counts by its text part: what the
others keep is no prefix cache.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cachewitness._util import reading
from cachewitness._util.errors import UsageError
from cachewitness.plan.config.families import FAMILIES, Family
from cachewitness.plan.config.fields import Fields
from cachewitness.workloads.model import Model, choices, model_of

SIZE_MAX = 4 << 20
"""No configuration has more bytes."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
"""What a checkpoint may be called: such a name is safe in a command line."""
UNNAMED = "<model>"
SERVED = ("bfloat16", "float16", "float32")


def table_of(path: Path) -> dict[str, Any]:
    """Return the table `[model]` of a configuration, as plain data.

    Raises UsageError with the file and the field for one that cannot be read, is too large or does
    not fit, and with the known ones for a `model_type` that is not.
    """
    raw = _parsed(path)
    notes: list[str] = []
    table = raw if raw.get("text_config") is None else raw["text_config"]
    if not isinstance(table, dict):
        raise UsageError(f"{path}: text_config: no table")
    where = f"{path}: " if table is raw else f"{path}: text_config."
    family = _family(path, raw, table)
    fields = Fields(where, table, family.defaults, notes)
    dtype = _dtype(Fields(f"{path}: ", raw | table, {}, notes))
    if raw.get("quantization_config") is not None or table.get("quantization_config") is not None:
        notes.append(
            "dtype of keys and values: quantization_config is not read, and may make them smaller"
            " than the weights say"
        )
    caches = family.caches(fields, dtype)
    length = fields.count("max_position_embeddings", also=family.length)
    name = raw.get("_name_or_path")
    return {
        "checkpoint": name if isinstance(name, str) and NAME.fullmatch(name) else UNNAMED,
        "config": str(path),
        "sources": [str(path)],
        "unverified": list(dict.fromkeys(notes)),
        "max_length": length,
        "caches": caches,
    }


def model(path: Path) -> Model:
    """Return the model of a configuration. Raises UsageError as `table_of` does."""
    return model_of(table_of(path), path)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(
            reading.whole(path, SIZE_MAX)
        )  # and not msgspec: published files have numbers such as Infinity
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: no table of fields, as a configuration is")
    return raw


def _family(path: Path, raw: dict[str, Any], table: dict[str, Any]) -> Family:
    """Return the family of the inner table, or of the whole file if that says no type of its
    own.
    """
    kind = table.get("model_type", raw.get("model_type"))
    if not isinstance(kind, str):
        raise UsageError(f"{path}: model_type: missing, or no text; known: {', '.join(FAMILIES)}")
    if kind not in FAMILIES:
        raise UsageError(
            f"{path}: model_type: {kind[:80]!r} is not known here; {choices(kind[:80], FAMILIES)}"
        )
    return FAMILIES[kind]


def _dtype(fields: Fields) -> str:
    """Return the type in which keys and values are kept: that of the weights, as vLLM's `auto`
    chooses it.
    """
    for field in ("dtype", "torch_dtype"):
        said = fields.word(field, SERVED)
        if said == "float32":
            fields.notes.append(
                f"dtype: {field} is float32, which vLLM's `auto` serves in bfloat16"
            )
            return "bfloat16"
        if said is not None:
            return said
    fields.notes.append(
        "dtype: not in the configuration; bfloat16 is what such weights are served in"
    )
    return "bfloat16"
