"""An adapter that was written for other releases of a system than the one that is installed.

A name that the adapter uses and the system does not have any more raises AttributeError or
TypeError in the adapter's own file. That is no death of the engine: nobody but the harness ever
calls it so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cachewitness._util.errors import UsageError

ADAPTERS = tuple(
    Path(__file__).resolve().parents[1] / room for room in ("engines", "systems", "toy")
)
"""The folders of adapters; an error that was raised in a file of theirs is about what the adapter
asked for."""


class Drift(UsageError):
    """The adapter asks the installed release for what it does not have. One line; exit code 4."""


def drift(error: Exception, system: str, installed: str, written_for: str) -> Drift | None:
    """Return what to say of an exception if an adapter raised it by asking for a name or an
    argument that is not there.

    None if it was raised in the system's own code, or is of another kind.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None or not isinstance(error, AttributeError | TypeError):
        return None
    file = Path(frame.tb_frame.f_code.co_filename)
    if not any(file.resolve().is_relative_to(folder) for folder in ADAPTERS):
        return None
    return Drift(
        f"{system} {installed}: {' '.join(str(error).split())} ({file.name}:{frame.tb_lineno});"
        f" this adapter was written for {written_for}: run one of those releases, or a cachewitness"
        f" that knows {installed}"
    )


def takes(target: Callable[..., Any], argument: str) -> bool:
    """Whether a function takes an argument by name: as its own, or because it is a wrapper that
    passes everything on.
    """
    known = inspect.signature(target).parameters
    return argument in known or any(one.kind is one.VAR_KEYWORD for one in known.values())
