"""The log of llama.cpp's server, which it writes to standard error: read here, and passed on as it
comes.

A process of its own copies it, so that the last words of a server that aborts are not lost.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from cachewitness._util.errors import UsageError

PATIENCE = 5.0
"""Seconds in which the server writes what it does."""
POLL = 0.0005
"""Seconds between two looks."""


class Log:
    """Standard error of this process, read from a copy in `folder` until it is closed."""

    def __init__(self, folder: str) -> None:
        path = Path(folder) / "server.log"
        path.touch()
        self._before = os.dup(2)
        self._copier = subprocess.Popen(
            ["tee", str(path)], stdin=subprocess.PIPE, stdout=self._before
        )
        assert self._copier.stdin is not None
        os.dup2(self._copier.stdin.fileno(), 2)
        self._copier.stdin.close()
        self._file = path.open("rb")
        self._begun = b""

    def lines(self) -> list[str]:
        """Return the lines that have come since the last call."""
        *whole, self._begun = (self._begun + self._file.read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]

    def await_line(self, text: str) -> None:
        """Wait for a line that every server writes. Raises UsageError if none comes, so that the
        log is not as it is known.
        """
        until = time.monotonic() + PATIENCE
        while not any(text in line for line in self.lines()):
            if time.monotonic() > until:
                raise UsageError(
                    f"--engine llama-cpp: this build's log has no line {text!r}; leave it unread,"
                    " log=unread"
                )
            time.sleep(POLL)

    def close(self) -> None:
        """Give standard error back."""
        os.dup2(self._before, 2)
        os.close(self._before)
        self._file.close()
        self._copier.wait()
