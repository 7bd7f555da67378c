"""The `console` blocks of a page as shell sessions: what a reader would type, and what the page
says is printed.

Inside a block a line that begins with `$ ` is a command, `> ` goes on with it (a here-document),
and the lines up to the next command are what it prints, standard error included. `…` stands for any
text within a line, a line of `…` alone for any lines. A command that ends with another status than
0 must be followed by `$ echo $?`, so that the page shows it.

The blocks of a section (a heading of two #) are one session: one bash, in an empty folder, one
command after the other, so that what is exported or written stays. Blocks marked `console toy` need
the extra `toy`, those marked `console cpp` a compiler; they are a session of their own. `CHECKOUT`
is where this repository lies.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from suites.support.checkout import PYTHONPATH

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 400
KEPT = (
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "GOMP_SPINCOUNT",
    "OMP_WAIT_POLICY",
    "PYTHONPYCACHEPREFIX",
)
"""What a session has of the environment of the tests: nothing that an engine's policy or the form
of a report reads."""
INSTALLED = "installed"
_MARK = "\x1e"
_BLOCK = re.compile(r"^```console(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STATUS = "echo $?"


@dataclass(frozen=True)
class Command:
    """A command of a page, as a shell reads it, and the lines that the page shows below it."""

    text: str
    shown: list[str]


@dataclass(frozen=True)
class Session:
    """The commands of a section that run in one shell. `extra` is what they need installed;
    empty for nothing more.
    """

    section: str
    extra: str
    commands: list[Command]


def sessions(page: str) -> list[Session]:
    """Return the sessions of a page's text, in order."""
    found: dict[tuple[str, str], list[Command]] = {}
    for part in re.split(r"^(?=## )", page, flags=re.MULTILINE):
        title = part.splitlines()[0].lstrip("# ") if part else ""
        for extra, block in _BLOCK.findall(part):
            found.setdefault((title, extra), []).extend(_commands(block))
    return [Session(*key, commands) for key, commands in found.items()]


def _commands(block: str) -> list[Command]:
    """Return the commands of a block; raise ValueError if it does not begin with one."""
    before, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    if before.strip() or not parts:
        raise ValueError(
            f"a console block begins with a line that begins with '$ ': {block.splitlines()[:1]}"
        )
    commands = []
    for part in parts:
        first, *rest = part.rstrip().splitlines()
        more = next(
            (index for index, line in enumerate(rest) if not line.startswith("> ") and line != ">"),
            len(rest),
        )
        text = "\n".join([first, *(line[2:] for line in rest[:more])])
        commands.append(Command(text, [line.rstrip() for line in rest[more:]]))
    return commands


_SUITE_LINE = re.compile(
    rf"(?:^|(?<={_MARK}))(?:(?:suite )?\d+/\d+ |first failure: ).*\n", re.MULTILINE
)
"""What a run prints on standard error once it has taken a while, as on a loaded machine."""


def run(session: Session, folder: Path) -> list[str]:
    """Run a session in bash, in an empty folder, and return what is wrong: what was printed
    beside what is shown.
    """
    tools = _tools(folder / "bin")
    (folder / "here").mkdir()
    python = {
        "PYTHONPATH": f"{ROOT}:{PYTHONPATH}:{folder / INSTALLED}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        "CHECKOUT": str(ROOT),
    }
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    with (folder / "printed").open("w+", encoding="utf-8") as printed:
        shell = subprocess.Popen(
            ["bash", "-c", _script(session)],
            cwd=folder / "here",
            env=kept | python | {"PATH": f"{tools}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(SECONDS)
        finally:
            _end(shell.pid)
        printed.seek(0)
        return _wrong(session, _SUITE_LINE.sub("", printed.read()).split(_MARK)[1:])


def _tools(folder: Path) -> Path:
    """Make the commands `cachewitness`, `python`, `pytest` and `pip`: those that run the tests.

    `pip install -e .` installs into a folder of the session's own, with links to the modules, and
    needs no network.
    """
    folder.mkdir()
    python = sys.executable
    site = folder.parent / INSTALLED
    install = (
        "-m pip install -qqq --disable-pip-version-check --no-deps --no-build-isolation --target"
    )
    tools = {
        "cachewitness": f'exec "{python}" -m cachewitness.cli "$@"',
        "python": f'exec "{python}" "$@"',
        "pytest": f'exec "{python}" -m pytest "$@"',
        "pip": (
            f'[ "$*" = "install -e ." ] && "{python}" {install} "{site}" . && ln -sf "$PWD"/*.py'
            f' "{site}"'
        ),
    }
    for name, script in tools.items():
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        tool.chmod(0o755)
    return folder


def _script(session: Session) -> str:
    """Return the commands with a mark before each, and the status of the last one kept across
    it.
    """
    lines = ["__status=0"]
    for command in session.commands:
        lines += [
            f"printf '{_MARK}'",
            "(exit $__status)",
            command.text,
            f"__status=$?; printf '{_MARK}%s{_MARK}' $__status",
        ]
    return "\n".join(lines)


def _end(group: int) -> None:
    """End what a session left running."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wrong(session: Session, parts: list[str]) -> list[str]:
    """Compare what each command printed, and how it ended, with the page. Parts are: printed,
    status and what is between.
    """
    found = []
    for index, command in enumerate(session.commands):
        if len(parts) <= 3 * index + 1:
            return [*found, f"$ {command.text}\n  was not reached"]
        printed, status = parts[3 * index : 3 * index + 2]
        follower = session.commands[index + 1].text if index + 1 < len(session.commands) else ""
        if status != "0" and follower != _STATUS:
            found.append(
                f"$ {command.text}\n  ended with status {status}, and no `$ {_STATUS}` follows:\n"
                f"{printed}"
            )
        elif not matches(command.shown, printed):
            shown = "\n".join(command.shown)
            found.append(f"$ {command.text}\n--- shown\n{shown}\n--- printed\n{printed}")
    return found


def matches(shown: list[str], printed: str) -> bool:
    """Return whether the printed text is what the page shows; spaces at the ends of lines do not
    count.
    """
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
        for line in shown
    )
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern, text) is not None
