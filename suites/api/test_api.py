"""The public API and the pytest plugin, used in a project of somebody else's: a test for each
trace, and no vacuous green.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest

import cachewitness
from benchmarks import pages
from cachewitness.api.cases import Choice
from cachewitness.core import stored as history
from cachewitness.core.trace_format import Step, Submit
from cachewitness.engines.reference import ENGINE as REFERENCE
from cachewitness.sessions.run.suites import first_number
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

WITNESS = "group 1 (recurrent) is the null block, where nothing is ever stored"
FAULT = "reference:mutant=hit-is-maximum-over-groups"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small project beside this one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return tmp_path


def pytest_on(
    project: Path, *arguments: str, body: str, installed: bool = False
) -> tuple[int, str]:
    """Write a test module, run pytest on it in a process of its own, and return its exit code and
    what it printed.

    Only the plugin of this package is loaded, and those that the arguments name: to load whatever
    is `installed` takes longer than most tests.
    """
    (project / "test_it.py").write_text(f"import cachewitness\n\n\n{body}")
    alone = [] if installed else ["-p", "cachewitness.api.plugin"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *alone,
        "-p",
        "no:cacheprovider",
        "--color=no",
        *arguments,
    ]
    surroundings = os.environ | ({} if installed else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    done = subprocess.run(
        command, cwd=project, env=surroundings, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


CLEAN = """@cachewitness.suite("reference", layouts=["full-mamba"], suites=["invariants"], options={"retention_interval": 0})
def test_cache(tmp_path):
    assert tmp_path.is_dir()
"""  # noqa: E501


def test_a_decorated_function_is_a_test_for_each_trace(project: Path) -> None:
    body = CLEAN.replace(', options={"retention_interval": 0}', "")
    code, out = pytest_on(project, "--junit-xml=junit.xml", body=body, installed=True)
    assert code == 0, out
    (line,) = re.findall(r"^cachewitness: test_it.py::test_cache: (.*)$", out, re.MULTILINE)
    ran, of = re.match(
        r"(\d+) of (\d+) traces, [\d,]+ operations, [1-9][\d,]* hits in [\d,]+ look-ups", line
    ).groups()  # type: ignore[union-attr]
    names = [
        case.get("name") for case in xml.parse(project / "junit.xml").getroot().iter("testcase")
    ]
    assert ran == of == str(len(names)) and len(set(names)) == len(names) > 20
    assert "test_cache[invariants:exact-replay@full-mamba[retention_interval=0]]" in names


def test_a_fault_fails_with_its_witness_and_its_trace_is_kept(project: Path) -> None:
    code, out = pytest_on(
        project, "-k", "exact-replay", body=CLEAN.replace('"reference"', f'"{FAULT}"')
    )
    assert code == 1 and WITNESS in " ".join(out.split()) and "FAIL  group-misalignment" in out
    command, *_ = re.findall(r"^replay: cachewitness (replay \S+)", out, re.MULTILINE)
    assert (
        Path(project, command.split()[1]).is_file()
        and "Traceback" not in out
        and "harness/cachewitness/api" not in out
    )


def test_workers_of_xdist_see_the_same_tests_and_gather(project: Path) -> None:
    code, out = pytest_on(project, "-p", "xdist", "-n", "2", body=CLEAN)
    assert code == 0 and re.search(r"test_cache: (\d+) of \1 traces, .* [1-9][\d,]* hits", out), out


def test_a_method_is_a_test_for_each_trace_as_well(project: Path) -> None:
    body = CLEAN.replace("(tmp_path)", "(self, tmp_path)").replace("\n", "\n    ")
    code, out = pytest_on(project, "-k", "siblings", body=f"class TestIt:\n    {body.rstrip()}\n")
    assert code == 0 and re.search(
        r"^cachewitness: test_it.py::TestIt::test_cache: [1-9]", out, re.MULTILINE
    ), out
    body = body.replace('"reference"', f'"{FAULT}"')
    code, out = pytest_on(
        project, "-k", "exact-replay", body=f"class TestIt:\n    {body.rstrip()}\n"
    )
    assert code == 1 and WITNESS in " ".join(out.split()) and "TypeError" not in out, out


def test_a_function_is_decorated_once(project: Path) -> None:
    code, out = pytest_on(project, body='@cachewitness.suite("reference")\n' + CLEAN)
    assert code == 2 and "is decorated twice; one function has the traces of one engine" in out, out


def test_a_function_that_had_nothing_to_judge_fails_the_session(project: Path) -> None:
    """Every trace passes, and not one of them hit anything: the cache is off."""
    body = CLEAN.replace('"retention_interval": 0', '"enable_caching": False')
    code, out = pytest_on(project, body=body)
    assert code == 1 and "failed" not in out.splitlines()[-1], out
    assert re.search(
        r"FAILS, there was nothing to judge: none of [\d,]+ look-ups hit anything", out
    )


REFUSING = """from dataclasses import replace
from cachewitness.engines.reference import ENGINE

