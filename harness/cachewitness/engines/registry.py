"""Engines by name: the ones here and those that other packages register.

An engine is named `NAME` or `NAME:key=value,key=value`. Packages register theirs under the
entry-point group `cachewitness.engines`, each a `EngineKind`; a kind is light to import, whatever
the engine needs is imported when it opens.
"""

from __future__ import annotations

import importlib.metadata
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import msgspec

from cachewitness._util import plugins
from cachewitness._util.errors import EngineBroken, EngineMissing, UsageError
from cachewitness._util.names import nearest
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import EngineFailure, NoAnswer, as_exception, describe_error
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Level, TraceHeader
from cachewitness.engines import import_probe
from cachewitness.engines.deadline import Limits, opened
from cachewitness.engines.faults import plant
from cachewitness.engines.isolation.engine import Isolated, Isolation
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.own_process import OwnProcess
from cachewitness.engines.second_tier import SecondTier
from cachewitness.workloads.configurations import Configuration

GROUP = "cachewitness.engines"
MUTANT = "mutant"
"""The option that names a seeded fault; engines need not know it."""
_OWN = "cachewitness."
"""How the registrations of this package begin."""


@dataclass(frozen=True)
class EngineSpec:
    """An engine as the user named it."""

    kind: EngineKind
    options: dict[str, str]
    text: str
    isolation: Isolation | None = None
    """How it is held in a process of its own; None: it runs in the harness's."""
    within: Limits | None = None
    """How long it may take where it runs in the harness's own process; None: as long as it takes.
    """

    @property
    def comparable(self) -> bool:
        """Whether the reference can be run beside it: another engine that follows its policy, or
        itself with a fault.
        """
        return MUTANT in self.options if self.kind.is_reference else self.kind.replays

    @property
    def others(self) -> bool:
        """Whether somebody else wrote it, in another package or as a command: two of it may want
        one port, or one file.
        """
        entry = plugins.registered(GROUP).get(self.kind.name)
        return bool(self.command) or (entry is not None and not entry.value.startswith(_OWN))

    @property
    def foreign(self) -> bool:
        """Whether it is not this package's own code, so that it may do to its process what it
        likes.
        """
        entry = plugins.registered(GROUP).get(self.kind.name)
        return self.kind.process is not None or (
            entry is not None and not entry.value.startswith(_OWN)
        )

    @property
    def tier(self) -> str:
        """The second tier that it has, or the option by which it is asked for one, and which;
        empty if there is none.
        """
        tier = self.kind.tier or SecondTier()
        name = self.options.get(tier.option, "") if tier.option else ""
        return f"{tier.option} {name}" if name else tier.name

    def known_lists(self, version: str) -> tuple[str, ...] | None:
        """Return the files of what the release is known to do against a rule; None if the engine
        has no such lists, or has a planted fault, which no list may excuse.
        """
        known = self.kind.known
        return known.lists(version, self.options) if known and MUTANT not in self.options else None

    @property
    def command(self) -> str:
        """The option that names the command of its process; empty if it is opened in Python."""
        return self.kind.process.command if self.kind.process else ""

    @property
    def configurations(self) -> list[Configuration]:
        """The configurations that are its own, by the options of its name.

        Raises UsageError for an option that does not fit.
        """
        own = self.kind.configurations
        return own.of(self.options) if own else []

    @property
    def own_layouts(self) -> bool:
        """Whether its own configurations are all that it runs on."""
        return self.kind.configurations is not None and self.kind.configurations.alone

    @property
    def one_server(self) -> bool:
        """Whether all traces are asked of one server that was there before."""
        return self.kind.answers_level is not None and self.kind.answers_level.one_server

    @property
    def exact_batches(self) -> bool:
        """Whether an answer of it must not depend on who shares the batch."""
        return self.kind.answers_level is None or self.kind.answers_level.exact_batches

    @property
    def held_apart(self) -> bool:
        """Whether it gets a process of its own if the user says nothing; tensors are compared in
        the harness's.
        """
        return self.foreign and not self.kind.computes

    @property
    def held(self) -> str:
        """Where it runs, in words; empty for an engine of this package in the harness's own
        process.
        """
        if self.isolation is not None:
            memory = f", {self.isolation.memory_gib:g} GiB" if self.isolation.memory_gib else ""
            python = f", by {self.isolation.python}" if self.isolation.python else ""
            return (
                f"in a process of its own, {self.isolation.deadline:g} s for an"
                f" operation{memory}{python}"
            )
        limit = f", {self.within.deadline:g} s for an operation" if self.within else ""
        return (
            f"in process: a death of the engine ends the run without a verdict{limit}"
            if self.foreign or limit
            else ""
        )

    @property
    def only_answers(self) -> bool:
        """Whether it tells nothing but its answers."""
        return self.kind.levels == ("answers",)

    @property
    def one_at_a_time(self) -> str:
        """Why traces on it are not run side by side, each in a copy of the harness's process;
        empty if they may be.
        """
        if self.one_server:
            return "one server answers all of them"
        if self.only_answers and not self.exact_batches:
            return "its answers may depend on what it computes beside them"
        if self.only_answers and self.isolation is None:
            return "it answers in the harness's own process"
        if self.kind.computes:
            return "it computes on a device, or on all cores, by itself"
        return (
            "it runs in the harness's own process"
            if self.foreign and self.isolation is None
            else ""
        )

    @property
    def arguments(self) -> str:
        """What names it on a command line, held as it is here, ready to be pasted into a shell."""
        words = ["--engine", self.text]
        if self.isolation is not None:
            given = self.isolation
            usual = Isolation()
            words += [] if self.held_apart or given.python else ["--isolate", "yes"]
            words += ["--engines", given.engines] if given.engines else []
            words += (
                ["--deadline", f"{given.deadline:g}"] if given.deadline != usual.deadline else []
            )
            words += (
                ["--memory-gib", f"{given.memory_gib:g}"]
                if given.memory_gib != usual.memory_gib
                else []
            )
        elif self.within:
            words += ["--isolate", "no"]
            words += (
                ["--deadline", f"{self.within.deadline:g}"]
                if self.within.deadline != Limits().deadline
                else []
            )
        elif self.held_apart:
            words += ["--isolate", "no"]
        return shlex.join(words)

    def isolated(self, isolation: Isolation) -> EngineSpec:
        """Return the same engine in a process of its own.

        Raises UsageError if its process is a command of the user's, and there is none.
        """
        process = self.kind.process or OwnProcess()
        key = self.options.get(process.key, "") if process.key else ""
        isolation = replace(isolation, named=(key,)) if key else isolation
        if not process.command:
            return replace(self, isolation=replace(isolation, imports=process.imports))
        try:
            command = tuple(shlex.split(self.options.get(process.command, "")))
        except ValueError as error:
            raise UsageError(
                f"--engine: {process.command} in {self.text!r} cannot be split into words: {error}"
            ) from None
        if not command:
            example = f"{self.kind.name}:{process.command}=…"
            raise UsageError(
                f"--engine: {self.kind.name} needs the command that starts it, {example}"
            )
        return replace(self, isolation=replace(isolation, command=command))

    @property
    def _passed_options(self) -> dict[str, str]:
        """The options that its process is told of: all but the command that started it."""
        return {name: value for name, value in self.options.items() if name != self.command}

    def variant(self, options: Mapping[str, str]) -> EngineSpec:
        """Return the same engine with other options, by a name that opens it again."""
        merged = {**self.options, **options}
        text = f"{self.kind.name}:{','.join(f'{key}={value}' for key, value in merged.items())}"
        return replace(self, options=merged, text=text)

    def hurried(self) -> EngineSpec:
        """Return the same engine, which is given up on sooner if it hangs."""
        return self if self.isolation is None else replace(self, isolation=self.isolation.hurried())

    def open(self, header: TraceHeader) -> Engine:
        """Build the engine for a trace, and plant the fault that its options name.

        Raises UsageError if it refuses the trace's configuration, EngineBroken if it fails in
        another way, or says neither.
        """
        try:
            if self.isolation is not None:
                fixed = self.kind.process.fixed if self.kind.process else ()
                return Isolated(self.text, header, self.isolation, self._passed_options, fixed)
            return (
                opened(header, self.within, lambda: self._built(header))
                if self.within
                else self._built(header)
            )
        except (NoAnswer, BadEvents) as error:
            raise EngineBroken(str(error)) from error
        except UsageError:
            raise
        except BaseException as raised:
            # No name here keeps it: its traceback has this frame, and what the frame holds on to
            # would outlive it, processes of the engine among it.
            self._cannot_be_built(header, as_exception(raised))

    def _cannot_be_built(self, header: TraceHeader, cause: Exception) -> NoReturn:
        what = str(cause) if isinstance(cause, EngineFailure) else f"raised {describe_error(cause)}"
        python = (
            f" (in {self.isolation.python}, see `doctor`)"
            if self.isolation and self.isolation.python
            else ""
        )
        raise EngineBroken(
            f"--engine {self.text}: cannot be built for trace {header.name!r}: it {what}{python}"
        ) from cause

    def _built(self, header: TraceHeader) -> Engine:
        options = {key: value for key, value in self.options.items() if key != MUTANT}
        engine: Any = self.kind.open(header, options)
        if mutant := self.options.get(MUTANT):
            plant(mutant, self.kind, engine, header)
            engine.header = msgspec.structs.replace(
                engine.header, engine=f"{engine.header.engine}:{MUTANT}={mutant}"
            )
        opened: Engine = engine
        return opened


