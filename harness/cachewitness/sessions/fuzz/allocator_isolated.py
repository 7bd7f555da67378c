"""The pools of a test class in processes of their own, so that a crash is a failure like others."""

from __future__ import annotations

import copy
import faulthandler
import gc
import os
import pickle
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, get_args

from cachewitness.sessions.fuzz.pool_declarations import Method
from cachewitness.sessions.fuzz.pool_model import violated

_STANDARD_ERROR = 2
_QUOTED = 200
"""Characters of the last line of standard error that a message repeats."""


class Child:
    """A process that is forked from this one, makes an instance of a class, and is asked to call
    its methods. Blocks travel by their names.
    """

    def __init__(self, made: Callable[[], Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the child)
        self._ended: int | None = None
        self._connection, other = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the process has other threads
            self._pid = os.fork()
        if self._pid == 0:
            _serve_and_exit(made, other, self._errors.fileno())
        other.close()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method returned, or raise what it raised. Raises Violation if the process
        ends meanwhile.
        """
        try:
            self._connection.send((method, arguments))
            raised, result = self._connection.recv()
        except (EOFError, OSError):
            self._wait()
            violated("died", f"{self._how_it_ended()} in {method}{self._last_words()}")
        if raised:
            raise result
        return result

    def close(self) -> None:
        """Let the pool go, and the process end. Raises Violation if it crashes in doing so."""
        with suppress(OSError):
            self._connection.send(None)
        self._wait()
        if self._ended:
            violated("died", f"{self._how_it_ended()} as the pool was given up{self._last_words()}")

    def kill(self) -> None:
        """End the process at once, if it has not ended."""
        if self._ended is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._wait()
        self._connection.close()
        self._errors.close()

    def _wait(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        self._ended = os.waitstatus_to_exitcode(status)

    def _how_it_ended(self) -> str:
        assert self._ended is not None
        if self._ended >= 0:
            return f"the pool's process ended with exit code {self._ended}"
        return f"the pool's process was ended by {signal.Signals(-self._ended).name}"

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "backslashreplace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return f"; it wrote {written[-1][:_QUOTED]!r}" if written else ""


class Isolated:
    """The methods of a test class, asked of a child. Mixed in before the class itself."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def name(self, block: Any) -> Hashable:
        """Return the block, which is a name already."""
        named: Hashable = block
        return named

    def close(self) -> None:
        """Let the pool go."""
        self._child.close()


def _asked(method: str) -> Any:
    def ask(self: Isolated, *arguments: Any) -> Any:
        return self._child.ask(method, *arguments)

    return ask


for _method in ("make", *get_args(Method)):
    setattr(Isolated, _method, _asked(_method))


def _serve_and_exit(made: Callable[[], Any], connection: Connection, errors: int) -> None:
    """Answer until nothing more is asked. Never returns: the process is a copy of pytest's."""
    code = 1
    try:
        gc.freeze()  # a collection would copy every page of the parent
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(errors, _STANDARD_ERROR)
        served = _Served(made())
        while (question := connection.recv()) is not None:
            connection.send(served.answer(*question))
        served.close()
        code = 0
    except BaseException:
        os.write(_STANDARD_ERROR, traceback.format_exc().encode())
    finally:
        os._exit(code)


class _Served:
    """An instance of a test class, and the blocks that it has handed out."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._objects: dict[Hashable, Any] = {}

    def answer(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """Call a method; return whether it raised, and what."""
        try:
            result = getattr(self._pool, method)(*self._given(method, arguments))
        except Exception as error:
            return True, _sendable(error)
        return False, self._named(method, result)

    def close(self) -> None:
        """Give up the pool and every block, so that a heap that is broken shows it."""
        self._pool.close()
        del self._pool
        self._objects.clear()
        gc.collect()

    def _given(self, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if method == "free":
            return ([self._objects[name] for name in arguments[0]],)
        if method in ("share", "touch", "unpublish", "references"):
            return (self._objects[arguments[0]],)
        if method == "publish":
            return arguments[0], self._objects[arguments[1]]
        return arguments

    def _named(self, method: str, result: Any) -> Any:
        if result is None or isinstance(result, bool):
            return result
        if method == "lookup":
            return self._name(result)
        if method in ("alloc", "evict") and not isinstance(result, int):
            found = result if isinstance(result, Iterable) else [result]
            return [self._name(block) for block in found]
        return result if isinstance(result, int) else True

    def _name(self, block: Any) -> Hashable:
        name: Hashable = self._pool.name(block)
        self._objects[name] = block
        return name


def _sendable(error: Exception) -> Exception:
    """Return an exception that can be sent, with the lines where it was raised as a note."""
    lines = traceback.format_list(traceback.extract_tb(error.__traceback__)[1:])
    try:
        # A copy is made again from its arguments, as it will be where it is received.
        again = copy.deepcopy(error)
        pickle.dumps(again)
        sent = again if isinstance(again, Exception) else RuntimeError(str(error))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("".join(lines).rstrip())
    return sent
