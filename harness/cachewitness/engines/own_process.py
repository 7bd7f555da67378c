"""What an engine needs of the process of its own that it runs in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OwnProcess:
    """An engine runs in a process of its own unless the user says otherwise, as every engine of
    another package does; and what that process is given.
    """

    command: str = ""
    """The option that names the command of the process; empty: the engine is opened by `open`."""
    key: str = ""
    """The option that names the environment variable of a key, which the process then gets."""
    fixed: tuple[str, ...] = ()
    """Options of a trace that the process goes by as the first trace has them: a trace with others
    gets another process."""
    imports: tuple[str, ...] = ()
    """Modules that are imported once for all its processes, which are then forked (Linux): what
    takes seconds to import. They must not start threads or compute; if they do, each process
    imports them by itself."""