OPENED = []


def refuse(header, options):
    OPENED.append(header.layout.name)
    if REFUSED:
        raise cachewitness.UsageError("not this one")
    return ENGINE.open(header, options)


MINE = replace(ENGINE, name="mine", open=refuse)


@cachewitness.suite(MINE, layouts=["full", "full-mamba"], suites=["invariants"])
def test_cache():
    pass
"""


@pytest.mark.parametrize(
    ("refused", "code", "pattern"),
    [
        ('header.layout.name == "full-mamba"', 0, "configuration full-mamba.*not this one"),
        ("True", 1, "FAILS, there was nothing to judge: none of 0 look-ups"),
        ("len(OPENED) > 40", 1, "the engine took some traces of it and refused others"),
    ],
)
def test_what_an_engine_refuses_is_skipped_but_not_all_of_it(
    project: Path, refused: str, code: int, pattern: str
) -> None:
    ended, out = pytest_on(project, "-rs", body=REFUSING.replace("REFUSED", refused))
    assert ended == code and "Traceback" not in out and re.search(pattern, " ".join(out.split())), (
        out
    )


@pytest.mark.parametrize("head", ["async def", "def"])
def test_a_function_whose_body_would_never_run_is_refused(project: Path, head: str) -> None:
    body = CLEAN.replace("def test_cache", f"{head} test_cache") + (
        "    yield\n" if head == "def" else ""
    )
    code, out = pytest_on(project, body=body)
    assert code == 2 and "is no plain function; its body would never run" in out, out


def test_a_trace_that_runs_twice_counts_once(project: Path) -> None:
    """With a parameter of the function's own, half of the tests are not all of its traces."""
    body = CLEAN.replace("(tmp_path)", "(tmp_path, x)").replace(
        "@cachew", "import pytest\n\n\n@pytest.mark.parametrize('x', [1, 2])\n@cachew"
    )
    code, out = pytest_on(project, "-k", "exact-replay", body=body)
    ran, of = re.findall(r"test_cache: (\d+) of (\d+) traces", out)[0]
    passed = int(re.findall(r"(\d+) passed", out)[0])
    assert code == 0 and passed == 2 * int(ran) and int(ran) < int(of), out


def test_a_trace_that_cannot_be_kept_says_so(project: Path) -> None:
    (project / ".cachewitness").write_text("a file where the folder would be")
    code, out = pytest_on(
        project, "-k", "exact-replay", body=CLEAN.replace('"reference"', f'"{FAULT}"')
    )
    assert code == 1 and WITNESS in " ".join(out.split()) and "cannot be written to" in out, out


def test_a_part_of_the_traces_is_not_called_vacuous(project: Path) -> None:
    code, out = pytest_on(project, "-k", "exact-replay", body=CLEAN)
    assert (
        code == 0
        and re.search(r"test_cache: (\d+) of (?!\1 )\d+ traces", out)
        and "nothing to judge" not in out
    ), out


def test_what_does_not_exist_ends_the_session_with_a_line(project: Path) -> None:
    code, out = pytest_on(project, body=CLEAN.replace("full-mamba", "full-mmaba"))
    assert (
        code == 2
        and "Traceback" not in out
        and re.search(r"test_it.py::test_cache: .*'full-mmaba'.*full-mamba", out)
    ), out


def test_the_seed_draws_other_traces(project: Path) -> None:
    body = (
        '@cachewitness.suite(layouts=["full"], suites=["random"])\ndef test_random():\n    pass\n'
    )
    printed = [
        pytest_on(project, "--collect-only", "-q", f"--cachewitness-seed={seed}", body=body)[1]
        for seed in (1, 1, 2)
    ]
    ids = [re.findall(r"^test_it\.py::(\S+)$", text, re.MULTILINE) for text in printed]
    first = first_number(Configuration(layouts.load("full")), 1)
    assert ids[0] == ids[1] != ids[2] and f"test_random[random:random-{first}@full]" in ids[0]


@pytest.mark.parametrize("seed", ["-1", "two"])
def test_a_seed_that_is_none_is_a_line(project: Path, seed: str) -> None:
    code, out = pytest_on(project, f"--cachewitness-seed={seed}", body=CLEAN)
    assert (
        code == 4
        and f"argument --cachewitness-seed: '{seed}' is no seed; a seed is a whole number, 0 or more"  # noqa: E501
        in out
    ), out


def test_an_engine_of_ones_own_needs_no_registration(project: Path) -> None:
    body = (
        "from dataclasses import replace\nfrom cachewitness.engines.reference import ENGINE\n\n"
        'MINE = replace(ENGINE, name="mine")\n\n\n' + CLEAN.replace('"reference"', "MINE")
    )
    assert pytest_on(project, "-k", "exact-replay", body=body)[0] == 0


# --- programs -------------------------------------------------------------------------------------


