"""The command line: exit codes, one line for every mistake of the user's, and reports that
programs can read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import msgspec
import pytest

from cachewitness import cli
from cachewitness.cli import invoke
from cachewitness.core.events import Header, Hit
from cachewitness.systems.vllm import header as vllm_header
from suites.support.checkout import PYTHONPATH

QUICK = ("run", "--suite", "invariants", "--layout", "full-swa-mamba", "--retention-interval", "0")


def _run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = invoke(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _child(*argv: str) -> list[str]:
    return [sys.executable, "-m", "cachewitness.cli", *argv]


@pytest.fixture
def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": PYTHONPATH}


USAGE = {
    "no such command": (("runn",), "Did you mean 'run'?"),  # codespell:ignore runn
    "no such option": (("run", "--suit", "x"), "--suit"),
    "no such engine": (
        ("run", "--engine", "refrence"),  # codespell:ignore refrence
        "did you mean 'reference'?",
    ),
    "no such engine option": (("run", "--engine", "reference:mutnt=x"), "did you mean 'mutant'?"),
    "an engine option without a value": (("run", "--engine", "reference:mutant"), "key=value"),
    "no such mutant": (
        ("run", "--engine", "reference:mutant=block-leakd"),
        "did you mean 'block-leaked'?",
    ),
    "no such release": (("run", "--engine", "reference:release=9.9"), "known are 0.22"),
    "no such policy": (("run", "--policy", "vlm"), "did you mean 'vllm'?"),
    "no such layout": (("run", "--layout", "full-mamb"), "did you mean 'full-mamba'?"),
    "no such layout file": (("run", "--layout", "./mine.toml"), "mine.toml: cannot be read"),
    "no such suite": (("run", "--suite", "randm"), "did you mean 'random'?"),
    "a policy option without a value": (("run", "--option", "use_eagle"), "key=value"),
    "no such policy option": (("run", "--option", "use_eagel=true"), "'use_eagel' is unknown"),
    "a retention interval off the grid": (("run", "--retention-interval", "7"), "multiple of"),
    "a retention interval without effect": (
        ("run", "--layout", "full", "--retention-interval", "16"),
        "has no effect",
    ),
    "a retention interval that is no number": (
        ("run", "--retention-interval", "often"),
        "not 'often'",
    ),
    "a negative time": (("run", "--seconds", "-1"), "--seconds"),
    "a time that is no number": (("run", "--seconds", "nan"), "nan is not a finite number"),
    "a time without end": (("fuzz", "--seconds", "inf"), "inf is not a finite number"),
    "a deadline that is no number": (("run", "--deadline", "nan"), "nan is not a finite number"),
    "memory that is no number": (("run", "--memory-gib", "nan"), "nan is not a finite number"),
    "a margin that is no number": (("score", "--margin", "nan"), "nan is not a finite number"),
    "a name of 5,000 letters": (("run", "--engine", "r" * 5_000), "characters) 15 are known"),
    "a file with a name of 5,000 letters": (
        ("report", "r" * 5_000),
        "cannot be used (File name too long)",
    ),
    "drafts that are no number": (
        ("run", "--layout", "full", "--option", "num_speculative_tokens="),
        "whole number",
    ),
    "a bound beyond all": (
        ("fuzz", "--exhaustive", "--bound", "pages=99999999999"),
        "from 2 to 64",
    ),
    "an address that is none": (
        ("score", "--base-url", "http://[", "--limit", "1"),
        "is no address",
    ),
    "a fault like no other": (
        ("run", "--engine", "reference:mutant=zzzz"),
        "(`cachewitness ls mutants` lists all)",
    ),
    "a seed that is no number": (("run", "--seed", "x"), "--seed"),
    "a report into no folder": (("run", "--junit", "nowhere/x.xml"), "nowhere is no folder"),
    "a list that is not there": (
        ("run", "--expected", "nowhere.txt"),
        "nowhere.txt: cannot be read",
    ),
    "a trace that is not there": (("replay", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
    "a history that is not there": (("check", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
    "no such kind": (("ls", "enginse"), "enginse"),
    "no such schema": (("schema", "trce"), "did you mean 'trace'?"),
}


@pytest.mark.parametrize(("argv", "message"), USAGE.values(), ids=USAGE.keys())
def test_a_mistake_of_the_users_is_one_line_and_exit_code_4(
    argv: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(capsys, *argv)
    assert (code, out) == (4, "")
    assert err.startswith("cachewitness: ") and err.count("\n") == 1
    assert message in err


def test_no_command_prints_the_help_and_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys)
    assert (code, out) == (4, "") and "Commands:" in err


def test_a_clean_run_passes_and_shows_what_was_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """The tables name every checker with its opportunities, and no line is wider than 100
    columns or coloured.
    """
    code, out, err = _run(capsys, *QUICK)
    assert (code, err) == (0, "")
    assert (
        "no-fabricated-snapshots" in out
        and "verdict: pass (exit code 0)" in out
        and "operations/s" in out
    )
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("covered: ")) <= 100


def test_a_run_as_json_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, *QUICK, "--json")
    whole = json.loads(out)
    assert (code, err) == (0, "")
    assert (whole["verdict"], whole["exit_code"], whole["configurations"]) == (
        "pass",
        0,
        ["full-swa-mamba[retention_interval=0]"],
    )
    assert whole["suites"][0]["activity"]["restored"] > 0
    assert {tally["checker"]: tally for tally in whole["checkers"]}["no-fabricated-snapshots"][
        "opportunities"
    ] > 0


def test_a_suite_that_was_asked_for_and_cannot_run_is_not_a_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reference has nothing to be compared with; who asks for the differential alone is told
    that nothing was checked.
    """
    code, out, _ = _run(capsys, "run", "--suite", "differential")
    assert code == 5
    assert "suite differential was asked for and was not run" in out