def kinds() -> dict[str, EngineKind]:
    """Return every registered kind by name, the built-in ones first.

    A registration that cannot be imported is listed all the same; it says why when somebody opens
    it.
    """
    return {name: _loaded(entry) for name, entry in plugins.registered(GROUP).items()}


def _loaded(entry: importlib.metadata.EntryPoint) -> EngineKind:
    """Import a registration; one of another package first in a process that may end with it."""
    try:
        if not entry.value.startswith(_OWN) and (died := import_probe.died(entry)):
            return _broken(entry, died)
        kind = entry.load()
        if not isinstance(kind, EngineKind):
            raise TypeError(f"a {type(kind).__name__}, not an EngineKind")
        return kind
    except Exception as error:
        return _broken(entry, describe_error(error))


@dataclass(frozen=True)
class _NotImported:
    """Stands for the engine of a registration that cannot be imported."""

    why: str

    def __call__(self, header: TraceHeader, options: Mapping[str, str]) -> Engine:
        raise EngineMissing(self.why)


def _broken(entry: importlib.metadata.EntryPoint, reason: str) -> EngineKind:
    why = f"engine {entry.name!r} ({entry.value}) cannot be imported: {reason}"
    levels: tuple[Level, ...] = ("manager", "scheduler", "answers")
    return EngineKind(name=entry.name, summary=why, levels=levels, open=_NotImported(why))


def _options(text: str) -> list[str]:
    """Return the options of a name, which commas part; those inside JSON do not."""
    parts = [""]
    depth = 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parse(text: str) -> EngineSpec:
    """Read an engine's name and options.

    Raises UsageError for an unknown engine (with the nearest name) or option, EngineMissing for
    options of one that cannot be imported, which nobody knows.
    """
    name, _, rest = text.partition(":")
    known = plugins.registered(GROUP)
    if name not in known:
        raise UsageError(
            f"--engine: no engine is called {name!r}{nearest(name, known, 'ls engines')}"
        )
    kind = _loaded(known[name])
    if rest and isinstance(kind.open, _NotImported):
        raise EngineMissing(kind.open.why)
    options: dict[str, str] = {}
    for part in filter(None, _options(rest)):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"--engine: {part!r} in {text!r} is not of the form key=value")
        if key not in kind.options:
            raise UsageError(f"--engine: {name} has no option {key!r}{nearest(key, kind.options)}")
        if key in options:
            raise UsageError(
                f"--engine: option {key!r} is given twice, as {options[key]!r} and {value!r}"
            )
        options[key] = value
    spec = EngineSpec(kind, options, text)
    return spec.isolated(Isolation()) if spec.command else spec
