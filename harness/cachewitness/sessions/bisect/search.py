"""The search: a work tree of its own, both ends tested, then `git bisect run`.

The user's checkout, index, branches and any bisection of his own are not touched: git keeps the
state of a bisection with the work tree, and that one is removed at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import one_line
from cachewitness.core.result import EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.sessions.bisect.step import Settings, Tested

FORMAT = "cachewitness.bisection"
VERSION = 1
STEP = "cachewitness.sessions.bisect.step"
OWN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""Variables that git sets for its hooks, and that would have it work elsewhere."""


class Document(msgspec.Struct, kw_only=True):
    """A bisection. `first_bad` is the commit since which the trace fails, null if those that
    could be it were skipped: then `candidates` are all that may be. `tested` are the commits in
    the order in which they were tested.
    """

    trace: str
    engine: str
    good: str
    bad: str
    anomaly: str
    first_bad: Tested | None
    candidates: list[Tested]
    tested: list[Tested]
    exit_code: int
    format: str = FORMAT
    version: int = VERSION


def search(settings: Settings, repository: Path, good: str, bad: str) -> Document:
    """Return the commit since which the trace fails, among those that lead from revision `good`
    to `bad`; `settings.anomaly` empty: with the anomaly that it has at `bad`.

    Raises UsageError if a revision is none, or the trace does not fail at `bad`, or fails at
    `good`.
    """
    first = _commit(repository, good, "--good")
    last = _commit(repository, bad, "--bad")
    with TemporaryDirectory(prefix="cachewitness-bisect-") as folder:
        place = Path(folder)
        settings.log = str(place / "tested.jsonl")
        with _work_tree(repository, place / "source", last) as tree:
            run = _Run(tree, place / "settings.json", settings)
            _check_ends(run, first, last, (good, bad))
            found, candidates = run.bisect(first, last)
            tested = run.tested()
            return Document(
                trace=settings.trace,
                engine=settings.engine,
                good=first,
                bad=last,
                anomaly=settings.anomaly,
                first_bad=next((one for one in tested if one.commit == found), None),
                candidates=[run.named(commit) for commit in candidates],
                tested=tested,
                exit_code=EXIT_PASS if found else EXIT_NOTHING_CHECKED,
            )


class _Run:
    """The step, run on commits of a work tree."""

    def __init__(self, tree: Path, file: Path, settings: Settings) -> None:
        self.tree = tree
        self.settings = settings
        self._file = file

    def _command(self) -> list[str]:
        self._file.write_bytes(msgspec.json.encode(self.settings))
        return [sys.executable, "-P", "-m", STEP, str(self._file)]

    def at(self, commit: str) -> Tested:
        """Test one commit."""
        _git(self.tree, "checkout", "--quiet", "--force", "--detach", commit)
        code, _ = _called(self._command(), self.tree)
        tested = self.tested()
        if not tested or tested[-1].commit != commit:
            raise UsageError(f"commit {commit[:10]} could not be tested (exit code {code})")
        return tested[-1]

    def bisect(self, good: str, bad: str) -> tuple[str, list[str]]:
        """Return the first bad commit, empty if it is among commits that were skipped, and then
        these.
        """
        _git(self.tree, "bisect", "start", bad, good)
        code, output = _called(
            [*_GIT, "bisect", "run", *self._command()], self.tree, stdout=subprocess.PIPE
        )
        if code == 0:
            return _git(self.tree, "rev-parse", "refs/bisect/bad"), []
        if "first bad commit could be any of" not in output:
            raise UsageError(f"git bisect ended with {code}: {one_line(output[-300:])}")
        goods = _git(self.tree, "for-each-ref", "--format=%(refname)", "refs/bisect/good-*")
        left = _git(self.tree, "rev-list", "refs/bisect/bad", "--not", *goods.split())
        return "", left.split()

    def tested(self) -> list[Tested]:
        """Return what was tested so far."""
        log = Path(self.settings.log)
        lines = log.read_bytes().splitlines() if log.exists() else []
        return [msgspec.json.decode(line, type=Tested) for line in lines]

    def named(self, commit: str) -> Tested:
        """Return what is known of a commit, which may not have been tested."""
        for one in self.tested():
            if one.commit == commit:
                return one
        subject = _git(self.tree, "log", "-1", "--format=%s", commit)
        return Tested(commit=commit, subject=subject, outcome="skip", why="was not tested")


def _check_ends(run: _Run, good: str, bad: str, names: tuple[str, str]) -> None:
    """Test both ends. `git bisect` believes what it is told of them."""
    last = run.at(bad)
    if last.outcome != "bad":
        problem = (
            "passes there" if last.outcome == "good" else f"cannot be judged there: {last.why}"
        )
        raise UsageError(f"--bad {names[1]}: the trace {problem}")
    run.settings.anomaly = last.anomaly
    first = run.at(good)
    if first.outcome != "good":
        why = f"cannot be judged there: {first.why}"
        problem = f"fails there too ({first.anomaly})" if first.anomaly else why
        raise UsageError(f"--good {names[0]}: the trace {problem}")


# --- git ------------------------------------------------------------------------------------------

_GIT = ("git", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
"""Hooks are the user's, for his checkout."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OWN} | {"LC_ALL": "C"}


def _git(where: Path, *command: str) -> str:
    """Return what git prints. Raises UsageError with its last line if it fails."""
    try:
        done = subprocess.run(
            [*_GIT, *command], cwd=where, env=_environment(), capture_output=True, text=True
        )
    except OSError as error:
        raise UsageError(f"git cannot be run in {where} ({error.strerror})") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UsageError(f"git {command[0]}: {lines[-1]}")
    return done.stdout.strip()


def _called(command: Sequence[str], where: Path, stdout: int | None = None) -> tuple[int, str]:
    """Run a command in a session of its own, which ends with this one; return its exit code and
    what was read of its output. Raises KeyboardInterrupt if it was stopped.
    """
    child = subprocess.Popen(
        command,
        cwd=where,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        child.wait()
        raise
    return child.returncode, output or ""


def _commit(repository: Path, revision: str, option: str) -> str:
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except UsageError as error:
        if "exit code" in str(error):
            raise UsageError(f"{option}: {revision} is no commit of {repository}") from None
        raise


@contextmanager
def _work_tree(repository: Path, where: Path, commit: str) -> Iterator[Path]:
    """Give a work tree with a commit, and remove it with the state of the bisection."""
    _git(repository, "worktree", "add", "--quiet", "--force", "--detach", str(where), commit)
    try:
        yield where
    finally:
        with suppress(UsageError):
            _git(repository, "worktree", "remove", "--force", "--force", str(where))
        with suppress(UsageError):
            _git(repository, "worktree", "prune")
