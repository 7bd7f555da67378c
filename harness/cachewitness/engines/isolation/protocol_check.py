"""Asks a program every question of the protocol once, and says in plain sentences what it answers
wrongly.

Nothing is judged here but the protocol: whether the engine's cache is right is for a run to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Header
from cachewitness.core.intake import BadEvents, taken_in
from cachewitness.core.trace_format import Layout, Level, Op, Trace, TraceHeader
from cachewitness.engines.isolation.engine import Child, Isolation
from cachewitness.engines.isolation.jsonl import PAGE, unready
from cachewitness.engines.isolation.messages import (
    Apply,
    Close,
    Closed,
    Happened,
    Open,
    Opened,
    Question,
    Raised,
    Ready,
    Refused,
)
from cachewitness.engines.isolation.script import LONG, followed, refusable, script, spelled
from cachewitness.workloads import layouts
from cachewitness.workloads.capabilities import fitting, lacking

TRIED = ("full", "full-mamba", "full-swa", "full-swa-mamba")
"""The layouts that are offered to a program that names none."""
PAGES = 4096
"""Pages of the pool that it is opened with: everything that is asked has room in it."""


class Problem(NamedTuple):
    """What a program does wrongly: in which `part`, what it was asked and what came of it, and
    where its author reads on.

    `asked` and `came` are lines as they went over the pipes; empty for nothing. `section` is a
    heading of docs/reference/protocol.md.
    """

    part: str
    asked: str
    came: str
    wrong: str
    section: str


class Wrong(Exception):
    """A part of the rehearsal ends with a problem."""


@dataclass
class Rehearsal:
    """What came of it: answers by part, problems, and the capabilities that were not asked for."""

    messages: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    not_asked: list[str] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)


def rehearse(command: Sequence[str], isolation: Isolation) -> Rehearsal:
    """Walk through the protocol with a program. Raises UsageError if the command cannot be
    started.
    """
    talk = _Talk(command, isolation)
    try:
        talk.run()
    finally:
        talk.end()
    return talk.report


class _Talk:
    """The conversation. A program that did something wrong is ended, and the next part begins
    with a fresh one.
    """

    def __init__(self, command: Sequence[str], isolation: Isolation) -> None:
        self.report = Rehearsal()
        self._name = command[0]
        self._isolation = isolation
        self._child: Child | None = None
        self._part, self._asked = "", b""

    def run(self) -> None:
        """Walk through all parts; those of the levels and layouts that it is for."""
        ready: list[Ready] = []
        self._try("ready", lambda: ready.append(self._ready()))
        if not ready:
            return
        self.report.levels = ready[0].levels
        for level in ready[0].levels:
            for layout in ready[0].layouts or self._taken(level):
                header = TraceHeader(name="rehearsal", layout=layout, pages=PAGES, level=level)
                header = msgspec.structs.replace(
                    header, policy="" if level == "answers" else "vllm"
                )
                self._try(
                    f"{level} level, layout {layout.name}", partial(self._whole_trace, header)
                )
        if self.report.problems:
            return
        self._try("a line of 100 KB", partial(self._long, header))
        for what, other in refusable(header, ready[0].levels).items():
            self._try(f"a trace with {what}", partial(self._refuses, other, what))
        self._try("fields that are new", partial(self._new_fields, header))
        self._try("the end", self._ends)

    def end(self) -> None:
        """End its process."""
        if self._child is not None:
            self._child.end()
        self._child = None

    def _try(self, part: str, do: Callable[[], Any]) -> None:
        self._part = part
        self.report.messages.setdefault(part, 0)
        try:
            do()
        except Wrong as wrong:
            self.report.problems.append(wrong.args[0])
            self.end()

    # --- the parts --------------------------------------------------------------------------------

    def _ready(self) -> Ready:
        child = self._started()
        if problem := unready(child.ready):
            raise self._wrong(problem, "Ready")
        return child.ready

    def _taken(self, level: Level) -> list[Layout]:
        """Return the layouts that it takes of those that are tried; it named none."""
        taken: list[Layout] = []
        self._try(f"{level} level, layouts that it takes", partial(self._offer, level, taken))
        return taken

    def _offer(self, level: Level, taken: list[Layout]) -> None:
        for layout in map(layouts.load, TRIED):
            header = TraceHeader(name="rehearsal", layout=layout, pages=PAGES, level=level)
            if isinstance(self._record(Open(self._name, header), "Open"), Opened):
                taken.append(layout)
        if not taken:
            raise self._wrong(
                f"it opens none of the layouts {', '.join(TRIED)}; name its own in `ready`", "Ready"
            )

    def _whole_trace(self, header: TraceHeader) -> None:
        """Ask for a trace from `open` to `close`, and for one that is left without `close`."""
        declared = self._open(header)
        trace = Trace(header, script(header))
        self._note_lacking(lacking(trace, declared.capabilities))
        self._carried_out(declared, fitting(trace, declared.capabilities).ops)
        self._expect(Close(), Closed, "Close")
        self._open(header)
        self._carried_out(declared, fitting(trace, declared.capabilities).ops[:1])
        self._open(header)
        self._expect(Close(), Closed, "Close")

    def _long(self, header: TraceHeader) -> None:
        """Ask a question that no buffer of fixed size holds."""
        declared = self._open(header)
        self._carried_out(declared, script(header, prompt=LONG))
        self._expect(Close(), Closed, "Close")

    def _refuses(self, header: TraceHeader, what: str) -> None:
        """Offer a trace that it cannot run, which it has to refuse."""
        answer = self._record(Open(self._name, header), "Open")
        if not isinstance(answer, Refused):
            raise self._wrong(
                f"it was to refuse a trace with {what}, by `refused` with a message", "Open"
            )

    def _new_fields(self, header: TraceHeader) -> None:
        self._open(header)
        self._expect({"do": "close", "later": {"version": [1, None]}}, Closed, "Versions")

    def _ends(self) -> None:
        if not self._started().ends_by_itself():
            self._asked = b""
            raise self._wrong(
                "nothing more is asked, as the pipe of questions was closed, and its process"
                " goes on",
                "Start and end",
            )
        self.end()

    # --- what is said -----------------------------------------------------------------------------

    def _open(self, header: TraceHeader) -> Header:
        answer = self._expect(Open(self._name, header), Opened, "Open")
        try:
            return taken_in(answer.header, header)
        except BadEvents as bad:
            raise self._wrong(str(bad), "Open") from None

    def _carried_out(self, declared: Header, ops: list[Op]) -> None:
        engine = followed(declared)
        section = "Answers level" if declared.level == "answers" else "Events"
        for index, op in enumerate(ops):
            if declared.rules.answering is not None:
                op = spelled(op, declared.rules.answering.vocabulary)
            answer = self._expect(Apply(op), Happened, "Apply")
            try:
                engine.take(answer.events, op, index)
                if op is ops[-1]:
                    engine.rest()
            except BadEvents as bad:
                raise self._wrong(str(bad), section) from None

    def _note_lacking(self, missing: list[str]) -> None:
        self.report.not_asked += [name for name in missing if name not in self.report.not_asked]

    def _expect(self, question: Any, kind: type, section: str) -> Any:
        answer = self._record(question, section)
        wanted = f"`{kind.__name__.lower()}` was expected"
        if isinstance(answer, Refused):
            raise self._wrong(
                f"{wanted}; it refuses what it says that it can do: {answer.message}", section
            )
        if isinstance(answer, Raised):
            raise self._wrong(f"{wanted}; its engine failed: {answer.error}", section)
        if not isinstance(answer, kind):
            raise self._wrong(f"{wanted}; it answers `{type(answer).__name__.lower()}`", section)
        return answer

    def _record(self, question: Question | dict[str, Any], section: str) -> Any:
        child = self._started()
        self._asked = msgspec.json.encode(question)
        opens = isinstance(question, Open)
        try:
            answer = child.answer_to(
                self._asked + b"\n", self._isolation.opening if opens else self._isolation.deadline
            )
        except EngineFailure as failure:
            raise self._wrong(
                f"an answer was expected; however the program {failure}", section
            ) from None
        except UsageError as error:
            raise self._wrong(self._plain(error), section) from None
        self._count()
        return answer

    def _started(self) -> Child:
        if self._child is None:
            self._asked = b""
            try:
                self._child = Child(self._name, self._isolation)
            except EngineFailure as failure:
                raise self._wrong(
                    f"`ready` was expected as its first line; however the program {failure}",
                    "Ready",
                ) from None
            except UsageError as error:
                if "cannot be started" in str(error):
                    raise
                raise self._wrong(self._plain(error), "Ready") from None
            self._count()
        return self._child

    def _count(self) -> None:
        self.report.messages[self._part] = 1 + self.report.messages.get(self._part, 0)

    def _plain(self, error: UsageError) -> str:
        return str(error).removeprefix(f"--engine {self._name}: ")

    def _wrong(self, what: str, section: str) -> Wrong:
        asked = self._asked.decode()
        came = self._child.heard.decode("utf-8", "backslashreplace") if self._child else ""
        return Wrong(Problem(self._part, asked, came, what, f"{PAGE}, section {section}"))
