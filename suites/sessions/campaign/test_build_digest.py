"""What an engine is made of: a change of it is another engine, before a unit and while it lasts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.own_process import OwnProcess
from cachewitness.engines.registry import GROUP, parse
from cachewitness.sessions.campaign import worker as serving
from cachewitness.sessions.campaign.build_digest import _package, _tree, forget, made_of
from cachewitness.sessions.campaign.unit import Outcome
from suites.support.campaigns import planned, task_of
from suites.support.checkout import PYTHONPATH, SOURCES

ROOT = Path(__file__).resolve().parents[3]
REGISTERED = plugins.registered


def test_what_an_engine_is_made_of(tmp_path: Path) -> None:
    """Code beside a script, files behind links and hidden ones count; a link in a circle ends;
    other files do not count.
    """
    program = tmp_path / "driver.py"
    source = tmp_path / "source"
    elsewhere = tmp_path / "elsewhere"
    source.mkdir(), elsewhere.mkdir()
    program.write_text("")
    (source / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(source)
    spec = parse(f"jsonl:command='{sys.executable}' {program} {source}")
    seen = [made_of(spec, "vllm", "")]
    for name in ("helper.py", "source/.hidden", "elsewhere/config.json"):
        (tmp_path / name).write_text("changed")
        seen.append(made_of(spec, "vllm", ""))
    (tmp_path / "progress.log").write_text("no part of the engine")
    assert len({*seen}) == 4 and made_of(spec, "vllm", "") == seen[-1]
    assert made_of(parse(f"jsonl:command=sh {'x' * 5000}"), "vllm", "")  # no name of a file
    assert made_of(parse(f"jsonl:command=sh --prompt={'x' * 5000}"), "vllm", "")


def test_what_an_engine_writes_does_not_make_it_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a folder that its command names behind `=`, or beside a script that no Python runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("start.sh", "logs/first", "build/gen.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("#!/bin/sh\n")
    Path("start.sh").chmod(0o755)
    spec = parse("jsonl:command=./start.sh --log=logs")
    before = made_of(spec, "vllm", "")
    for name in ("logs/second", "build/gen.py"):
        Path(name).write_text("more")
    assert made_of(spec, "vllm", "") == before


def test_a_pipe_in_place_of_a_program_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert made_of(parse(f"jsonl:command={tmp_path / 'pipe'}"), "vllm", "")


def test_the_program_that_a_command_finds_is_part_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my-engine"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen = set()
    for content in ("#!/bin/sh\n", "#!/bin/sh\nexit 1\n"):
        program.write_text(content)
        program.chmod(0o755)
        seen.add(made_of(parse("jsonl:command=my-engine"), "vllm", ""))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("registered", "value", "changed"),
    [
        ("adapter.py", "adapter:ENGINE", "my_cache.py"),
        ("adapter/__init__.py", "adapter:ENGINE", "my_cache.py"),
        ("spread/engine.py", "spread.engine:ENGINE", "spread/engine.py"),
    ],
)
def test_code_beside_what_registers_an_engine_is_part_of_it(
    registered: str, value: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `new engine` has it: the adapter is installed as editable, and the cache that it imports
    lies beside it.

    A package without `__init__.py` has no file of its own, and may lie in several places.
    """
    (tmp_path / registered).parent.mkdir(exist_ok=True)
    (tmp_path / registered).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    seen = set()
    for content in ("", "early = True\n"):
        (tmp_path / changed).write_text(content)
        forget()
        seen.add(_package(EntryPoint("mine", value, GROUP)))
    assert len(seen) == 2 and "" not in seen
    forget()