def test_a_run_in_which_no_suite_applies_is_not_a_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that declares the only suite inapplicable while it is opened has been checked in
    nothing.
    """

    def describe(*args: Any, **named: Any) -> Header:
        return msgspec.structs.replace(
            plain(*args, **named), not_applicable={"differential": "of another release"}
        )

    plain = vllm_header.describe
    monkeypatch.setattr("cachewitness.systems.vllm.reference.engine.describe", describe)
    code, out, _ = _run(
        capsys, "run", "--engine", "reference:mutant=block-leaked", "--suite", "differential"
    )
    assert code == 5 and "suite differential was asked for and was not run" in out


def test_an_option_applies_where_it_can_and_is_told_where_it_cannot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = _run(capsys, "run", "--suite", "invariants", "--option", "retention_interval=16")
    assert code == 0 and "verdict: pass" in out
    assert "configuration full[retention_interval=16]: layout 'full': option" in " ".join(
        out.split()
    )


def test_a_layout_is_run_where_the_engine_can_and_is_told_where_it_cannot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a layout's kinds of retention a release may lack some; only a configuration that was
    spelt out has to fit.
    """
    asked = (
        "run",
        "--engine",
        "reference:release=0.22",
        "--suite",
        "invariants",
        "--layout",
        "full-mamba",
    )
    code, out, _ = _run(capsys, *asked)
    assert (
        code == 0
        and "configuration full-mamba[retention_interval=0]: layout 'full-mamba': option 'retention_interval'"  # noqa: E501
        in out
    )
    code, out, err = _run(capsys, *asked, "--option", "retention_interval=0")
    assert (code, out) == (4, "") and "came with release 0.23" in err


