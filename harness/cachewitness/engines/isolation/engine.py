"""An engine in a process of its own, as the harness sees it: the same three methods, and two ways
to fail more.

A child serves one trace after another. One that died, hung or was left in the middle of something
is ended and replaced.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness._util.lines import shortened
from cachewitness.core.engine_failure import EngineFailure, NoAnswer, OwnMistake
from cachewitness.core.events import Event, Header
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Op, TraceHeader
from cachewitness.engines.entered import Seen
from cachewitness.engines.isolation.forked import Forks
from cachewitness.engines.isolation.messages import (
    PROTOCOL,
    VERSION,
    Answer,
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
from cachewitness.engines.isolation.process import (
    LINE_MAX,
    Ended,
    Overlong,
    Process,
    Silent,
    Unasked,
)
from cachewitness.engines.patience import Patience

HURRY, HURRIED_MIN = 30, 1.0
"""Who is in a hurry waits for a part of the deadline, of one in so many, but so many seconds at
least."""
HERE = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
SERVE = "from cachewitness.engines.isolation.{} import main; main()"
"""What runs in a child: `serve`; in a process of which children are forked: `template`."""
STACK = re.compile(r"^Current thread .*\n +File (.+)$", re.MULTILINE)
"""The innermost frame in what Python's fault handler writes."""
IDLE_MAX = 8
"""Children that wait for another trace at once: a process that opens many engines does not keep one
of each."""
MESSAGE_MAX = 1000
"""Characters of a message of the child's that are told."""
QUOTED = 80
"""Characters of an answer, or of the last line of an output, that a message repeats."""


@dataclass(frozen=True)
class Isolation:
    """How a child is held: `deadline` in seconds for an operation, `memory_gib` for its data (0: as
    much as there is).

    `opening` is the deadline in seconds for opening an engine, which is imported when it opens for
    the first time. `command` is the user's own child; empty: a Python that opens the engine as it
    is registered, `python` or else the one that runs here. `engines` is the file that the user
    named for it. `named` are variables of the environment that it gets although they look like
    secrets (`cachewitness.engines.isolation.child_env`). `imports` are modules that are imported
    once for all such processes.
    """

    deadline: float = 60.0
    opening: float = 600.0
    memory_gib: float = 0.0
    command: tuple[str, ...] = ()
    python: str = ""
    engines: str = ""
    named: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()

    def hurried(self) -> Isolation:
        """Return the same with a shorter deadline for operations."""
        return replace(self, deadline=min(self.deadline, max(HURRIED_MIN, self.deadline / HURRY)))

    def argv(self, module: str = "serve") -> Sequence[str]:
        """Return the command of a child. Another Python has its own path, and this package
        installed on it.
        """
        if self.python:
            return [self.python, "-P", "-u", "-c", SERVE.format(module)]
        return self.command or [
            sys.executable,
            "-u",
            "-c",
            HERE + SERVE.format(module),
            json.dumps(sys.path),
        ]


class Refusal(UsageError):
    """The engine does not do what it is asked."""


