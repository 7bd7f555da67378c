"""The doctor starts what it speaks of, and engines.toml gives an engine a Python of its own."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util import plugins
from cachewitness.cli import invoke
from cachewitness.engines.written_for import WrittenFor
from suites.support import second_environment
from suites.support.foreign_engine import mortal  # noqa: F401

GENAI = (
    "import sys\n__version__ = '2026.4.1.0'\nclass SchedulerConfig: pass\n"
    "def ContinuousBatchingPipeline(*args):\n"
)
GENAI += "    raise RuntimeError(f'there is no model, says {sys.prefix}')\n"
MODULES = {
    "elsewhere_lib": "__version__ = '1.3.7'",
    "openvino_genai": GENAI,
    "openvino": "",
    "numpy": "",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a second environment, which has what the first has not."""
    folder = tmp_path_factory.mktemp("environments") / "second"
    made = second_environment.make(folder, MODULES)
    second_environment.register(next(folder.glob("lib/python*/site-packages")))
    return made


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the engine in the first environment too, where its library is not."""
    installed = tmp_path / "first"
    installed.mkdir()
    second_environment.register(installed)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CACHEWITNESS_ENGINES", raising=False)
    plugins.every.cache_clear()
    yield
    plugins.every.cache_clear()
    sys.modules.pop("elsewhere_engine", None)


def engines_toml(text: str, name: str = "engines.toml") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = invoke(["doctor", *arguments, "--json"])
    out = capsys.readouterr().out
    return code, {engine["name"]: engine for engine in json.loads(out)["engines"]}


RUN = ("run", "--engine", "elsewhere", "--suite", "invariants", "--layout", "full-mamba", "--quiet")


def test_an_engine_runs_in_the_environment_that_has_it(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the file its library is missing; with it the whole run happens there, and says so."""
    assert invoke(list(RUN)) == 4
    assert "No module named 'elsewhere_lib'" in capsys.readouterr().err
    engines_toml(f'[elsewhere]\npython = "{python}"\n')
    assert invoke([*RUN[:-1], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["engine_version"], report["held"].rpartition(", by ")[2]) == (
        "1.3.7",
        str(python),
    )


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_file_is_named(
    how: str, python: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an option, or by a variable; a path in it begins at the file."""
    Path("pins").mkdir()
    Path("pins/linked").symlink_to(python.parents[1])
    engines_toml('[elsewhere]\npython = "linked/bin/python"\n', "pins/engines.toml")
    if how == "variable":
        monkeypatch.setenv("CACHEWITNESS_ENGINES", "pins/engines.toml")
    assert invoke([*RUN, *(["--engines", "pins/engines.toml"] if how == "option" else [])]) == 0
    assert invoke([*RUN, "--engines", "no/such.toml"]) == 4
    assert "--engines: no/such.toml is not a file" in capsys.readouterr().err


def test_a_failure_is_replayed_where_it_happened(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that a run prints names the file, if an option named it, and finds the failure
    again.
    """
    engines_toml(f'[reference]\npython = "{python}"\n', "pins/engines.toml")
    fault = ("--engine", "reference:mutant=block-leaked", "--engines", "pins/engines.toml")
    assert (
        invoke(
            ["run", *fault, "--layout", "full", "--suite", "invariants", "--fail-fast", "--quiet"]
        )
        == 1
    )
    (command,) = re.findall(r"^replay: cachewitness (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert command.endswith(" ".join(fault))
    assert invoke(shlex.split(command)) == 1


def test_openvino_genai_is_opened_where_it_is(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first Python has no such package; the child of the other one has, and fails in it."""
    Path("models/llama").mkdir(parents=True)
    Path("models/llama/openvino_model.xml").touch()
    run = ["run", "--engine", "openvino-genai:model=llama,models=models", "--suite", "answers"]
    assert invoke(run) == 4
    assert "needs openvino-genai" in capsys.readouterr().err
    engines_toml(f'[openvino-genai]\npython = "{python}"\n')
    assert invoke(run) == 4
    err = capsys.readouterr().err
    assert (
        f"there is no model, says {python.parents[1]}" in err
        and f"(in {python}, see `doctor`)" in err
    )


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "python = 1": "engines.toml: [python]: no engine is called 'python'",
        "[elsewheer]\npython = 'python3'": "did you mean 'elsewhere'?",
        "[elsewhere]\ninterpreter = 'python3'": '[elsewhere] has one field, python = "PATH"',
        "[elsewhere]\npython = 3.12": '[elsewhere] has one field, python = "PATH"',
        "[elsewhere]\npython = '/no/such/python'": (
            "/no/such/python is no program that can be started"
        ),
        "[elsewhere\n": "engines.toml: not TOML: Expected",
        "[jsonl]\npython = 'python3'": "[jsonl] is started by its command",
    }.items(),
)
def test_a_file_that_does_not_fit_is_one_line(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where another engine is asked for, so that a mistake does not wait for the day on
    which it counts.
    """
    engines_toml(text)
    engine = "jsonl:command=true" if "jsonl" in text else "reference"
    assert invoke(["run", "--engine", engine, "--suite", "invariants"]) == 4
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_python_without_this_package_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = second_environment.make(tmp_path / "bare", {}, ours=False)
    engines_toml(f'[elsewhere]\npython = "{bare}"\n')
    assert invoke(list(RUN)) == 4
    assert "No module named 'cachewitness'" in capsys.readouterr().err
    code, found = doctor(capsys, "elsewhere")
    assert code == 4 and found["elsewhere"]["state"] == "broken"
    assert found["elsewhere"]["mend"].startswith(f"{bare} -m pip install ")


def test_it_shares_no_process(python: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines_toml(f'[reference]\npython = "{python}"\n')
    assert invoke(["run", "--suite", "invariants", "--layout", "full", "--quiet"]) == 0
    assert invoke(["run", "--suite", "invariants", "--isolate", "no"]) == 4
    assert "has a Python of its own" in capsys.readouterr().err


def test_the_doctor_says_what_runs_and_what_is_missing(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each engine was started: a version is the one that the engine itself told."""
    code, found = doctor(capsys)
    assert code == 0 and found.keys() >= {
        "reference",
        "sample",
        "vllm",
        "openvino-genai",
        "real-lmcache",
        "toy",
        "jsonl",
    }
    assert (
        found["reference"]["state"] == found["sample"]["state"] == "runs"
        and found["jsonl"]["state"] == "program"
    )
    missing = found["elsewhere"]
    assert (missing["state"], missing["mend"]) == (
        "missing",
        f"{sys.executable} -m pip install elsewhere-lib",
    )
    assert "No module named 'elsewhere_lib'" in missing["why"] and missing["fits"] is None
    engines_toml(f'[elsewhere]\npython = "{python}"\n')
    code, found = doctor(capsys, "elsewhere")
    runs = found["elsewhere"]
    assert code == 0 and (runs["state"], runs["version"], runs["fits"]) == ("runs", "1.3.7", True)
    assert (runs["written_for"], runs["interpreter"]) == ("Elsewhere 1.2 to 1.4", str(python))


def test_a_version_that_nobody_wrote_for_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = second_environment.make(tmp_path / "newer", {"elsewhere_lib": "__version__ = '1.5.0'"})
    second_environment.register(next((tmp_path / "newer").glob("lib/python*/site-packages")))
    engines_toml(f'[elsewhere]\npython = "{newer}"\n')
    code, found = doctor(capsys, "elsewhere")
    assert code == 0 and found["elsewhere"]["fits"] is False
    assert found["elsewhere"]["mend"] == f"{newer} -m pip install 'elsewhere-lib==1.4.*'"
    assert invoke(["doctor", "elsewhere"]) == 0
    assert "NOT written for Elsewhere 1.2 to 1.4" in capsys.readouterr().out


@pytest.mark.usefixtures("mortal")
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("os._exit(0)", "exit code 0"),
        ("[][7]", "raised IndexError"),
        ("time.sleep(99)", "gave no answer within 3 seconds"),
    ],
)
def test_an_engine_that_dies_or_hangs_when_it_is_opened_is_broken(
    how: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are examined all the same."""
    module = Path("installed/mortal_engine.py")
    module.write_text(
        module.read_text().replace(
            "def open_mortal(header, options):\n", f"def open_mortal(header, options):\n    {how}\n"
        )
    )
    hangs = "sleep" in how
    code, found = doctor(capsys, "mortal", *(["--deadline", "3"] if hangs else ["sample"]))
    assert (code, found["mortal"]["state"]) == (4, "broken") and reason in found["mortal"]["why"]
    assert hangs or found["sample"]["state"] == "runs"


def test_an_engine_that_nobody_registered_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "vlm"]) == 4
    assert "no engine is called 'vlm'; did you mean 'vllm'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("0.24.0", True),
        ("0.33.2", True),
        ("0.34.0", False),
        ("0.9", False),
        ("1.0", False),
        ("unknown", False),
    ],
)
def test_a_version_fits_by_its_numbers(version: str, fits: bool) -> None:
    assert WrittenFor("vLLM", "vllm", "0.24", "0.33").fits(version) is fits


@pytest.mark.parametrize(("command", "state", "why"), [
    ("/nonexistent", "refuses", "/nonexistent cannot be started"),
    (f"{sys.executable} -c pass", "broken", "cannot be built for trace 'doctor'"),
])  # fmt: skip
def test_a_command_that_is_named_is_started(
    command: str, state: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, engines = doctor(capsys, f"jsonl:command={command}")
    (found,) = engines.values()
    assert (code, found["state"]) == (4, state) and why in found["why"]