def test_a_checker_that_crashes_makes_the_verdict_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, the checker named; JUnit has an error for it, and what the others judged
    stays judged.
    """

    def crash(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(
        "cachewitness.core.checkers.reuse.ReuseFloor.handlers", lambda self: {Hit: crash}
    )
    code, out, _ = _run(capsys, *QUICK, "--junit", "unknown.xml")
    assert code == 2 and "verdict: unknown (exit code 2): checker reuse-floor crashed" in out
    errors = [
        case.get("name")
        for case in ElementTree.parse("unknown.xml").getroot().iter("testcase")
        if case.find("error") is not None
    ]
    assert errors == ["reuse-floor"]


def test_a_crash_of_the_harness_is_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3 with one line and the traceback in a file, or on the screen with --debug; an
    exit of the engine's too.
    """

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("cachewitness.sessions.run.runner.Runner.run", crash)
    code, out, err = _run(capsys, *QUICK)
    assert (code, out, err.count("\n")) == (3, "", 1)
    (path,) = Path(cli.CRASHES).iterdir()
    assert str(path) in err and "RuntimeError: boom" in path.read_text()
    code, _, err = _run(capsys, "--debug", *QUICK)
    assert code == 3 and "Traceback" in err

    class Odd(BaseException):
        pass

    for leaves in (SystemExit(0), Odd()):

        def leave(*_: object, leaves: BaseException = leaves, **__: object) -> None:
            raise leaves

        monkeypatch.setattr("cachewitness.sessions.run.runner.Runner.run", leave)
        assert _run(capsys, *QUICK)[0] == 3


def test_an_interruption_is_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cachewitness.sessions.run.runner.Runner.run", interrupt)
    code, out, err = _run(capsys, *QUICK)
    assert (code, out) == (130, "") and err.strip() == "cachewitness: interrupted"


def test_a_broken_pipe_is_quiet_and_no_verdict(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        _child("ls", "anomalies"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        errors = child.stderr.read()
        assert (child.wait(), errors) == (cli.EXIT_BROKEN_PIPE, b"")


def test_nothing_but_click_is_imported_for_help(environment: dict[str, str]) -> None:
    """Neither msgspec nor rich, so that it comes at once."""
    code = (
        "import sys; from cachewitness.cli import invoke; invoke(['--help']); print({'msgspec',"
        " 'rich'} & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert out.endswith("set()\n")


@pytest.mark.parametrize("command", sorted(cli.cli.commands))
def test_every_option_has_a_help_text(command: str) -> None:
    found = cli.cli.commands[command]
    assert found.help
    assert all(option.help for option in found.params if isinstance(option, click.Option))


@pytest.mark.parametrize(
    "kind",
    [
        "engines",
        "policies",
        "layouts",
        "suites",
        "scenarios",
        "checkers",
        "anomalies",
        "mutants",
        "schemas",
    ],
)
def test_every_kind_is_listed_for_people_and_for_programs(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _run(capsys, "ls", kind, "--json")
    rows = json.loads(out)
    assert code == 0 and rows and all(row["name"] for row in rows)
    code, out, _ = _run(capsys, "ls", kind)
    assert code == 0 and rows[0]["name"] in out


def test_every_rule_of_the_policy_is_marked_there_or_absent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from cachewitness_reference.vllm.spec import RULES

    _, out, _ = _run(capsys, "ls", "policies")
    rules = out[out.index("\nrules:") :].splitlines()
    states = dict(
        line.split()[1:3]
        for line in rules
        if line.split()[:1] == ["vllm"] and line.split()[1] in RULES
    )
    assert states == {
        name: "implemented" if rule.implemented else "absent" for name, rule in RULES.items()
    }


def test_versions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    from cachewitness import __version__

    assert _run(capsys, "--version")[1] == f"cachewitness {__version__}\n"


@pytest.mark.parametrize("option", ["release=0.29", "mamba_cache_mode=align"])
def test_names_of_releases_and_modes_are_taken_as_names(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`0.29` is no number and `none` not nothing where a name is asked for."""
    assert _run(capsys, *QUICK, "--option", option)[0] == 0
    code, _, error = _run(
        capsys, "run", "--layout", "full-mamba", "--option", "mamba_cache_mode=none"
    )
    assert code == 4 and "'mamba_cache_mode' 'none' needs 'enable_caching' false" in error


def test_a_device_is_an_option_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """`--device` is the engine's own option by a shorter name: an engine without one refuses it,
    and it is given once.
    """
    code, _, error = _run(capsys, *QUICK, "--device", "cpu")
    assert code == 4 and "reference has no option 'device'" in error
    code, _, error = _run(capsys, "run", "--engine", "toy:device=cuda", "--device", "cpu")
    assert code == 4 and "option 'device' is given twice, as 'cuda' and 'cpu'" in error
