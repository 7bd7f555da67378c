"""An engine of another package, installed as far as entry points go: the reference, which does
something to its process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cachewitness._util import plugins
from cachewitness.engines import import_probe

MODULE = '''
import ctypes, os, resource, signal, sys, time

from msgspec.structs import replace

from cachewitness.engines.answers_level import AnswersLevel
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.own_configurations import OwnConfigurations
from cachewitness.engines.own_process import OwnProcess
from cachewitness.engines.reference import open_engine
from cachewitness.engines.registry import parse
from cachewitness.systems.sample import engine as sample
from cachewitness.core.events import StepBegin
from cachewitness.core.trace_format import Step


def hold_the_lock():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.PyDLL(None).sleep(1000)


def lock_twice(library):
    """Wait in native code, which no signal interrupts."""
    mutex = ctypes.create_string_buffer(256)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def overflow():
    """Run out of stack in C, as a native engine does: sort by a comparison that sorts.

    Python stops it before the usual stack is full from 3.12 on, so there is less of it.
    """
    sort = ctypes.CDLL(None).qsort
    numbers = (ctypes.c_int * 2)(2, 1)
    sys.setrecursionlimit(1 << 30)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def deeper(a, b):
        sort(numbers, 2, 4, deeper)
        return 0

    sort(numbers, 2, 4, deeper)


def hang_whatever_is_raised():
    while True:
        try:
            time.sleep(1000)
        except Exception:
            pass


def every_pipe(do):
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor < 3:
            continue
        try:
            do(descriptor)
        except OSError:
            pass


def leave_a_fork(session):
    if os.fork() == 0:
        if session:
            os.setsid()
        with open(os.environ["PID_FILE"], "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(1000)
    time.sleep(0.2)
    os._exit(0)


def flood():
    for _ in range(2000):
        os.write(1, b"x" * 65536)
        os.write(2, b"y" * 65536)
    os.abort()


def return_twice():
    os.fork()


HOW = {
    "nothing": lambda: None,
    "exit-0": lambda: os._exit(0),
    "exit-1": lambda: os._exit(1),
    "sys-exit": lambda: sys.exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "overflow": overflow,
    "memory": lambda: bytearray(8 << 30),
    "hang": lambda: time.sleep(1000),
    "hang-holding-the-lock": hold_the_lock,
    "hang-in-native-code": lambda: lock_twice(ctypes.CDLL(None)),
    "hang-in-native-code-holding-the-lock": lambda: lock_twice(ctypes.PyDLL(None)),
    "hang-whatever-is-raised": hang_whatever_is_raised,
    "flood": flood,
    "closed-pipe": lambda: os.closerange(3, 65536),
    "garbage": lambda: every_pipe(lambda descriptor: os.write(descriptor, b"hello\\n")),
    "fork": lambda: leave_a_fork(False),
    "fork-in-a-session": lambda: leave_a_fork(True),
    "return-twice": return_twice,
    "raise": lambda: [][7],
    "stand-still": lambda: None,
    "slow": lambda: time.sleep(0.5),
    "chatty": lambda: print("hello", flush=True),
}


class Gone(BaseException):
    """What no `except Exception` catches."""


class Stop(KeyboardInterrupt):
    """An engine's own, and no Ctrl-C of the user."""


def leave_by(error):
    raise error


HOW |= {
    "own-exit": lambda: leave_by(Gone("gone")),
    "own-interrupt": lambda: leave_by(Stop("stopped")),
    "generator-exit": lambda: leave_by(GeneratorExit()),
    "ctrl-c": lambda: os.kill(os.getpid(), signal.SIGINT),
}


class Mortal:
    """With `how=stand-still` it answers all from that operation on and runs nobody (`at=failed-load`: from such a load on)."""

    def __init__(self, engine, options):
        self.engine, self.options, self.still = engine, options, False

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def describe(self):
        if self.options.get("at") == "describe":
            HOW[self.options["how"]]()
        return self.engine.describe()

    def apply(self, op):
        if self.options.get("at", "preempt") == type(op).__name__.lower():
            HOW[self.options.get("how", "nothing")]()
            self.still |= self.options.get("how") == "stand-still"
        nobody = self.still and isinstance(op, Step)
        events = self.engine.apply(replace(op, run=[], budget=-1) if nobody else op)
        self.still |= self.options.get("at") == "failed-load" and any(getattr(event, "failed", []) for event in events)
        return [replace(event, asked=op.run) if nobody and isinstance(event, StepBegin) else event for event in events]

    def close(self):
        if self.options.get("at") == "close":
            HOW[self.options["how"]]()
        self.engine.close()


OPENED = 0


def open_mortal(header, options):
    """Open the reference; with `how=leak` a faulty one for every third trace of the process."""
    global OPENED
    OPENED += 1
    if options.get("how") == "leak":
        return parse("reference" if OPENED % 3 else "reference:mutant=lookup-one-unit-short").open(header)
    if options.get("at") == "open":
        HOW[options["how"]]()
    return Mortal(open_engine(header, {}), options)


ENGINE = EngineKind(
    name="mortal",
    summary="the reference, until something happens",
    levels=("manager", "scheduler"),
    open=open_mortal,
    options={"how": "how it dies", "at": "in which operation"},
    process=OwnProcess(imports=tuple(os.environ.get("MORTAL_IMPORTS", "").split())),
)
OWN = ("how", "at")
ANSWERS = EngineKind(
    name="mortal-answers",
    summary="the sample engine, until something happens",
    levels=("answers",),
    open=lambda header, options: Mortal(
        sample.open_engine(header, {name: value for name, value in options.items() if name not in OWN}), options
    ),
    options={"how": "how it dies", "at": "in which operation", "caching": "off: the uncached twin"},
    policies=None,
    replays=False,
    configurations=OwnConfigurations(lambda options: sample.configurations()),
    answers_level=AnswersLevel(uncached={"caching": "off", "at": "never"}),
)
'''  # noqa: E501


def install(folder: Path) -> Path:
    """Make a package with the engines `mortal` and `mortal-answers` (`mortal:how=…,at=…`);
    return the folder for the path.
    """
    (folder / "mortal_engine.py").write_text(MODULE)
    info = folder / "mortal-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mortal\nVersion: 1.0\n")
    points = [
        "[cachewitness.engines]",
        "mortal = mortal_engine:ENGINE",
        "mortal-answers = mortal_engine:ANSWERS",
    ]
    (info / "entry_points.txt").write_text("\n".join([*points, ""]))
    return folder


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the engine `mortal` installed for a test, which runs in a folder of its own."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(install(folder)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pids"))
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    """Have the next test find what is registered, and whether it can be imported, by itself."""
    plugins.every.cache_clear()
    import_probe.died.cache_clear()
    sys.modules.pop("mortal_engine", None)
