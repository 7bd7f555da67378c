"""Engines' processes that are forked from a template, which has imported what they need: importing
torch takes seconds.

A template is started for a command, an environment and the modules. It opens no engine, so whatever
an engine does to its own process is not in the next one. Where it cannot be had (another system
than Linux, a module that cannot be imported or starts threads), `template_of` says so and processes
are started one by one; what is wrong is then told by the first of them.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from cachewitness.core.engine_failure import OwnMistake
from cachewitness.engines.isolation.messages import MARK, TEMPLATE

ANSWER_S = 300.0
"""Seconds that a template has to answer, when it has imported."""
LINE = 1 << 16
"""Bytes of an answer."""
KEPT = 2
"""Templates that are kept though no process is left of them."""


class Forks(NamedTuple):
    """What a template is started for: its command, the modules that it imports, and the seconds
    that it has for that.
    """

    command: Sequence[str] = ()
    modules: Sequence[str] = ()
    seconds: float = 60.0


class Template:
    """A process of which others are forked. Raises OwnMistake when it is gone: no verdict on an
    engine.
    """

    def __init__(self, asked: Forks, environment: Mapping[str, str]) -> None:
        self._asks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self.living = 0
        with theirs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._process = subprocess.Popen(
                asked.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=(theirs.fileno(),),
                env={**environment, TEMPLATE: str(theirs.fileno()), MARK: "0" * 32},
                start_new_session=True,
            )
        self.usable = self._usable(asked)

    def _usable(self, asked: Forks) -> bool:
        with suppress(OwnMistake):
            if self._asked({"import": list(asked.modules)}, (), asked.seconds):
                return True
        self.end()
        return False

    def fork(self, variables: Mapping[str, str], streams: Sequence[int]) -> int:
        """Fork a process with these variables besides, standard output and error, and the two pipes
        of its conversation.

        Return its id. Raises OSError.
        """
        pid: int = self._asked({"fork": {**variables}, "folder": _folder()}, streams)
        if not pid:
            raise BlockingIOError("no process can be forked")
        self.living += 1
        return pid

    def ended(self, pid: int, *, hang: bool) -> int | None:
        """Return how a process ended; None if it has not, and nobody is to wait for that."""
        code: int | None = self._asked({"wait": pid, "hang": hang}, ())
        self.living -= code is not None
        return code

    def _asked(
        self, question: Mapping[str, Any], descriptors: Sequence[int], seconds: float = 0.0
    ) -> Any:
        with self._lock:
            try:
                self._asks.settimeout(seconds or ANSWER_S)
                socket.send_fds(self._asks, [json.dumps(question).encode()], list(descriptors))
                reply = self._asks.recv(LINE)
            except OSError:
                reply = b""
        if not reply:
            self.end()  # a late answer would be taken for that to another question
            raise OwnMistake("the process of which the engine's was forked is gone")
        return json.loads(reply)

    @property
    def gone(self) -> bool:
        """Whether it has ended though it could be used."""
        return self.usable and self._process.poll() is not None

    def end(self) -> None:
        """End it, and whatever was forked of it."""
        self._asks.close()
        self._process.kill()
        self._process.wait()


def _folder() -> str:
    """Return the current folder; empty if it is gone, which a process that is forked may bear."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


class Forked:
    """A process that was forked of a template, with the part of `subprocess.Popen` that is
    needed.
    """

    def __init__(
        self, template: Template, variables: Mapping[str, str], pipes: Sequence[int]
    ) -> None:
        """Fork it with the `pipes` of its conversation, whose numbers it gets instead of what
        `variables` has.
        """
        self._template = template
        self._code: int | None = None
        ours, theirs = zip(os.pipe(), os.pipe(), strict=True)
        self.stdout: IO[bytes] | None = os.fdopen(ours[0], "rb", 0)
        self.stderr: IO[bytes] | None = os.fdopen(ours[1], "rb", 0)
        try:
            self.pid = template.fork(variables, (*theirs, *pipes))
        except BaseException:
            self.stdout.close()
            self.stderr.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None if it runs."""
        return self._ended(hang=False)

    def wait(self) -> int | None:
        """Wait until it has ended, and return the same; None if nobody can know, as its template
        is gone, and so is it.
        """
        with suppress(OwnMistake):
            return self._ended(hang=True)
        return None

    def _ended(self, *, hang: bool) -> int | None:
        if self._code is None:
            self._code = self._template.ended(self.pid, hang=hang)
        return self._code


_Key = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]
_TEMPLATES: dict[int, dict[_Key, Template]] = {}
"""By process: a copy of one has none of those that it had."""


def template_of(asked: Forks, environment: Mapping[str, str]) -> Template | None:
    """Return a template for an environment, started if there is none; None if there cannot be
    one, or nothing is to import.
    """
    if not asked.modules or not sys.platform.startswith("linux"):
        return None
    own = _TEMPLATES.setdefault(os.getpid(), {})
    key = tuple(asked.command), tuple(asked.modules), tuple(sorted(environment.items()))
    if key in own and own[key].gone:
        own.pop(key).end()
    if key not in own:
        idle = [other for other in own if not own[other].living]
        for other in idle[: max(0, len(own) - KEPT + 1)]:
            own.pop(other).end()
        own[key] = Template(asked, environment)
    return own[key] if own[key].usable else None


def _end() -> None:
    for template in _TEMPLATES.pop(os.getpid(), {}).values():
        template.end()


atexit.register(_end)
