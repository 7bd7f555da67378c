"""Engines' processes that are forked from one that has imported what they need are as far apart
as those that are started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachewitness.cli import invoke
from cachewitness.core.engine_failure import OwnMistake
from cachewitness.engines.isolation import forked
from cachewitness.engines.isolation.engine import Child, Isolation
from cachewitness.engines.isolation.process import Process
from cachewitness.engines.registry import parse
from suites.support.foreign_engine import mortal  # noqa: F401

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are forked on Linux alone"
)
SECRET = {"HF_TOKEN": "hf_1", "DB_PASSWORD": "b", "HTTPS_PROXY": "http://user:word@proxy:3128"}
HEAVY = """
import os, sys
print("it was imported", flush=True)
with open(os.environ["IMPORTS"], "a") as file:
    file.write("once\\n")
state = []
"""
THREADED = (
    "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
)
KILLED = """
import sys
from cachewitness.engines.isolation.engine import Child, Isolation
child = Child("sample", Isolation(imports=("decimal",)))
print(child._process._process.pid, child._process._process._template._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def modules(mortal: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """Have modules that leave traces when they are imported; return where."""
    folder = mortal / "installed"
    imports = mortal / "imports"
    (folder / "heavy_module.py").write_text(HEAVY)
    (folder / "threaded_module.py").write_text(THREADED)
    (folder / "broken_module.py").write_text("import no_such_module\n")
    monkeypatch.setenv("IMPORTS", str(imports))
    return imports


def start(*imports: str, **limits: float) -> Child:
    return Child("sample", Isolation(imports=imports, **limits))  # type: ignore[arg-type]


def process_of(child: Child) -> forked.Forked:
    process = child._process._process
    assert isinstance(process, forked.Forked)
    return process


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_what_is_named_is_imported_once_and_what_it_prints_is_kept_for_each(modules: Path) -> None:
    children = [start("heavy_module") for _ in range(3)]
    assert modules.read_text().splitlines() == ["once"]
    assert len({process_of(child).pid for child in children}) == 3
    for child in children:
        until(
            lambda child=child: (
                child._process._poll.poll(0) == [] or child._process._check_no_early_answer()
            )
        )
        assert "it was imported" in child.output()
        child.end()
        assert process_of(child).poll() == -signal.SIGKILL


def test_each_has_a_session_limits_and_surroundings_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SECRET.items():
        monkeypatch.setenv(name, value)
    one = start("decimal", memory_gib=3.0)
    other = start("decimal")
    for child in (one, other):
        pid = process_of(child).pid
        assert os.getsid(pid) == os.getpgid(pid) == pid
        shown = Path(f"/proc/{pid}/environ").read_text()
        assert f"CACHEWITNESS_CHILD={child._process._mark}" in shown and not any(
            f"{name}=" in shown for name in SECRET
        )
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
    limits = [Path(f"/proc/{process_of(child).pid}/limits").read_text() for child in (one, other)]
    assert ["3221225472" in text for text in limits] == [True, False]
    one.end()
    assert Path(f"/proc/{process_of(other).pid}").exists()
    other.end()


@pytest.mark.parametrize("module", ["threaded_module", "broken_module", "no_such_module"])
def test_where_nothing_can_be_forked_processes_are_started(module: str) -> None:
    """A module with a thread, or that cannot be imported, changes nothing but the time that it
    takes.
    """
    child = start(module)
    assert isinstance(child._process._process, subprocess.Popen)
    child.end()


def test_another_environment_has_another_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set meanwhile is there, as it is for a process that is started."""
    first = start("decimal")
    monkeypatch.setenv("SET_MEANWHILE", "yes")
    second = start("decimal")
    third = start("decimal")
    shown = [
        "SET_MEANWHILE=yes" in Path(f"/proc/{process_of(one).pid}/environ").read_text()
        for one in (first, second, third)
    ]
    assert shown == [False, True, True]
    assert (
        process_of(first)._template
        is not process_of(second)._template
        is process_of(third)._template
    )
    for child in (first, second, third):
        child.end()


def test_a_template_that_is_gone_is_no_verdict_and_is_replaced() -> None:
    lost = start("decimal")
    template = process_of(lost)._template
    template._process.kill()
    template._process.wait()
    until(lambda: not Path(f"/proc/{process_of(lost).pid}").exists())
    with pytest.raises(OwnMistake, match="is gone"):
        lost.answer_to(b"{}\n", 5)
    lost.end()
    other = start("decimal")
    assert process_of(other)._template is not template
    other.end()


def test_one_that_does_not_answer_in_time_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its late answer would be taken for another one."""
    one = start("decimal")
    template = process_of(one)._template
    monkeypatch.setattr(forked, "ANSWER_S", 0.2)
    os.kill(template._process.pid, signal.SIGSTOP)
    with pytest.raises(OwnMistake, match="is gone"):
        template.ended(process_of(one).pid, hang=False)
    assert template.gone
    one.end()


def test_of_idle_templates_only_a_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has processes is never ended."""
    held = start("decimal")
    for number in range(forked.KEPT + 2):
        monkeypatch.setenv("NUMBER", str(number))
        start("decimal").end()
    assert len(forked._TEMPLATES[os.getpid()]) <= forked.KEPT + 1
    assert process_of(held).poll() is None
    held.end()


def test_a_harness_that_is_killed_leaves_neither_template_nor_child() -> None:
    harness = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert harness.stdout is not None
    pids = [int(pid) for pid in harness.stdout.readline().split()]
    assert len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
    harness.kill()
    harness.communicate()
    until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_run_on_forked_processes_says_what_one_on_started_ones_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a copy that dies as of one that does not; and the kind passes its modules on."""
    verdicts = []
    for imports in ("", "heavy_module"):
        # A run begins with what failed in the last one of the same folder.
        (folder := tmp_path / f"imports{imports}").mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MORTAL_IMPORTS", imports)
        sys.modules.pop("mortal_engine", None)
        spec = parse("mortal").isolated(Isolation())
        assert spec.isolation is not None and spec.isolation.imports == tuple(imports.split())
        code = invoke(
            [
                "run",
                "--engine",
                "mortal:how=exit-1",
                "--layout",
                "full",
                "--suite",
                "random",
                "--fail-fast",
                "--quiet",
            ]
        )
        verdicts.append(
            (code, [line for line in capsys.readouterr().out.splitlines() if "exit code 1" in line])
        )
    assert verdicts[0] == verdicts[1] and verdicts[0][0] == 1


def test_a_process_without_modules_is_started() -> None:
    process = Process([sys.executable, "-c", "pass"])
    assert isinstance(process._process, subprocess.Popen)
    process.kill()
