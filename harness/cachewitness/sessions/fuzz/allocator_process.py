"""An allocator in a process of its own: a program in any language that is asked in JSON lines.

docs/allocators.md is its manual. The two pipes are those of an engine's process
(`cachewitness.engines.isolation`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.engines.isolation.process import Ended, Overlong, Process, Silent, Unasked
from cachewitness.sessions.fuzz.allocator import Allocator, Opened
from cachewitness.sessions.fuzz.pool_declarations import Method, Misuse
from cachewitness.sessions.fuzz.pool_model import Hung, Order, violated

PROTOCOL = "cachewitness.allocator"
VERSION = 1
STARTING = 60.0
"""Seconds that a process has to say that it is ready."""
_QUOTED = 80
"""Bytes of an answer that a message repeats."""
_DECLARED = (
    "null_block",
    "order",
    "misuse",
    "alloc_max",
    "lookup_acquires",
    "keeps",
    "keys_per_block",
)
"""What a process may declare in its first line, as a class may in its attributes."""

Name = int | str
"""What a process calls a block."""


class Ready(msgspec.Struct, frozen=True, tag_field="is", tag="ready"):
    """The first line: which methods the allocator has beside `make`, and what it declares."""

    protocol: str
    version: int
    methods: list[Method]
    null_block: Name | None = None
    order: Order | None = None
    misuse: Misuse = "raises"
    alloc_max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    lookup_acquires: bool = False
    keeps: bool = False
    keys_per_block: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Done(msgspec.Struct, frozen=True, tag_field="is", tag="done"):
    """The call was carried out."""

    result: bool | int | str | list[Name] | None = None


class Refused(msgspec.Struct, frozen=True, tag_field="is", tag="refused"):
    """The call was refused, and changed nothing."""


Answer = Ready | Done | Refused
_RETURNS: dict[str, tuple[tuple[type, ...], str]] = {
    "alloc": ((list,), "a list of blocks"),
    "lookup": ((int, str, type(None)), "a block or null"),
    "evict": ((list, int, type(None)), "a list of blocks, their number, or null"),
    "available": ((int,), "a number"),
    "references": ((int,), "a number"),
}
"""What the result of a method is; the results of others are not looked at."""

_NOT_REFUSED = ("make", "available", "references")


class Conversation:
    """An allocator's process, which is started again once it is lost.

    Raises UsageError, in one line, if it cannot be started or does not say what it must.
    """

    def __init__(self, name: str, command: Sequence[str], seconds: float) -> None:
        self._name = name
        self._command = command
        self._called = shlex.join(command)
        self._seconds = seconds
        self._process: Process | None = None
        self._decoder = msgspec.json.Decoder(Answer)
        self._encoder = msgspec.json.Encoder()
        self.ready = self._start()

    def ask(self, method: str, **arguments: Any) -> Any:
        """Return the result of a call, False if it was refused. Raises Violation if the process
        ends or answers what is no answer, and Hung if it does not answer.
        """
        if self._process is None:
            self._start()
        assert self._process is not None
        line = self._encoder.encode({"do": method, **arguments}) + b"\n"
        try:
            return self._result(method, self._answer(self._process.ask(line, self._seconds)))
        except Ended:
            kind = "died"
            what = f"{self._process.how_it_ended()} instead of answering {method}"
        except Silent:
            what = f"gave no answer to {method} within {self._seconds:g} seconds"
            raise Hung(self._lost(what)) from None
        except Overlong:
            kind = "malformed"
            what = f"answered {method} in a line without an end"
        except Unasked as unasked:
            kind = "malformed"
            what = f"answered before it was asked: {_quoted(unasked.args[0])}"
        except _Malformed as malformed:
            kind = "malformed"
            what = f"answered {method} with {malformed}"
        return violated(kind, self._lost(what))

    def _lost(self, what: str) -> str:
        sentence = f"{self._called} {what}{self._last_words()}"
        self.end()
        return sentence

    def end(self) -> None:
        """End the process and everything that it started."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _start(self) -> Ready:
        try:
            self._process = Process(self._command)
        except OSError as error:
            raise UsageError(
                f"{self._name}: {self._command[0]} cannot be started ({error.strerror})"
            ) from None
        try:
            ready = self._answer(self._process.ask(b"", STARTING))
            if isinstance(ready, Ready) and (ready.protocol, ready.version) == (PROTOCOL, VERSION):
                return ready
            why = "its first line is another one"
        except Ended:
            why = f"it {self._process.how_it_ended()}"
        except Silent:
            why = f"it says nothing within {STARTING:g} seconds"
        except Overlong:
            why = "its first line has no end"
        except _Malformed as malformed:
            why = f"its first line is {malformed}"
        message = (
            f"{self._name}: {self._called} does not begin with"
            f' {{"is":"ready","protocol":"{PROTOCOL}","version":{VERSION},"methods":[…]}}:'
            f" {why}{self._last_words()}"
        )
        self.end()
        raise UsageError(message)

    def _answer(self, line: bytes) -> Answer:
        try:
            answer: Answer = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Malformed(f"{_quoted(line)}, which is none of the protocol: {error}") from None
        return answer

    @staticmethod
    def _result(method: str, answer: Answer) -> Any:
        if isinstance(answer, Ready):
            raise _Malformed("a second `ready`")
        if isinstance(answer, Refused):
            if method in _NOT_REFUSED:
                raise _Malformed("`refused`, which it cannot be")
            return False
        result = answer.result
        types, what = _RETURNS.get(method, ((object,), ""))
        if method in _RETURNS and (isinstance(result, bool) or not isinstance(result, types)):
            raise _Malformed(f"{result!r}; the result is {what}")
        return result

    def _last_words(self) -> str:
        text = self._process.complained.text().strip() if self._process else ""
        if not text:
            return ""
        return f"; the last line of its standard error is {text.splitlines()[-1][:_QUOTED]!r}"


