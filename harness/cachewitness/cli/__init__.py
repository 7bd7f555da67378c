"""The command line: `cachewitness run`, `fuzz`, `campaign`, `mutants`, `score`, `serve`, `replay`
and so on.

Exit codes are the interface: 0 pass, 1 fail, 2 unknown, 3 the harness itself crashed, 4 usage or
configuration, 5 nothing was checked. A mistake of the user's is one line; only a mistake of the
harness's leaves a traceback, in a file.

Nothing but click is imported until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any

import click

from cachewitness import __version__
from cachewitness._util import output
from cachewitness._util.errors import UsageError
from cachewitness._util.lines import one_line
from cachewitness.cli.completion import PROGRAM, answered

EXIT_INTERNAL, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 3, 4, 130, 141
"""The codes that need no verdict; those of verdicts are in `cachewitness.report`, which is not
imported for `--help`."""
CRASHES = ".cachewitness/crashes"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
"""What a write answers when the disk is full, read-only or broken."""
_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES)
"""What the system answers where the name of a file is not valid, or may not be looked up by this
user."""
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _NobodyReads(Exception):
    """Whoever read the output has stopped; told in other words than the system's, which click
    would end on by itself.
    """


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _NobodyReads from None


@click.group(
    cls=_Commands,
    context_settings=_CONTEXT,
    epilog="Exit codes: 0 pass, 1 fail, 2 unknown, 3 crash, 4 usage, 5 nothing checked.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Print the traceback if the harness itself crashes.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Find out whether an LLM engine's prefix cache does what it says, and be shown where it
    does not.
    """
    context.obj = debug


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    output.own_process()
    sys.exit(invoke(sys.argv[1:] if argv is None else argv))


def invoke(argv: Sequence[str]) -> int:
    """Run the command line and return its exit code; whatever goes wrong is told on standard
    error.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    _TERMINATION.take()
    try:
        if (completed := answered(cli)) is not None:
            return completed
        code = cli.main(args=list(argv), prog_name=PROGRAM, standalone_mode=False)
        output.stdout().flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        return _refuse(error)
    except UsageError as error:
        return _print(str(error), EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _print("interrupted", EXIT_INTERRUPTED)
    except (_NobodyReads, BrokenPipeError):
        return _quietly()
    except OSError as error:
        if error.errno in _DISK:
            return _unwritten(error)
        if error.errno in _NAMES and error.filename:
            return _print(
                f"{error.filename}: cannot be used ({error.strerror}); name another file",
                EXIT_USAGE,
            )
        return _crashed(error, debug="--debug" in argv)
    except BaseException as error:  # an engine under test must not choose the exit code
        return _crashed(error, debug="--debug" in argv)


def _refuse(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context else ""
    return _print(error.format_message().rstrip(".") + _known_options(error) + where, EXIT_USAGE)


def _known_options(error: click.ClickException) -> str:
    """Return the options that a command has, where one was asked for that it has not."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    options = [option for option in error.ctx.command.params if isinstance(option, click.Option)]
    return (
        "; known are"
        f" {', '.join(name for option in options for name in (*option.opts, *option.secondary_opts))}"  # noqa: E501
    )


def _print(message: str, code: int) -> int:
    click.echo(f"cachewitness: {one_line(message)}", err=True)
    return code


TWICE_S = 2.0
"""Seconds in which another SIGTERM is the same: a group gets it, and a script passes it on."""


class _Termination:
    """Has SIGTERM end a run as Ctrl-C does: what was found so far is shown."""

    def __init__(self) -> None:
        self._last: float | None = None

    def take(self) -> None:
        """Begin a command: its first signal ends it, whenever the last command had one."""
        import signal
        import threading

        self._last = None
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, frame: object) -> None:
        from time import monotonic

        now = monotonic()
        if self._last is None or now - self._last > TWICE_S:
            self._last = now
            raise KeyboardInterrupt


_TERMINATION = _Termination()


def _unwritten(error: OSError) -> int:
    """End when the disk takes no more of the output."""
    _quietly()
    return _print(f"the output cannot be written ({error.strerror})", EXIT_USAGE)


def _quietly() -> int:
    """End without a word: whoever read the output has stopped reading."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), output.stdout().fileno())
    return EXIT_BROKEN_PIPE


def _crashed(error: BaseException, *, debug: bool) -> int:
    import os
    import time
    import traceback
    from pathlib import Path

    message = (
        f"the harness itself crashed, which is no verdict on the engine: {type(error).__name__}:"
        f" {error}"
    )
    text = "".join(traceback.format_exception(error))
    if debug:
        click.echo(text, err=True)
        return _print(message, EXIT_INTERNAL)
    path = Path(CRASHES) / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return _print(
            f"{message} (no traceback could be written; `cachewitness --debug …` prints it)",
            EXIT_INTERNAL,
        )
    return _print(
        f"{message} (traceback in {path}; `cachewitness --debug …` prints it)", EXIT_INTERNAL
    )


def _register() -> None:
    from cachewitness.cli.bisect import bisect
    from cachewitness.cli.campaign import campaign
    from cachewitness.cli.check import check
    from cachewitness.cli.compare import compare
    from cachewitness.cli.completion import completion
    from cachewitness.cli.consume import consume
    from cachewitness.cli.doctor import doctor
    from cachewitness.cli.explain import explain
    from cachewitness.cli.fill import fill
    from cachewitness.cli.fuzz import fuzz
    from cachewitness.cli.ls import ls, schema
    from cachewitness.cli.mutants import mutants
    from cachewitness.cli.new import new
    from cachewitness.cli.plan import plan
    from cachewitness.cli.protocol_check import protocol_check
    from cachewitness.cli.replay import replay
    from cachewitness.cli.report import report
    from cachewitness.cli.report_index import report_index
    from cachewitness.cli.route import route
    from cachewitness.cli.run import run
    from cachewitness.cli.score import score
    from cachewitness.cli.serve import serve

    judging = (
        run,
        fuzz,
        campaign,
        mutants,
        score,
        serve,
        replay,
        explain,
        report,
        check,
        report_index,
        compare,
        bisect,
        route,
    )
    for command in (
        *judging,
        doctor,
        new,
        protocol_check,
        fill,
        consume,
        plan,
        ls,
        schema,
        completion,
    ):
        cli.add_command(command)


_register()
