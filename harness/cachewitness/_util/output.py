"""Standard output, which belongs to what the harness says: what an engine prints in its process
goes to standard error.

An engine prints by Python's `print`, by descriptor 1, or in C, whose buffer may be emptied when the
process ends. So the streams are exchanged once, before an engine is looked for, and stay exchanged.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

_OUT, _ERR = 1, 2
_ours: TextIO | None = None
_whole_process = False


def own_process() -> None:
    """Say that this process is the command line's own: `claim` may change where its descriptors
    lead.
    """
    global _whole_process
    _whole_process = True


def stdout() -> TextIO:
    """Return the stream for what the harness says."""
    return sys.stdout if _ours is None else _ours


def claim() -> None:
    """Keep standard output for `stdout()`, and lead descriptor 1 and `sys.stdout` to standard error
    from now on.

    Does nothing in somebody else's process (`own_process`), or if there is no standard output.
    """
    global _ours
    if not _whole_process or _ours is not None or sys.stdout is None:
        return
    sys.stdout.flush()
    if sys.stderr is None:  # it is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), _ERR)
        sys.stderr = os.fdopen(_ERR, "w", closefd=False)
    kept = os.dup(_OUT)
    os.dup2(_ERR, _OUT)
    encoding = sys.stdout.encoding
    errors = sys.stdout.errors
    _ours = os.fdopen(
        kept, "w", encoding=encoding, errors=errors, buffering=1 if os.isatty(kept) else -1
    )
    sys.stdout = sys.stderr


def echo(message: str | bytes = "", *, nl: bool = True) -> None:
    """Print on `stdout()`, and have it arrive."""
    import click

    click.echo(message, file=stdout(), nl=nl)
