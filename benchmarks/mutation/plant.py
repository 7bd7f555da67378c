"""Which functions of the engine's source a process has, which of them it enters, and how the code
of one is replaced.
"""

from __future__ import annotations

import builtins
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from benchmarks.mutation.source import REACHED, Place


class Planted:
    """The function objects of this process whose code stands below a folder.

    Whoever holds such an object, under whatever name, behind a property, a decorator or a cache,
    runs its code: so the code is replaced, not the object.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._functions: dict[Place, list[FunctionType]] = {}
        for function in gc.get_objects():
            # `isinstance` would ask modules that are loaded when they are looked at.
            if type(function) is FunctionType and (place := place_of(function.__code__, folder)):
                self._functions.setdefault(place, []).append(function)

    def replace(self, place: Place, code: CodeType, reached: Callable[[], None]) -> bool:
        """Give the functions of a place another code; return whether there are any, and all take
        it. `reached` is called whenever the changed statement is reached.
        """
        setattr(builtins, REACHED, reached)
        functions = self._functions.get(place, [])
        try:
            for function in functions:
                function.__code__ = code
        except ValueError:  # it refers to other variables of the functions or classes around it
            return False
        return bool(functions)


def place_of(code: CodeType, folder: Path) -> Place | None:
    """Return where code stands below a folder; None if it stands elsewhere."""
    prefix = f"{folder}/"
    if not code.co_filename.startswith(prefix):
        return None
    return Place(code.co_filename[len(prefix) :], code.co_qualname, code.co_firstlineno)


@contextmanager
def entered(folder: Path) -> Iterator[set[Place]]:
    """Collect the places of the functions below a folder that are entered in the block, by this
    thread or by one that begins in it.
    """
    seen: set[CodeType] = set()
    places: set[Place] = set()

    def enters(frame: FrameType, event: str, argument: Any) -> None:
        seen.add(frame.f_code)  # and nothing inside the function is traced: much faster

    sys.settrace(enters)
    threading.settrace(enters)
    try:
        yield places
    finally:
        sys.settrace(None)
        threading.settrace(None)
        places |= {place for code in seen if (place := place_of(code, folder))}
