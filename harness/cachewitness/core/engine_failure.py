"""An engine that did not carry out an operation: a verdict on the engine, never an error of the
harness.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import printable

Lost = Literal["engine-crashed", "hung"]


class EngineFailure(Exception):
    """What an engine did instead of answering.

    `anomaly` is how a finding calls it. The message completes the sentence "let the engine carry
    the operation out; however it …". `output` is the end of what the engine's process printed, if
    it has a process of its own.
    """

    def __init__(self, anomaly: Lost, message: str, output: str = "") -> None:
        super().__init__(message)
        self.anomaly = anomaly
        self.output = output


class NoAnswer(UsageError):
    """An engine's process wrote what is no answer of the protocol. One line; exit code 4."""


class OwnMistake(Exception):
    """The harness's own adapter, observer or driver raised, which is no verdict on the engine.
    One line; exit code 3.
    """


HARNESS = Path(__file__).parents[1]
STANDARD = Path(sysconfig.get_path("stdlib"))
_NATIVE = "of_a_compiled_library"
FAULTS = ("mutants", "fault_tools.py")
"""Names, in paths of this package, of what is part of an engine once it is planted."""


@contextmanager
def native() -> Iterator[None]:
    """Mark what a compiled library raises as the engine's own: the last frame of Python is that
    of the adapter that called.
    """
    try:
        yield
    except OwnMistake:
        raise
    except Exception as error:
        setattr(error, _NATIVE, True)
        raise


def describe_error(error: BaseException) -> str:
    """Return an exception in one line: its class, the first line of its message, and where it
    was raised.
    """
    lines = message_of(error).strip().splitlines()
    description = printable(
        f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    )
    code, line = _raised_in(error)
    return (
        f"{description} ({Path(code.co_filename).name}:{line}, in the {_layer(code)})"
        if code
        else description
    )


_PLACE = re.compile(r"\(([\w.-]+:\d+), in the engine\)")


def raised_at(description: str) -> str:
    """Return where in the engine an exception was raised, FILE:LINE, of which `describe_error` made
    this; empty if it does not say, as of a compiled library.
    """
    place = _PLACE.search(description)
    return place[1] if place else ""


def message_of(error: BaseException) -> str:
    """Return what an exception says; nothing if it raises when it is asked."""
    try:
        return str(error)
    except Exception:
        return ""


def by_the_user(error: BaseException) -> bool:
    """Whether this is the user's Ctrl-C, and no class of somebody else's that is derived of it."""
    return type(error) is KeyboardInterrupt


def as_exception(error: BaseException) -> Exception:
    """Return what an engine raised as an exception, and as its failure what no `except Exception`
    catches: an exit, or a class of its own. Raises the user's Ctrl-C again.

    A caller hands the result on and gives it no name: kept by the frame that its traceback has, it
    would keep the engine's processes.
    """
    if isinstance(error, Exception):
        return error
    if by_the_user(error):
        raise error
    return EngineFailure("engine-crashed", f"raised {describe_error(error)}")


def of_ours(error: Exception, engine: Any) -> bool:
    """Whether an exception is a mistake of this package: its own code raised it, and `engine` has
    an adapter of this package.

    With a planted fault an engine may do what none does, and with somebody else's adapter so may
    the driver.
    """
    if isinstance(error, EngineFailure) or getattr(error, _NATIVE, False):
        return False
    engine = getattr(engine, "guarded", engine)
    driver = getattr(engine, "engine", engine)
    adapter = getattr(driver, "adapter", driver)
    header = getattr(driver, "header", None)
    ours = type(adapter).__module__.partition(".")[0] == __name__.partition(".")[0]
    code, _ = _raised_in(error)
    return (
        ours
        and code is not None
        and _layer(code) == "harness"
        and ":mutant=" not in getattr(header, "engine", "")
    )


def _raised_in(error: BaseException) -> tuple[CodeType | None, int]:
    """Return the innermost function that was running and is not Python's own, and the line that
    it was at.
    """
    code = None
    line = 0
    traceback = error.__traceback__
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if code is None or not path.is_relative_to(STANDARD) or "site-packages" in path.parts:
            code = traceback.tb_frame.f_code
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return code, line


def _layer(code: CodeType) -> Literal["harness", "engine"]:
    path = Path(code.co_filename)
    within = path.relative_to(HARNESS).parts if path.is_relative_to(HARNESS) else FAULTS
    return "engine" if set(FAULTS) & set(within) else "harness"
