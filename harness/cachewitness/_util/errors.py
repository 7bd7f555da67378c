"""The two ways in which a run ends without a verdict."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user gave does not fit: one line that says what, where and what to do. Exit
    code 4.
    """


class EngineMissing(UsageError):
    """The engine cannot be imported here; the message names what is missing and what to install.
    Exit code 4.

    `mend` is the one command that installs it, ready to be pasted into a shell; empty if there is
    none.
    """

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.mend = mend


class EngineBroken(UsageError):
    """The engine cannot be built, although it does not refuse what was asked: it raised, died or
    hung. Exit code 4.
    """
