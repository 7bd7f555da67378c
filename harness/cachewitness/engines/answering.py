"""What engines have in common that only answer (docs/answers.md): what they refuse, their
header, and how they are stepped.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness._util.lines import one_line
from cachewitness.core.engine_failure import message_of
from cachewitness.core.events import Answer, Ended, Event, Header, Rules
from cachewitness.core.trace_format import Abort, Finish, Op, Step, Submit, TraceHeader

STEPS_MAX = 100_000
"""A request that has not ended after so many steps never will."""


def chosen(engine: str, options: Mapping[str, str], name: str, known: Collection[str]) -> str:
    """Return the value of an option of an engine's name, by default the first that is known.

    Raises UsageError for a value that is not known.
    """
    value = options.get(name, next(iter(known)))
    if value not in known:
        raise UsageError(f"--engine {engine}: {name} is {_either(known)}, not {value!r}")
    return value


def takes(engine: str, header: TraceHeader, known: Collection[str]) -> None:
    """Raise UsageError if a trace has options that the engine does not take."""
    unknown = sorted(set(header.options) - set(known))
    if unknown:
        taken = (
            f"the option {next(iter(known))}"
            if len(known) == 1
            else f"the options {', '.join(known)}"
        )
        raise UsageError(f"--engine {engine}: takes {taken} of a trace, not {', '.join(unknown)}")


def chunk_of(engine: str, header: TraceHeader, default: int) -> int:
    """Return how many tokens a step computes at most: the option `chunk` of a trace.

    Raises UsageError if that is not a number of tokens.
    """
    chunk = header.options.get("chunk", default)
    if type(chunk) is not int or chunk < 1:
        raise UsageError(
            f"--engine {engine}: chunk is a number of tokens, 1 or more, not {chunk!r}"
        )
    return chunk


def checkpoint_of(engine: str, options: Mapping[str, str]) -> str:
    """Return the checkpoint that the option of an engine's name names, empty if none.

    Raises UsageError if there is none there, or a model is named beside it.
    """
    named = options.get("checkpoint", "")
    if named and "model" in options:
        raise UsageError(f"--engine {engine}: model and checkpoint: name one of them")
    path = Path(named).expanduser()
    if named and not (path.is_dir() or path.is_file()):
        raise UsageError(f"--engine {engine}: checkpoint: there is no {path}")
    return str(path) if named else ""


def named_checkpoint(engine: str, options: Mapping[str, str]) -> Path:
    """Return the checkpoint that the option of an engine's name names.

    Raises UsageError without one, as tiny models know no text.
    """
    if not (checkpoint := checkpoint_of(engine, options)):
        raise UsageError(
            f"--engine {engine}: its tiny models know no text; name a checkpoint:"
            f" {engine}:checkpoint=…"
        )
    return Path(checkpoint)


@contextmanager
def loading(engine: str, checkpoint: Path) -> Iterator[None]:
    """Make a UsageError, of one line, of whatever a library raises over the files of a
    checkpoint.
    """
    try:
        yield
    except Exception as error:
        # All lines of the message: the first one of some libraries is a place in their source.
        why = one_line(f"{type(error).__name__}: {message_of(error)}")
        raise UsageError(f"--engine {engine}: checkpoint {checkpoint}: {why}") from None


def needs(engine: str, packages: Collection[str], install: str) -> None:
    """Raise EngineMissing, with the command that installs them, unless the packages are there."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise EngineMissing(f"--engine {engine}: needs {package}; {install}", install)


def full_and_recurrent(engine: str, header: TraceHeader, block: str) -> int:
    """Return the block, in tokens, of the recurrent group of a layout that has a full one in front
    of it and no other group. `block`: what the engine takes it for.

    Raises UsageError for another layout.
    """
    groups = header.layout.groups
    if [group.kind for group in groups] != ["full", "recurrent"]:
        raise UsageError(
            f"--engine {engine}: layout {header.layout.name} does not fit: it needs a full group"
            f" and a recurrent one, whose block is {block}"
        )
    return groups[1].block_size


def model_folder(
    engine: str, model: str, options: Mapping[str, str], variable: str, file: str, made_by: str
) -> Path:
    """Return the folder of a model, in the folder that the option `models` names, or else an
    environment variable.

    Raises EngineMissing, with the command that makes the models, if it has no such file.
    """
    folder = options.get("models") or os.environ.get(variable, "")
    path = Path(folder).expanduser() / model
    if not folder or not (path / file).is_file():
        where = f"{path} has none" if folder else f"name their folder, models=DIR or {variable}"
        raise EngineMissing(
            f"--engine {engine}: needs the model {model}: {where}; {made_by} makes them", made_by
        )
    return path


def declared(
    engine: str, header: TraceHeader, rules: Rules, *, version: str = "", salt: bool = False
) -> Header:
    """Return the header of an engine that was opened for a trace: it tells no pages, and its
    clients may go away.
    """
    return Header(
        engine=engine,
        engine_version=version,
        level="answers",
        pools=[],
        groups=[],
        rules=rules,
        capabilities=["abort", "salt"] if salt else ["abort"],
        trace=header.name,
    )


@dataclass(eq=False, kw_only=True)
class Generating:
    """A request and what was generated for it; `restored` tokens of its prompt were not
    computed.
    """

    r: str
    restored: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)

    def answer(self, ended: Ended) -> Answer:
        """Return what it has generated."""
        return Answer(
            r=self.r,
            tokens=self.tokens,
            logprobs=self.logprobs,
            restored=self.restored,
            ended=ended,
        )


class Steppable(Protocol):
    """A server that computes when it is told to. `ended`: what it has to tell and was not
    collected yet, answers above all.
    """

    ended: list[Event]

    def submit(self, op: Submit) -> None:
        """Take a request in."""

    def step(self) -> None:
        """Compute one batch."""

    def cancel(self, r: str) -> None:
        """Take a request out, wherever it is."""

    def has(self, r: str) -> bool:
        """Whether a request waits or runs."""


Stepped = TypeVar("Stepped", bound=Steppable)


class SteppedEngine(Generic[Stepped]):
    """A server that is stepped, behind the three methods."""

    def __init__(self, server: Stepped, header: Header) -> None:
        self.server = server
        self.header = header

    def describe(self) -> Header:
        """Return what the engine declares."""
        return self.header

    def apply(self, op: Op) -> list[Event]:
        """Carry one operation out and return what came with it."""
        if isinstance(op, Submit):
            self.server.submit(op)
        elif isinstance(op, Step):
            self.server.step()
        elif isinstance(op, Abort):
            self.server.cancel(op.r)
        elif isinstance(op, Finish):
            self._wait(op.r)
        ended, self.server.ended = self.server.ended, []
        return ended

    def _wait(self, r: str) -> None:
        for _ in range(STEPS_MAX):
            if not self.server.has(r):
                return
            self.server.step()
        raise RuntimeError(f"{r} has not ended after {STEPS_MAX} steps")

    def close(self) -> None:
        """Let go of everything."""


def _either(known: Collection[str]) -> str:
    return " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"