@pytest.mark.parametrize(
    ("program", "command", "changed"),
    [
        ("driver.py", "{python} driver.py", "impl/which.py"),
        ("driver.py", "{python} driver.py", "impl/inner/which.py"),
        ("driver.py", "{python} driver.py --config=here.txt", "here.txt"),
        ("eng.py", "{python} -m eng", "which.py"),
        ("driver", "./driver", "which.py"),
        ("compiled", "./compiled", "libengine.so.2"),
    ],
    ids=["namespace", "inner", "config", "module", "script", "library"],
)
def test_what_is_beside_a_program_is_part_of_the_engine(
    program: str, command: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package without `__init__.py`, a module of the current folder, what a script without a
    suffix imports, a library.
    """
    monkeypatch.chdir(tmp_path)
    first = {"driver": f"#!{sys.executable}\n".encode(), "compiled": Path("/bin/true").read_bytes()}
    Path(program).write_bytes(first.get(program, b""))
    Path(program).chmod(0o755)
    Path(changed).parent.mkdir(parents=True, exist_ok=True)
    spec = parse(f"jsonl:command={command.format(python=sys.executable)}")
    seen = set()
    for content in ("", "changed"):
        Path(changed).write_text(content)
        seen.add(made_of(spec, "vllm", ""))
    Path("progress.log").write_text("no part of the engine")
    assert len(seen) == 2 and made_of(spec, "vllm", "") in seen


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """Return a Python of its own, which finds all that this one does."""
    folder = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (installed,) = folder.glob("lib/python*/site-packages")
    places = [
        *SOURCES,
        *(path for path in sys.path if path.endswith("-packages")),
        str(tmp_path / "there"),
    ]
    (installed / "all.pth").write_text("\n".join(places))
    return folder / "bin" / "python"


@pytest.mark.parametrize("command", ["{python} driver.py", "driver.py"])
def test_what_is_installed_for_the_python_of_a_command_is_part_of_the_engine(
    command: str, other_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that it names, or that the first line of its script does."""
    program = tmp_path / "driver.py"
    program.write_text(f"#!{other_python}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (installed,) = (tmp_path / "other").glob("lib/python*/site-packages")
    spec = parse(f"jsonl:command={command.format(python=other_python)}")
    seen = set()
    for version in ("1.0", "2.0"):
        metadata = installed / "mycache.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: mycache\nVersion: {version}\n"
        )
        forget()
        seen.add(made_of(spec, "vllm", ""))
    assert len(seen) == 2
    forget()


def test_an_engine_in_another_python_is_what_is_registered_there(
    other_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here there is another copy of it, or none."""
    registered = tmp_path / "there/adapter.py"
    spec = parse("reference")
    seen = set()
    registered.parent.mkdir()
    spec = replace(
        spec,
        kind=replace(spec.kind, process=OwnProcess()),
        isolation=Isolation(python=str(other_python)),
    )
    entries = {"reference": EntryPoint("reference", "adapter:ENGINE", GROUP)}
    monkeypatch.setattr(
        plugins, "registered", lambda group: entries if group == GROUP else REGISTERED(group)
    )
    for content in ("", "early = True\n"):
        registered.write_text(content)
        forget()
        seen.add(made_of(spec, "vllm", ""))
    assert len(seen) == 2
    monkeypatch.setattr(plugins, "registered", REGISTERED)
    forget()


def test_a_folder_of_models_that_the_environment_names_is_part_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEWITNESS_LLAMA_CPP_MODELS", str(tmp_path))
    seen = set()
    for content in ("weights", "other weights"):
        (tmp_path / "jamba.gguf").write_text(content)
        seen.add(made_of(parse("llama-cpp:model=jamba"), "vllm", ""))
    assert len(seen) == 2


def test_of_a_folder_of_installed_distributions_the_package_alone_is_read() -> None:
    """Their versions tell what lies beside it, and there may be gigabytes."""
    entry = EntryPoint("installed", "click:command", GROUP)
    assert _package(entry) == sha256(_tree(Path(click.__file__).parent)).hexdigest()


def test_a_file_of_an_engine_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not as if there were no such file."""
    program = tmp_path / "driver.py"
    program.write_text("")

    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(
        UsageError, match=r"driver\.py cannot be read \(Permission denied\), so it is not known"
    ):
        made_of(parse(f"jsonl:command={program}"), "vllm", "")


def test_an_engine_that_changes_while_a_unit_lasts_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came of it is of neither."""
    program = tmp_path / "driver.py"
    program.write_text((ROOT / "docs/samples/jsonl_engine.py").read_text())
    engine = f"jsonl:command='{sys.executable}' {program}"
    made = planned(f'name = "a"\nstreams = ["m"]\n[[engines]]\nengine = "{engine}"\n', tmp_path)

    def changed(unit: object, store: object) -> Outcome:
        program.write_text("changed")
        return Outcome()

    monkeypatch.setattr(serving, "perform", changed)
    answer = serving.carry_out(task_of(made, 1, tmp_path))
    assert not answer.outcome
    assert "is another one here than where the campaign was planned" in answer.refused


def test_the_key_of_a_unit_is_the_same_in_every_process() -> None:
    """Names are digested in the order in which they stand, which no hash decides."""
    code = (
        "import sys; from cachewitness.engines.registry import parse; from"
        " cachewitness.sessions.campaign.build_digest import"
        " made_of\nprint(made_of(parse(f\"jsonl:command='{sys.executable}'"
        " docs/samples/jsonl_engine.py\"), 'vllm', ''))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(keys) == 1
