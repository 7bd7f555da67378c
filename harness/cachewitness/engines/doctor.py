"""Which engines can run here: each is started in a process of its own and opened for a trace,
under a deadline.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from time import perf_counter
from typing import Literal

import msgspec

from cachewitness import __version__
from cachewitness._util.errors import EngineBroken, EngineMissing, UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.isolation.child_env import passed, withheld
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.mutant import DEFAULT_POLICY
from cachewitness.engines.origin import origin
from cachewitness.engines.registry import EngineSpec

FORMAT = "cachewitness.doctor"
VERSION = 1
State = Literal["runs", "missing", "broken", "refuses", "program"]
TRIES = 8
"""An engine that refuses so many configurations is not offered more."""
PAGES = 512
ASKED_SECONDS = 20


class Engine(msgspec.Struct, kw_only=True):
    """What came of one engine.

    `state`: it `runs`; something has to be installed first (`missing`); its process dies, hangs or
    raises (`broken`); it `refuses` every configuration that was tried, or cannot be started; or it
    is a `program` of the user's, and no command that starts it was named. `version` is the one
    found, `written_for` those that its adapter was written for, and `fits` whether the one is among
    the others (null: nothing was found, or it is not said). `why` is empty if it runs, and `mend`
    the command that would change that.
    """

    name: str
    summary: str
    state: State
    levels: list[str]
    interpreter: str
    version: str = ""
    written_for: str = ""
    fits: bool | None = None
    why: str = ""
    mend: str = ""
    seconds: float = 0.0


class Document(msgspec.Struct, kw_only=True):
    """What was examined: by which cachewitness, in which Python, and which file names other
    interpreters (empty: none).

    `withheld` are the names of the environment variables that look like secrets, which no engine's
    process gets.
    """

    cachewitness: str
    python: str
    engines_file: str
    engines: list[Engine]
    withheld: list[str] = []
    format: str = FORMAT
    version: int = VERSION


def document(engines: list[Engine], file: Path | None) -> Document:
    """Return the document of a visit."""
    return Document(
        cachewitness=__version__,
        python=sys.executable,
        engines_file=str(file or ""),
        engines=engines,
        withheld=withheld(),
    )


def examine(spec: EngineSpec, interpreter: str, deadline: float) -> Engine:
    """Start an engine in its process and open it for a trace; `deadline` in seconds,
    `interpreter` empty: this Python.
    """
    kind = spec.kind
    python = interpreter or sys.executable
    written = spec.kind.written_for
    found = Engine(
        name=spec.text,
        summary=kind.summary,
        state="program",
        levels=list(kind.levels),
        interpreter=python,
    )
    if spec.command and not spec.options.get(spec.command):
        found.mend = "cachewitness protocol-check -- COMMAND"
        return found
    isolation = Isolation(deadline=deadline, opening=deadline, python=interpreter)
    began = perf_counter()
    _open(spec.isolated(isolation), found)
    found.seconds = perf_counter() - began
    found.mend = _installable(found.mend, python)
    if written is None:
        found.version = ""
        return found
    found.version = found.version or _installed(python, written.distribution)
    found.written_for = str(written)
    found.fits = written.fits(found.version) if found.version else None
    if found.fits is False:
        found.mend = (
            found.mend or f"{python} -m pip install '{written.distribution}=={written.last}.*'"
        )
    return found


def _installed(python: str, distribution: str) -> str:
    """Return the version of a distribution that an interpreter has installed; empty if none."""
    asked = [
        python,
        "-P",
        "-c",
        f"import importlib.metadata as m; print(m.version({distribution!r}))",
    ]
    try:
        done = subprocess.run(
            asked,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASKED_SECONDS,
            env=passed(),
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _open(spec: EngineSpec, found: Engine) -> None:
    """Open an engine for the first configuration that it takes, and write down what came of it."""
    found.state, found.why = "refuses", "there is no configuration to offer it"
    for header in _headers(spec):
        try:
            engine = spec.open(header)
            found.version = engine.describe().engine_version
            engine.close()
        except EngineMissing as missing:
            found.state = "missing"
            found.why = str(missing)
            found.mend = missing.mend
        except EngineBroken as broken:
            found.state = "broken"
            found.why = str(broken)
            if "No module named 'cachewitness'" in found.why:
                found.mend = f"pip install {quote(origin().requirement())}"
        except UsageError as refused:
            found.why = str(refused)
            continue
        except Exception as error:  # in closing it
            found.state = "broken"
            found.why = f"--engine {spec.text}: it {error}"
        else:
            found.state, found.why = "runs", ""
        return


def _headers(spec: EngineSpec) -> Iterator[TraceHeader]:
    """Yield traces' headers that the engine may take, the likeliest first."""
    kind = spec.kind
    known = [name for name in policies.names() if kind.follows(name)]
    policy = DEFAULT_POLICY if DEFAULT_POLICY in known else known[0]
    offered = [*spec.configurations, *policies.get(policy).configurations()]
    tries = [(one, level) for level in kind.levels for one in offered if one.runs_at(level)]
    for one, level in tries[:TRIES]:
        yield TraceHeader("doctor", one.layout, PAGES, level, one.policy, one.options)


def _installable(mend: str, python: str) -> str:
    """Return a command with pip as that of a Python, and with this package from where it came."""
    ours = origin()
    mend = re.sub(
        r"'cachewitness\[([\w-]+)\]'", lambda found: quote(ours.requirement(found[1])), mend
    )
    return re.sub(r"(^|(?<= ))pip (?=install )", lambda _: f"{quote(python)} -m pip ", mend)
