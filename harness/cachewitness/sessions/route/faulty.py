"""Faults of a router as pieces of its text: a module with some of them replaced."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

PROMISES, MISSES = "false-promise", "missed-prefix"
"""What is found of a router that foresees too much, and too little."""


class Fault(NamedTuple):
    """A change to the text of a router: each pair is (what stands there, what takes its
    place), and `finding` is what must be found of it.
    """

    story: str
    edits: tuple[tuple[str, str], ...]
    finding: str


class _Changed(SourceLoader):
    """Loads a module whose text was changed."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text

    def get_filename(self, fullname: str) -> str:
        """Return where the text stood before."""
        return self._path

    def get_data(self, path: bytes | str) -> bytes:
        """Return the text."""
        return self._text.encode()


def changed(module: ModuleType, edits: Sequence[tuple[str, str]], name: str) -> ModuleType:
    """Return a module with pieces of its text replaced, each of which stands there once."""
    path = str(module.__file__)
    text = Path(path).read_text(encoding="utf-8")
    for before, after in edits:
        if text.count(before) != 1:
            raise ValueError(f"fault {name}: {before!r} stands {text.count(before)} times")
        text = text.replace(before, after)
    spec = spec_from_loader(f"{module.__name__}.{name}", _Changed(f"{path}.{name}", text))
    assert spec is not None and spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
