"""Layouts by name: which cache groups a model has, one TOML file each in `fixtures/layouts`.

A layout is what an engine derives from a model's configuration: the groups in the order in which
they are allocated, with the block sizes that the engine chooses. The files of published models
carry the arithmetic, and the source of every number, as comments. A trace embeds the whole layout,
so a file may be changed without changing any stored trace.

The files of published models have a table `[model]` as well: the layers themselves, from which
`cachewitness plan` works (`cachewitness.workloads.model` describes it). Traces do not need it, and
`load` does not look at it.
"""

from __future__ import annotations

import os
from math import lcm
from pathlib import Path
from typing import Any, get_args

import msgspec

from cachewitness._util import data, reading
from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import SEGMENT_TOKENS_MAX, GroupKind, GroupSpec, Layout
from cachewitness.workloads.model import Model, choices, model_of, refuse_unknown_fields

GROUPS_MAX = 64
LENGTH_MAX = SEGMENT_TOKENS_MAX
"""No text of a prompt is longer, so nothing could be tried at a block, a window or a common
multiple of blocks beyond it."""

# The one field, in tokens, that a kind needs and the others must not have.
_SPAN = {"sliding": "window", "chunked": "chunk"}


def names() -> list[str]:
    """Return the names of the layouts that come with the harness, sorted."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().glob("*.toml"))


def load(name_or_path: str | Path) -> Layout:
    """Read a layout, by name or from a file (anything with a separator or the suffix `.toml`).

    Raises UsageError if no layout has that name, with the nearest one, or if the file does not
    describe a layout, with the file and the field.
    """
    return _read(_path(name_or_path))


def has_model(name_or_path: str | Path) -> bool:
    """Return whether a layout says what model it is of. Raises UsageError as `load` does."""
    return "model" in _parsed(_path(name_or_path))


def model(name_or_path: str | Path) -> Model:
    """Read the model of a layout, by name or from a file as `load` does.

    Raises UsageError as `load` does, and if the layout is made up and has no model.
    """
    path = _path(name_or_path)
    raw = _parsed(path)
    if "model" not in raw:
        raise UsageError(
            f"{path}: no table `model`, which planning needs; layouts that have one:"
            f" {', '.join(models())}"
        )
    return model_of(raw["model"], path)


def models() -> list[str]:
    """Return the names of the layouts that come with the harness and say what model they are of,
    sorted.
    """
    return [name for name in names() if "model" in _parsed(_folder() / f"{name}.toml")]


def _folder() -> Path:
    return data.fixtures() / "layouts"


def _path(name_or_path: str | Path) -> Path:
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or Path(text).name != text:
        return Path(text)
    known = names()
    if text not in known:
        raise UsageError(f"no layout is called {text!r}; {choices(text, known)}")
    return _folder() / f"{text}.toml"


def _parsed(path: Path) -> dict[str, Any]:
    hint = (
        "; `cachewitness plan layout` makes a layout of a configuration"
        if path.suffix == ".json"
        else ""
    )
    return reading.toml(path, hint=hint)


def _read(path: Path) -> Layout:
    raw = _parsed(path)
    raw.pop("model", None)
    try:
        _refuse_unknown(raw)
        layout = msgspec.convert(raw, Layout, strict=True)
        _check(layout)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None
    return layout


def _refuse_unknown(raw: dict[str, Any]) -> None:
    # msgspec skips fields that it does not know; a misspelt `window` must not become a group
    # without one.
    refuse_unknown_fields(raw, Layout, "$", "model")
    groups = raw.get("groups")
    for index, group in enumerate(groups if isinstance(groups, list) else []):
        if not isinstance(group, dict):
            continue
        refuse_unknown_fields(group, GroupSpec, f"$.groups[{index}]")
        kind = group.get("kind")
        if isinstance(kind, str) and kind not in get_args(GroupKind):
            raise msgspec.ValidationError(
                f"unknown kind {kind!r} - at `$.groups[{index}].kind`;"
                f" {choices(kind, get_args(GroupKind))}"
            )


def _check(layout: Layout) -> None:
    if not 1 <= len(layout.groups) <= GROUPS_MAX:
        number = f"{len(layout.groups)} groups" if layout.groups else "empty"
        raise msgspec.ValidationError(
            f"{number} - at `$.groups`; name at least one cache group, at most {GROUPS_MAX}"
        )
    for index, group in enumerate(layout.groups):
        sizes = {"block_size": group.block_size, "layers": group.layers}
        needed = _SPAN.get(group.kind)
        if needed is not None:
            sizes[needed] = getattr(group, needed)
        for field, value in sizes.items():
            if not 1 <= value <= LENGTH_MAX:
                raise msgspec.ValidationError(
                    f"{value} - at `$.groups[{index}].{field}`; a {group.kind} group needs at least"
                    f" 1, at most {LENGTH_MAX}"
                )
        for field in _SPAN.values():
            if field != needed and getattr(group, field):
                raise msgspec.ValidationError(
                    f"out of place - at `$.groups[{index}].{field}`; a {group.kind} group has no"
                    f" {field}"
                )
    unit = lcm(*(group.block_size for group in layout.groups))
    if unit > LENGTH_MAX:
        raise msgspec.ValidationError(
            f"{unit} tokens between positions that all groups share - at `$.groups`; the block"
            f" sizes allow at most {LENGTH_MAX}"
        )
