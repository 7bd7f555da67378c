"""Layouts by name: which cache groups a model has, one TOML file each in `fixtures/layouts`.

A layout is what an engine makes of a model's configuration: the groups in the order in which they are allocated, with
the block sizes that the engine settles on. The files of published models carry the arithmetic, and the source of every
number, as comments. A trace embeds the whole layout, so a file may be changed without changing any stored trace.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

import msgspec

from harness import data
from harness.errors import UsageError
from harness.trace import GroupKind, GroupSpec, Layout

# The one field, in tokens, that a kind needs and the others must not have.
_SPAN = {"sliding": "window", "chunked": "chunk"}


def names() -> list[str]:
    """Return the names of the layouts that come with the harness, sorted."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().glob("*.toml"))


def load(name_or_path: str | Path) -> Layout:
    """Read a layout, by name or from a file (anything with a separator or the suffix `.toml`).

    Raises UsageError if no layout has that name, with the nearest one, or if the file does not describe a layout, with
    the file and the field.
    """
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or Path(text).name != text:
        return _read(Path(text))
    known = names()
    if text not in known:
        raise UsageError(f"no layout is called {text!r}; {_choices(text, known)}")
    return _read(_folder() / f"{text}.toml")


def _folder() -> Path:
    return data.fixtures() / "layouts"


def _read(path: Path) -> Layout:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    try:
        _refuse_unknown(raw)
        layout = msgspec.convert(raw, Layout, strict=True)
        _check(layout)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from None
    return layout


def _refuse_unknown(raw: dict[str, Any]) -> None:
    # msgspec skips fields that it does not know; a misspelt `window` must not become a group without one.
    _refuse_unknown_fields(raw, Layout, "$")
    groups = raw.get("groups")
    for index, group in enumerate(groups if isinstance(groups, list) else []):
        if not isinstance(group, dict):
            continue
        _refuse_unknown_fields(group, GroupSpec, f"$.groups[{index}]")
        kind = group.get("kind")
        if isinstance(kind, str) and kind not in get_args(GroupKind):
            raise msgspec.ValidationError(
                f"unknown kind {kind!r} - at `$.groups[{index}].kind`; {_choices(kind, get_args(GroupKind))}"
            )


def _refuse_unknown_fields(raw: dict[str, Any], struct: type[msgspec.Struct], where: str) -> None:
    for field in raw:
        if field not in struct.__struct_fields__:
            raise msgspec.ValidationError(
                f"unknown field {field!r} - at `{where}`; {_choices(field, struct.__struct_fields__)}"
            )


def _check(layout: Layout) -> None:
    if not layout.groups:
        raise msgspec.ValidationError("empty - at `$.groups`; name at least one cache group")
    for index, group in enumerate(layout.groups):
        sizes = {"block_size": group.block_size, "layers": group.layers}
        needed = _SPAN.get(group.kind)
        if needed is not None:
            sizes[needed] = getattr(group, needed)
        for field, value in sizes.items():
            if value < 1:
                raise msgspec.ValidationError(
                    f"{value} - at `$.groups[{index}].{field}`; a {group.kind} group needs at least 1"
                )
        for field in _SPAN.values():
            if field != needed and getattr(group, field):
                raise msgspec.ValidationError(
                    f"out of place - at `$.groups[{index}].{field}`; a {group.kind} group has no {field}"
                )


def _choices(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(known)}"
