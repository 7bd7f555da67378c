"""What runs in a template: a process that imports modules once, and of which the processes of
engines are forked.

    python -c "…; from cachewitness.engines.isolation.template import main; main()"

It opens no engine. It forks only while it has one thread, so that nothing is copied in the middle
of what another one does. `cachewitness.engines.isolation.forked` is the harness's side.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from cachewitness._util.workers import die_with_the_parent
from cachewitness.engines.entered import watch
from cachewitness.engines.isolation import serve
from cachewitness.engines.isolation.messages import ANSWERS, ASKED, MARK, TEMPLATE
from cachewitness.engines.isolation.output import KEPT

LINE = 1 << 16
"""Bytes of a question."""
TICK = 0.5
"""Seconds after which it looks whether the harness is still there."""


def main() -> None:
    """Import what is named, fork whenever that is asked for, and be an engine's process in every
    copy.
    """
    asks = socket.socket(fileno=int(os.environ.pop(TEMPLATE)))
    asks.set_inheritable(False)
    parent = os.getppid()
    watch()  # what is imported here is imported for all copies
    names, _ = _asked(asks, parent)
    _write_answer(asks, _imported(names["import"]))
    while True:
        question, descriptors = _asked(asks, parent)
        if "wait" in question:
            _write_answer(asks, _ended(**question))
        elif _forked(asks, question, descriptors):
            return serve.main()


def _asked(asks: socket.socket, parent: int) -> tuple[dict[str, Any], list[int]]:
    """Return the next question with its descriptors.

    End when the harness is gone, though a copy of it may hold the socket, or closed the socket; and
    with that all copies.
    """
    while not select.select([asks], [], [], TICK)[0]:
        if os.getppid() != parent:
            os._exit(0)
    data, descriptors, _, _ = socket.recv_fds(asks, LINE, 4)
    if not data:
        os._exit(0)
    return json.loads(data), descriptors


def _write_answer(asks: socket.socket, what: Any) -> None:
    asks.send(json.dumps(what).encode())


def _imported(names: list[str]) -> bool:
    """Import modules; return whether that went well, and left this process so that it can be
    copied.

    A thread that knows of forks ends before one, as those of OpenBLAS do, so they are counted after
    a first fork.
    """
    try:
        for name in names:
            importlib.import_module(name)
    except Exception:
        return False
    first = os.fork()
    if not first:
        os._exit(0)
    os.waitpid(first, 0)
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _ended(wait: int, hang: bool) -> int | None:
    """Return how a copy ended, as `subprocess` has it; None if it has not."""
    pid, status = os.waitpid(wait, 0 if hang else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _forked(asks: socket.socket, question: dict[str, Any], descriptors: list[int]) -> bool:
    """Fork; return whether this is the copy, in a session of its own, which then is all that a
    process of an engine is.
    """
    parent = os.getpid()
    try:
        copy = os.fork()
    except OSError:
        _write_answer(asks, 0)
        copy = -1
    if copy:
        for descriptor in descriptors:
            os.close(descriptor)
        return False
    os.setsid()
    die_with_the_parent()
    if os.getppid() != parent:
        os._exit(1)
    _marked(question["fork"][MARK])
    out, err, asked, answers = descriptors
    os.environ.update(question["fork"], **{ASKED: str(asked), ANSWERS: str(answers)})
    with suppress(OSError):  # the folder may be gone
        os.chdir(question["folder"])
    _taken_over(out, 1)
    _taken_over(err, 2)
    _write_answer(asks, os.getpid())
    asks.close()
    return True


def _marked(mark: str) -> None:
    """Write the mark into the environment that the system shows of this process, and of whatever
    it forks.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(MARK.encode())
    if place:
        ctypes.memmove(place, mark.encode(), len(mark))


def _taken_over(descriptor: int, stream: int) -> None:
    """Make a descriptor a standard stream, with what was printed while modules were imported in
    front.
    """
    with suppress(OSError):
        os.write(descriptor, os.pread(stream, KEPT, 0))
    os.dup2(descriptor, stream)
    os.close(descriptor)