def test_verify_reports_what_run_does() -> None:
    report = cachewitness.verify(FAULT, layouts=["full-mamba"], suites=["invariants"])
    assert report.exit_code == 1 and WITNESS in " ".join(
        report.failures[0].finding.sentence.split()
    )
    clean = cachewitness.verify(
        REFERENCE, layouts=["full-mamba"], suites=["invariants"], options={"retention_interval": 0}
    )
    assert clean.outcome == "pass" and sum(suite.activity.hits for suite in clean.suites) > 0


def test_a_suite_that_was_named_and_did_not_run_is_no_pass() -> None:
    report = cachewitness.verify(
        "reference", layouts=["full"], suites=["invariants", "cold-vs-cached"]
    )
    assert report.exit_code == 5 and report.vacuous == [
        "suite cold-vs-cached was asked for and was not run"
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layouts": "full"}, r"layouts: 'full' is one name; give a list of names: \['full'\]"),
        ({"suites": "random"}, "suites: 'random' is one name"),
        ({"engine": 3}, "engine: 3 is neither an engine's name nor an EngineKind"),
        ({"seconds": -1.0}, "seconds: -1.0 is less than 0"),
        ({"seed": -1}, "seed: -1 is less than 0"),
    ],
)
def test_what_a_program_gives_wrong_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(cachewitness.UsageError, match=message):
        cachewitness.verify(**given)


def test_a_method_of_unittest_is_told_that_it_gets_no_trace(project: Path) -> None:
    body = (
        CLEAN.replace("(tmp_path)", "(self)")
        .replace("assert tmp_path.is_dir()", "pass")
        .replace("\n", "\n    ")
    )
    code, out = pytest_on(
        project,
        body=f"import unittest\n\n\nclass TestIt(unittest.TestCase):\n    {body.rstrip()}\n",
    )
    assert code == 1 and "got no trace; pytest gives none to a unittest.TestCase" in out, out


def test_check_judges_a_file_and_a_history_alike(tmp_path: Path) -> None:
    header = cachewitness.TraceHeader(
        "t", cachewitness.Layout("full", [cachewitness.GroupSpec("full", 16)]), 9
    )
    ran = cachewitness.drive(
        cachewitness.Trace(header, [Submit("a", "x:20"), Step([("a", 20)])]),
        REFERENCE.open(header, {}),
    )
    history.save(ran.history, tmp_path / "h.jsonl")
    for given in (ran.history, tmp_path / "h.jsonl", str(tmp_path / "h.jsonl")):
        assert cachewitness.check(given).findings == []
    with pytest.raises(cachewitness.UsageError, match=r"no\.jsonl"):
        cachewitness.check(tmp_path / "no.jsonl")


def test_every_public_name_is_documented_by_its_own_words() -> None:
    for name in set(cachewitness.__all__) - {"__version__"}:
        value = getattr(cachewitness, name)
        own = value.__doc__ if inspect.isfunction(value) or inspect.ismodule(value) else ""
        assert own or pages.documented(name), name


def test_the_three_lists_of_public_names_are_one() -> None:
    """What a type checker sees, what is looked up, and what `from cachewitness import *` gives."""
    tree = ast.parse(Path(cachewitness.__file__).read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in checked.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    doors = {name: ("cachewitness", name) for name in cachewitness._DOORS}
    assert imported == doors | {
        name: (f"cachewitness.{module}", attribute)
        for name, (module, attribute) in cachewitness._HOME.items()
    }
    assert sorted(cachewitness.__all__) == sorted([*imported, "__version__"])
    rooms = {path.stem for path in Path(cachewitness.__file__).parent.iterdir()}
    assert rooms & set(imported) == set(doors), "a name that a room has hides one of the two"


def test_documents_and_samples_import_public_names_alone() -> None:
    """In pages, in what they show, and in what `cachewitness new` copies."""
    root = Path(__file__).parents[2]
    texts = [*(root / "docs").rglob("*.md"), *(root / "docs" / "samples").rglob("*.py")]
    texts += [root / "README.md", root / "CONTRIBUTING.md"]
    texts += (root / "harness" / "cachewitness" / "cli" / "starter").iterdir()
    deep = re.compile(r"^\s*(?:from|import) cachewitness\.(?!__)[\w.]+", re.MULTILINE)
    found = {
        str(path.relative_to(root)): deep.findall(path.read_text(encoding="utf-8"))
        for path in texts
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_python_dash_m_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cachewitness", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"cachewitness {cachewitness.__version__}")


def test_a_case_of_a_suite_runs_its_one_trace() -> None:
    """Not what the suite draws, nor what it adds for each configuration."""
    chosen = Choice("reference", layouts=["full"], suites=["invariants", "random"])
    cases = chosen.cases(0)
    for case in (cases[0], cases[-1]):
        report, lines = case.run(lambda _: None)
        assert lines == [] and [suite.traces for suite in report.suites] == [1]