class Child:
    """A child process that speaks the protocol.

    `name` is the engine in messages; `busy`: it owes an answer; `heard` is the line that it said
    last, as it came.
    """

    def __init__(self, name: str, isolation: Isolation) -> None:
        self.name = name
        self._isolation = isolation
        self.busy = True
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Answer)
        self._lines = 0
        try:
            forks = Forks(isolation.argv("template"), isolation.imports, isolation.opening)
            self._process = Process(
                isolation.argv(), int(isolation.memory_gib * (1 << 30)), isolation.named, forks
            )
        except OSError as error:
            raise UsageError(
                f"--engine {name}: {isolation.argv()[0]} cannot be started ({error.strerror})"
            ) from None
        self.heard = b""
        ready = self.answer_to(b"", isolation.opening)
        if not isinstance(ready, Ready) or (ready.protocol, ready.version) != (PROTOCOL, VERSION):
            self.end()
            raise UsageError(
                f"--engine {name}: the first line of its process must be "
                f'{{"is":"ready","protocol":"{PROTOCOL}","version":{VERSION},…}}, not'
                f" {msgspec.json.encode(ready).decode()}"
            )
        self.ready = ready

    def ask(self, question: Question, seconds: float) -> Answer:
        """Ask and return the answer.

        Raises EngineFailure if none comes, UsageError if the engine refuses what was asked,
        NoAnswer if its answer is none of the protocol, OwnMistake if this package's own adapter
        failed in the child.
        """
        answer = self.answer_to(self._encoder.encode(question) + b"\n", seconds)
        if isinstance(answer, Raised) and answer.ours and not self._isolation.command:
            raise OwnMistake(answer.error)
        if isinstance(answer, Raised):
            raise EngineFailure(
                "engine-crashed",
                f"raised {shortened(answer.error, MESSAGE_MAX)}{self._limit(answer.error)}",
                self.output(),
            )
        if isinstance(answer, Refused):
            if answer.missing:
                raise EngineMissing(
                    shortened(answer.message, MESSAGE_MAX), shortened(answer.mend, MESSAGE_MAX)
                )
            raise (BadEvents if answer.bad_events else Refusal)(
                shortened(answer.message, MESSAGE_MAX)
            )
        return answer

    def answer_to(self, line: bytes, seconds: float) -> Answer:
        """Return what it says to a line, empty for none, whatever that means. Raises as `ask`,
        but for what it refuses.
        """
        self.busy, self._lines, self.heard = True, self._lines + 1, b""
        try:
            self.heard = reply = self._process.ask(line, seconds)
        except Ended:
            how = self._process.how_it_ended()
            raise self._lost(
                EngineFailure("engine-crashed", f"{how}{self._last_words()}", self.output())
            ) from None
        except Silent:
            self._process.show_stack()
            message = f"gave no answer within {seconds:g} seconds{self._last_words()}"
            raise self._lost(EngineFailure("hung", message, self.output())) from None
        except Overlong:
            raise self._lost(self._garbage(f"has more than {LINE_MAX} bytes", b"")) from None
        except Unasked as unasked:
            raise self._lost(
                self._garbage("answers nothing that was asked", unasked.args[0])
            ) from None
        try:
            answer: Answer = self._decoder.decode(reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._lost(self._garbage(f"is none of the protocol: {error}", reply)) from None
        self.busy = False
        return answer

    def _garbage(self, why: str, reply: bytes) -> NoAnswer:
        begins = (
            f"; it begins with {reply[:QUOTED].decode('utf-8', 'backslashreplace')!r}"
            if reply
            else ""
        )
        return NoAnswer(f"--engine {self.name}: line {self._lines} of its answers {why}{begins}")

    def _lost(self, error: Exception) -> Exception:
        self.end()
        return error

    def _last_words(self) -> str:
        """Return where a Python that was ended says that it was, else the last line of standard
        error.
        """
        text = self._process.complained.text().strip()
        frames = STACK.findall(text)
        if frames:
            return f"; it was in {frames[-1]}"
        return (
            f"; the last line of its standard error is {text.splitlines()[-1].strip()[:QUOTED]!r}"
            if text
            else ""
        )

    def _limit(self, error: str) -> str:
        limit = self._isolation.memory_gib
        return f"; its limit is {limit:g} GiB" if limit and error.startswith("MemoryError") else ""

    def output(self) -> str:
        """Return what the child printed since it was started, bounded."""
        streams = {
            "standard output": self._process.printed,
            "standard error": self._process.complained,
        }
        texts = {name: output.text().rstrip() for name, output in streams.items()}
        return "\n".join(f"--- {name} ---\n{text}" for name, text in texts.items() if text)

    def ends_by_itself(self) -> bool:
        """Tell it that nothing more is asked, and return whether its process ends then."""
        return self._process.hung_up()

    def end(self) -> None:
        """End the process and everything that it started."""
        self._process.kill()


class Isolated:
    """An engine in a child; see `cachewitness.core.engine.Engine`."""

    def __init__(
        self,
        text: str,
        header: TraceHeader,
        isolation: Isolation,
        options: Mapping[str, str],
        kept: Sequence[str] = (),
    ) -> None:
        """Open it in a child that waits, if there is one: one whose traces had the same values
        of the options in `kept`.
        """
        values = tuple(str(header.options.get(name, "")) for name in kept)
        self._isolation = isolation
        self._patience = Patience(isolation.deadline)
        self._child = _CHILDREN.take(text, isolation, values)
        self._release = weakref.finalize(
            self, _CHILDREN.give_back, self._child, text, isolation, values
        )
        self.engine_seconds: float | None = None
        self.process_seconds: float | None = None
        self.entered: list[Seen] = []
        answer = self._expect(Opened, Open(text, header, dict(options)), isolation.opening)
        self._header: Header = answer.header
        self.entered += answer.entered

    def describe(self) -> Header:
        """Return what the engine declared of itself when it was opened."""
        return self._header

    def apply(self, op: Op) -> list[Event]:
        """Have one operation carried out.

        Raises EngineFailure if the engine raised, died or hung, BadEvents if it refuses the
        operation, which stops this trace alone, NoAnswer if it answers what is no answer.
        """
        try:
            answer = self._expect(Happened, Apply(op), self._patience.seconds(op))
        except Refusal as refused:
            raise BadEvents(f"engine {self._child.name} refuses it: {refused}") from None
        if answer.engine_seconds is not None:
            self.engine_seconds = answer.engine_seconds
        if answer.process_seconds is not None:
            self.process_seconds = answer.process_seconds
        self.entered += answer.entered
        events: list[Event] = answer.events
        return events

    def close(self) -> None:
        """Let go of the engine; its child waits for the next trace.

        Raises EngineFailure if the engine failed in that.
        """
        if self._release.alive and not self._child.busy:
            self._expect(Closed, Close(), self._isolation.deadline)
        self._release()

    def _expect(self, kind: Any, question: Question, seconds: float) -> Any:
        answer = self._child.ask(question, seconds)
        if not isinstance(answer, kind):
            self._child.busy = True
            asked = type(question).__name__.lower()
            answered = type(answer).__name__.lower()
            raise NoAnswer(
                f"--engine {self._child.name}: asked to {asked}, it answers {answered!r}"
            )
        return answer


class _Children:
    """The children of this process that wait for a trace; `started` counts all that there were."""

    def __init__(self) -> None:
        self.started = 0
        self._owner = os.getpid()
        self._idle: list[tuple[_Of, Child]] = []

    def take(self, text: str, isolation: Isolation, kept: Sequence[str] = ()) -> Child:
        """Return a child that waits for this engine, the one that has waited least, or a new
        one.
        """
        idle = self._own()
        wanted = _of(text, isolation, kept)
        for place in reversed(range(len(idle))):
            if idle[place][0] == wanted:
                return idle.pop(place)[1]
        self.started += 1
        return Child(text, isolation)

    def give_back(
        self, child: Child, text: str, isolation: Isolation, kept: Sequence[str] = ()
    ) -> None:
        """Keep a child for the next trace, or end it if it is in the middle of something; the
        oldest make room.
        """
        if child.busy:
            child.end()
        else:
            self._own().append((_of(text, isolation, kept), child))
        self._end(all_but=IDLE_MAX)

    def end(self) -> None:
        """End all that wait."""
        self._end(all_but=0)

    def _end(self, all_but: int) -> None:
        idle = self._own()
        while len(idle) > all_but:
            idle.pop(0)[1].end()

    def _own(self) -> list[tuple[_Of, Child]]:
        """Return who waits; a copy of the process that started them has none."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._idle = []
        return self._idle


_Of = tuple[str, float, Sequence[str], Sequence[str]]


def _of(text: str, isolation: Isolation, kept: Sequence[str]) -> _Of:
    """Return what a child must have been started for to serve this engine."""
    return text, isolation.memory_gib, isolation.argv(), kept


_CHILDREN = _Children()
atexit.register(_CHILDREN.end)


def ready(text: str, isolation: Isolation) -> Ready:
    """Start an engine's process, which then waits for a trace, and return what it says of itself.

    Raises UsageError if it says nothing of the kind, or cannot be started; EngineFailure if it died
    or hung.
    """
    child = _CHILDREN.take(text, isolation)
    _CHILDREN.give_back(child, text, isolation)
    return child.ready


def begin_afresh() -> None:
    """Have the next engine served by a process that has served no trace: end those that wait for
    one.
    """
    _CHILDREN.end()


def started() -> int:
    """Return how many processes were started for engines so far."""
    return _CHILDREN.started
