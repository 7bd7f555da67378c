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
from cachewitness.plan.config.quantization import kv_cache_dtype
from cachewitness.workloads.model import Model, model_of

SIZE_MAX = 4 << 20
"""No configuration has more bytes."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
"""What a checkpoint may be called: such a name is safe in a command line."""
UNNAMED = "<model>"
CONFIG_FILE = "config.json"
QUANTIZATION_FILE = "hf_quant_config.json"
"""Where older checkpoints of modelopt say how they are quantized, beside `config.json`."""
REFUSED = {
    "deepseek_v4": "its compressed vectors lie in blocks that vLLM packs by a rule of their own;"
    " runs take --layout deepseek-v4-flash",
    "phi4flash": "half its layers read one layer's keys and values, by a rule that no release of"
    " vLLM since 0.10.2 has",
    "qwen4_exp": "the keys of its indexer and the states of its embeddings lie in blocks that vLLM"
    " packs by a rule of their own",
    "qwen4_exp_text": "the keys of its indexer and the states of its embeddings lie in blocks that"
    " vLLM packs by a rule of their own",
    "kimi_k3": "which of its layers have a state beside latent vectors is not worked out here",
    "bailing_hybrid": "which of two models of vLLM reads it, and what the heads of its states are,"
    " is not worked out here",
}
"""Types whose caches are not worked out, and why."""
DECISIVE = re.compile(
    "layer_types|layers_block|pattern|head|kv_|window|state|ssm|mamba|conv|lora_rank|rope_head"
    "|linear|expand|index|compress|chunk|full_att|num_hidden_layers"
)
DECISIVE_MOST = 12
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
    caches = family.caches(fields, dtype)
    length = fields.count("max_position_embeddings", also=family.length)
    name = raw.get("_name_or_path")
    more: dict[str, Any] = {"kv_cache_dtype": _kv_cache_dtype(path, raw, table)}
    more |= family.drafters(fields)
    if len(caches) > 1:
        more["order"] = family.order(fields)
    return {field: value for field, value in more.items() if value} | {
        "checkpoint": name if isinstance(name, str) and NAME.fullmatch(name) else UNNAMED,
        "config": str(path),
        "sources": [str(path)],
        "unverified": list(dict.fromkeys(notes)),
        "max_length": length,
        "caches": caches,
    }


def _kv_cache_dtype(path: Path, raw: dict[str, Any], table: dict[str, Any]) -> str:
    """Return the type of keys and values that the checkpoint names, in the file or beside it."""
    for place, of in (("", raw), ("text_config.", table)):
        if of.get("quantization_config") is not None:
            field = f"{path}: {place}quantization_config"
            return kv_cache_dtype(of["quantization_config"], field)
    beside = path.with_name(QUANTIZATION_FILE)
    if path.name == CONFIG_FILE and beside.is_file():
        return kv_cache_dtype(_parsed(beside), str(beside))
    return ""


def model(path: Path) -> Model:
    """Return the model of a configuration. Raises UsageError as `table_of` does."""
    return model_of(table_of(path), path)


def model_type(path: Path) -> str:
    """Return the type of a configuration, that of its text part if it says one. Raises UsageError
    as `table_of` does.
    """
    raw = _parsed(path)
    table = raw if raw.get("text_config") is None else raw["text_config"]
    if not isinstance(table, dict):
        raise UsageError(f"{path}: text_config: no table")
    return _kind(path, raw, table)


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
    kind = _kind(path, raw, table)
    if kind in REFUSED:
        raise UsageError(f"{path}: model_type: {kind!r}: {REFUSED[kind]}")
    if kind not in FAMILIES:
        raise UsageError(f"{path}: model_type: {kind[:80]!r} is not known here; {_decisive(table)}")
    return FAMILIES[kind]


def _kind(path: Path, raw: dict[str, Any], table: dict[str, Any]) -> str:
    kind = table.get("model_type", raw.get("model_type"))
    if not isinstance(kind, str):
        raise UsageError(f"{path}: model_type: missing, or no text; known: {', '.join(FAMILIES)}")
    return kind


def _decisive(table: dict[str, Any]) -> str:
    """Return which fields of an unknown configuration decide what is cached."""
    found = sorted(
        field[:40]
        for field in table
        if isinstance(field, str) and DECISIVE.search(field) and table[field] is not None
    )
    if not found:
        return "the file has no field that says what a layer keeps"
    more = f" and {len(found) - DECISIVE_MOST} more" if len(found) > DECISIVE_MOST else ""
    return (
        f"what it keeps would follow from {', '.join(found[:DECISIVE_MOST])}{more}, by the model's"
        " code; a layout with a table [model] says it (docs/reference/plan.md)"
    )


def _dtype(fields: Fields) -> str:
    """Return the type in which keys and values are kept: that of the weights, as vLLM's `auto`
    chooses it.
    """
    for field in ("dtype", "torch_dtype"):
        dtype = fields.word(field, SERVED)
        if dtype == "float32":
            fields.notes.append(
                f"dtype: {field} is float32, which vLLM's `auto` serves in bfloat16"
            )
            return "bfloat16"
        if dtype is not None:
            return dtype
    fields.notes.append(
        "dtype: not in the configuration; bfloat16 is what such weights are served in"
    )
    return "bfloat16"