class _Malformed(Exception):
    """An answer that is none; the message goes on behind "answered … with"."""


class AllocatorProcess(Allocator):
    """An allocator in another process, such as one in C++ or Rust: `command` starts it.

    It says in its first line which methods it has; the class attributes of `Allocator` are what it
    declares there, unless the class declares them itself.
    """

    command: ClassVar[str | Sequence[str]] = ""
    """The program and its arguments; in a string, words are split at blanks, quotes hold them
    together."""
    seconds: ClassVar[float] = 10.0
    """How long an answer may take. One that takes longer ends the test, and is not shrunk."""

    _conversation: Conversation

    @classmethod
    def _over(cls, conversation: Conversation) -> AllocatorProcess:
        pool = cls()  # pytest collects no class that has an __init__
        pool._conversation = conversation
        for name in _DECLARED:
            if getattr(cls, name) == getattr(Allocator, name):
                setattr(pool, name, getattr(conversation.ready, name))
        return pool

    @classmethod
    @contextmanager
    def _opened(cls) -> Iterator[Opened]:
        """Start the process, and end it."""
        words = shlex.split(cls.command) if isinstance(cls.command, str) else list(cls.command)
        if not words:
            raise UsageError(f"{cls.__name__}: command does not name a program")
        conversation = Conversation(cls.__name__, words, cls.seconds)
        try:
            yield Opened({"make", *conversation.ready.methods}, lambda: cls._over(conversation))
        finally:
            conversation.end()

    def make(self, size: int) -> None:
        """Ask for a new pool."""
        self._conversation.ask("make", size=size)

    def alloc(self, n: int) -> Any:
        """Ask for blocks."""
        return self._conversation.ask("alloc", n=n)

    def free(self, blocks: list[Any]) -> Any:
        """Give references back."""
        return self._conversation.ask("free", blocks=blocks)

    def share(self, block: Any) -> Any:
        """Take one more reference."""
        return self._conversation.ask("share", block=block)

    def touch(self, block: Any) -> Any:
        """Take a reference to what a lookup found."""
        return self._conversation.ask("touch", block=block)

    def publish(self, key: str, block: Any) -> Any:
        """Make a block findable."""
        return self._conversation.ask("publish", key=key, block=block)

    def lookup(self, key: str) -> Any:
        """Find a block."""
        return self._conversation.ask("lookup", key=key)

    def unpublish(self, block: Any) -> Any:
        """Take a block's keys away."""
        return self._conversation.ask("unpublish", block=block)

    def evict(self, n: int) -> Any:
        """Evict free blocks that have keys."""
        return self._conversation.ask("evict", n=n)

    def reset(self) -> Any:
        """Take all keys away."""
        return self._conversation.ask("reset")

    def available(self) -> int:
        """Ask how many blocks are free."""
        return int(self._conversation.ask("available"))

    def references(self, block: Any) -> int:
        """Ask for a reference count."""
        return int(self._conversation.ask("references", block=block))


def _quoted(line: bytes) -> str:
    shown = line[:_QUOTED].decode("utf-8", "backslashreplace")
    return repr(f"{shown}…" if len(line) > _QUOTED else shown)
