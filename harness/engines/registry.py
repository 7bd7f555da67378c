"""Engines by name: the ones here and those that other packages register.

An engine is named `NAME` or `NAME:key=value,key=value`. Packages register theirs under the entry-point group
`cachewitness.engines`, each a `EngineKind`; a kind is light to import, whatever the engine needs is imported when it opens.
"""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.engines.protocol import Engine
from harness.errors import EngineMissing, UsageError
from harness.score.backend import Backend, Opening
from harness.trace import Height, TraceHeader

GROUP = "cachewitness.engines"

Open = Callable[[TraceHeader, Mapping[str, str]], Engine]
Answerer = Callable[[Mapping[str, str], Opening], Backend]
Answer = Callable[[Any], Any]
Answers = Callable[[str, Mapping[str, str]], Mapping[str, Answer]]


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine: what it is, at which heights it runs, which options its name takes, and how one is opened.

    `open(header, options)` builds an engine for one trace; it raises UsageError for options that do not fit and
    EngineMissing if something has to be installed first. `replays` says that the reference can be run beside it.
    `answerer(options, opening)` opens an engine that answers prompts, for one arm of a score; it raises the same errors, and
    UsageError for an opening that the engine does not offer. `computes` says that its steps run on tensors, which it compares.
    `answers(policy, options)` says how the engine answers vectors: a function from input to what is expected, by kind of vector
    (`harness.vectors.form`); it raises UsageError for an input that is refused, and kinds that it cannot answer are not there.
    """

    name: str
    summary: str
    heights: tuple[Height, ...]
    open: Open
    options: Mapping[str, str] = field(default_factory=dict)
    policies: tuple[str, ...] = ("vllm",)
    replays: bool = True
    answerer: Answerer | None = None
    computes: bool = False
    answers: Answers | None = None


@dataclass(frozen=True)
class EngineSpec:
    """An engine as the user named it."""

    kind: EngineKind
    options: dict[str, str]
    text: str

    @property
    def comparable(self) -> bool:
        """Whether the reference can be run beside it: it is another engine, or the reference with a fault planted."""
        return self.kind.replays or "mutant" in self.options

    def open(self, header: TraceHeader) -> Engine:
        """Build the engine for a trace."""
        return self.kind.open(header, self.options)


def kinds() -> dict[str, EngineKind]:
    """Return every registered kind by name, the built-in ones first.

    A registration that cannot be imported is listed all the same; it says why when somebody opens it.
    """
    from harness.engines.reference import ENGINE as REFERENCE
    from harness.engines.vllm import ENGINE as VLLM
    from harness.toy.kind import ENGINE as TOY

    found = {kind.name: kind for kind in (REFERENCE, TOY, VLLM)}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name not in found:
            try:
                found[entry.name] = entry.load()
            except Exception as error:
                found[entry.name] = _broken(entry, error)
    return found


def _broken(entry: importlib.metadata.EntryPoint, error: Exception) -> EngineKind:
    why = f"engine {entry.name!r} ({entry.value}) cannot be imported: {type(error).__name__}: {error}"

    def refuse(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        raise EngineMissing(why)

    return EngineKind(name=entry.name, summary=why, heights=("manager", "scheduler", "server"), open=refuse)


def parse(text: str) -> EngineSpec:
    """Read an engine's name and options.

    Raises UsageError for an unknown engine (with the nearest name) or option.
    """
    name, _, rest = text.partition(":")
    known = kinds()
    if name not in known:
        raise UsageError(f"--engine: no engine is called {name!r}{nearest(name, known)}")
    kind = known[name]
    options: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"--engine: {part!r} in {text!r} is not of the form key=value")
        if key not in kind.options:
            raise UsageError(f"--engine: {name} has no option {key!r}{nearest(key, kind.options)}")
        if key in options:
            raise UsageError(f"--engine: option {key!r} is given twice, as {options[key]!r} and {value!r}")
        options[key] = value
    return EngineSpec(kind, options, text)


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names) or 'none'}"
