"""One commit, tested: what `git bisect run` calls in its work tree, and what it is answered.

    python -P -m cachewitness.sessions.bisect.step SETTINGS

SETTINGS is a JSON file (`Settings`). Exit code 0: the trace passes; 1: it fails with the anomaly
that is looked for; 125: this commit says nothing, since it cannot be built, the engine cannot be
imported or opened, or the trace fails with something else; 130: stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec

from cachewitness._util.lines import one_line
from cachewitness.core.result import EXIT_FAIL, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_PASS

SOURCE = "{source}"
GOOD, BAD, SKIP = 0, 1, 125
"""What `git bisect run` is answered."""
Outcome = Literal["good", "bad", "skip"]
CODES: dict[Outcome, int] = {"good": GOOD, "bad": BAD, "skip": SKIP}


class Settings(msgspec.Struct, kw_only=True):
    """How a commit is tested: the trace, the engine with `{source}` for the work tree, further
    options of `replay`, the shell command that builds it (empty: none), and the anomaly that is
    looked for (empty: any). `log` is the file to which a line is added for each commit.
    """

    trace: str
    engine: str
    options: list[str]
    build: str
    anomaly: str
    log: str


class Tested(msgspec.Struct, kw_only=True):
    """What came of a commit. `line` is what happened in one line, `why` says why it was skipped;
    either may be empty.
    """

    commit: str
    subject: str
    outcome: Outcome
    anomaly: str = ""
    line: str = ""
    why: str = ""


class _Finding(msgspec.Struct):
    anomaly: str
    line: str = ""
    sentence: str = ""


class _Judged(msgspec.Struct):
    """What is read of the document that `replay --json` prints."""

    findings: list[_Finding] = []
    not_run: str = ""


def main(argv: list[str]) -> int:
    """Test the commit that is checked out here, and return what git is answered."""
    settings = msgspec.json.decode(Path(argv[0]).read_bytes(), type=Settings)
    tree = Path.cwd()
    try:
        tested = test(settings, tree)
    finally:
        # What the build has written over would keep git from checking out the next commit. What it
        # has made besides stays, so that the next build is short.
        _git(tree, "reset", "--quiet", "--hard")
    print(described(tested), file=sys.stderr, flush=True)
    with Path(settings.log).open("ab") as log:
        log.write(msgspec.json.encode(tested) + b"\n")
    return CODES[tested.outcome]


def described(tested: Tested) -> str:
    """Return a commit and what came of it in one line."""
    what = " ".join(filter(None, (tested.anomaly, tested.line or tested.why)))
    colon = ": " if what else ""
    return one_line(f"{tested.outcome} {tested.commit[:10]} {tested.subject}{colon}{what}")


def test(settings: Settings, tree: Path) -> Tested:
    """Build the work tree, if it has to be, and replay the trace on it."""
    commit, _, subject = _git(tree, "log", "-1", "--format=%H %s").partition(" ")
    made = Tested(commit=commit, subject=subject, outcome="skip")
    # Commits are checked out within one second over files of one size: what Python compiled of one
    # would be taken for the next.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    if settings.build:
        built = subprocess.run(
            settings.build, shell=True, cwd=tree, env=environment, capture_output=True, text=True
        )
        if built.returncode:
            output = built.stderr.strip() or built.stdout.strip()
            made.why = f"cannot be built: {output.splitlines()[-1] if output else built.returncode}"
            return made
    engine = settings.engine.replace(SOURCE, str(tree))
    command = [sys.executable, "-P", "-m", "cachewitness.cli", "replay", settings.trace]
    command += ["--engine", engine, *settings.options, "--json"]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if ran.returncode == EXIT_INTERRUPTED or ran.returncode < 0:
        raise KeyboardInterrupt
    return _judge(settings, ran, made)


def _judge(settings: Settings, ran: subprocess.CompletedProcess[str], made: Tested) -> Tested:
    """Take in what `replay` printed and how it ended."""
    if ran.returncode == EXIT_PASS:
        made.outcome = "good"
        return made
    try:
        judged = msgspec.json.decode(ran.stdout, type=_Judged)
    except msgspec.DecodeError:
        judged = _Judged()
    found = judged.findings
    alike = [one for one in found if settings.anomaly in ("", one.anomaly)]
    if ran.returncode in (EXIT_FAIL, EXIT_INTERNAL) and found:
        first = (alike or found)[0]
        made.anomaly = first.anomaly
        made.line = first.line or first.sentence
        made.outcome = "bad" if alike else "skip"
        made.why = "" if alike else f"fails, and not with {settings.anomaly}"
        return made
    lines = ran.stderr.strip().splitlines()
    made.why = (
        judged.not_run
        or (lines[-1].removeprefix("cachewitness: ") if lines else "")
        or (f"replay ended with {ran.returncode}")
    )
    return made


def _git(tree: Path, *command: str) -> str:
    return subprocess.run(
        ["git", *command], cwd=tree, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
