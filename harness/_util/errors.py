"""The two ways in which a run ends without a verdict."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user gave does not fit: one line that says what, where and what to do. Exit code 4."""


class EngineMissing(UsageError):
    """The engine cannot be imported here; the message names what is missing and what to install. Exit code 4."""


class EngineBroken(UsageError):
    """The engine cannot be built, although it does not refuse what was asked: it raised, died or hung. Exit code 4."""
