"""The gate tells a fork with a planted fault from one without, by its exit code, its witness and
its artefacts.

Two kinds of forks: a package of its own, made of a copy of the reference policy and of the example
in docs/gate.md, that registers an engine; and, where there is one, a tree of the real vLLM.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from cachewitness.report import expected
from suites.support.checkout import SOURCES
from suites.support.forked import (
    EARLY,
    FORGETFUL,
    GUIDE,
    ROOT,
    Bug,
    example,
    make_fork,
    surroundings,
)

SHORT = ("--suite", "invariants", "--layout", "full-swa", "--option", "retention_interval=0")
VLLM_SOURCE = os.environ.get("CACHEWITNESS_VLLM_SOURCE", "")


class Gated(NamedTuple):
    """A finished run of the gate and the folder that it was called in."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def artefacts(self) -> Path:
        return self.folder / "cachewitness-artefacts"

    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.artefacts / "report.json").read_bytes())
        return document

    def failures(self) -> list[dict[str, Any]]:
        return [failure for suite in self.report()["suites"] for failure in suite["failures"]]


def gate(
    folder: Path, engine: str, *arguments: str, timeout: float = 300, **environment: str
) -> Gated:
    command = ["bash", str(ROOT / "ci" / "gate.sh"), engine, *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=surroundings(folder, **environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return Gated(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a fork without a fault, in a folder with a space in its name."""
    return make_fork(tmp_path_factory.mktemp("gate") / "clean fork")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the same fork, whose window blocks are given back one token early."""
    return make_fork(tmp_path_factory.mktemp("gate") / "broken fork", EARLY)


SUMMARY = "step summary"


@pytest.fixture(scope="module")
def red(broken: Path) -> Gated:
    """Return what the gate said to the broken fork, on GitHub, whose summary of the step has a
    line already.
    """
    summary = broken / SUMMARY
    summary.write_text("before\n")
    return gate(broken, "fork", *SHORT, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))


def test_a_fork_without_a_fault_is_green(clean: Path) -> None:
    """Exit code 0 and whole reports; what does not apply is told, and so is what was run."""
    done = gate(clean, "fork", *SHORT)
    assert done.code == 0, done.out + done.err
    assert re.search(
        r"^no-fabricated-snapshots [ -]+ not applicable: no recurrent group$",
        done.out,
        re.MULTILINE,
    )
    assert "--suite invariants --layout full-swa" in done.out
    assert done.report()["verdict"] == "pass"
    kept = [
        "badge.json",
        "comment.md",
        "junit.xml",
        "report.html",
        "report.json",
        "report.sarif",
        "report.txt",
        "summary.md",
    ]
    assert sorted(path.name for path in done.artefacts.iterdir()) == kept


def test_suites_that_the_fork_cannot_run_are_listed(clean: Path) -> None:
    """A gate that was not narrowed names the suites that it left out, and why."""
    done = gate(clean, "fork", "--layout", "full", CACHEWITNESS_SECONDS="1")
    assert done.code in (0, 5), done.out + done.err
    assert "not run:" in done.out
    refused = (
        r"suite scheduler, suite scheduler-random[^:]*: engine fork does not run at scheduler"
        r" level"
    )
    assert re.search(refused, " ".join(done.out.split())), done.out


def test_a_planted_fault_is_red_with_witness_and_artefacts(red: Gated) -> None:
    """Exit code 1, the anomaly with its sentence, and for each failure two traces and a history."""
    assert red.code == 1, red.out + red.err
    assert "FAIL  premature-release  found by window-liveness" in red.out
    assert re.search(r"Let \w+, .*: a contradiction\.", red.out, re.DOTALL)
    # It is known at once that the gate will be red, and its witness comes with the report.
    first = red.out.index("\nfirst failure: premature-release in invariants:")
    assert first < red.out.index("\nengine fork ")
    kept = [path.name for path in (red.artefacts / "failures").iterdir()]
    for suffix in (".trace.jsonl", ".whole.jsonl", ".history.jsonl"):
        assert len([name for name in kept if name.endswith(suffix)]) == len(red.failures()) > 0
    assert len(kept) == 3 * len(red.failures()) + 1 and "last-failed.json" in kept
    junit = ElementTree.parse(red.artefacts / "junit.xml").getroot()
    assert int(junit.attrib["failures"]) == len(red.failures())


def test_the_printed_command_replays_the_failure(red: Gated) -> None:
    """The line after `replay:`, run where the gate was called, fails with the same anomaly."""
    (line,) = re.findall(r"^replay: cachewitness (.*)$", red.out, re.MULTILINE)
    environment = surroundings(red.folder, PYTHONPATH=os.pathsep.join([*SOURCES, str(red.folder)]))
    command = [sys.executable, "-P", "-m", "cachewitness.cli", *shlex.split(line)]
    again = subprocess.run(
        command, cwd=red.folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert "premature-release" in again.stdout


def test_another_fault_is_another_anomaly(tmp_path: Path) -> None:
    """A retention mask that knows no replay boundary is red as lost-replay-boundary, not merely
    red.
    """
    done = gate(make_fork(tmp_path / "fork", FORGETFUL), "fork", *SHORT)
    assert done.code == 1, done.out + done.err
    assert {failure["anomaly"] for failure in done.failures()} == {FORGETFUL.anomaly}


def test_listed_failures_are_expected_and_one_that_is_not_listed_is_not(
    red: Gated, tmp_path: Path
) -> None:
    """The ids of all failures, listed, make the gate green; without one of them it is red."""
    folder = shutil.copytree(red.folder, tmp_path / "fork")
    lines = [
        f"{failure['id']}  {failure['anomaly']}  # our issue 17\n" for failure in red.failures()
    ]
    (folder / ".cachewitness-expected").write_text("".join(lines))
    listed = gate(folder, "fork", *SHORT)
    assert listed.code == 0, listed.out + listed.err
    assert {failure["expected"] for failure in listed.failures()} == {"our issue 17"}
    assert "expected failures:" in listed.out
    shorter = tmp_path / "a shorter list"
    shorter.write_text("".join(lines[1:]))
    assert gate(folder, "fork", *SHORT, "--fail-fast", CACHEWITNESS_EXPECTED=str(shorter)).code == 1


KNOWN = "*:*@full-swa*  premature-release  # a window is given back early\n"
"""What is known of a release of the fork, whose fault `EARLY` came with it."""


def test_what_a_release_is_known_for_is_expected_by_itself(tmp_path: Path) -> None:
    """An unchanged release is green without a list of the user's; what it is known for is named in
    one line each, and its list is no reason to be strict. Without the list it is red.
    """
    fork = make_fork(tmp_path / "fork", EARLY, known=KNOWN)
    done = gate(fork, "fork", *SHORT)
    assert done.code == 0, done.out + done.err
    found = len(done.failures())
    listed = f"known of fork 1.0: {found} findings, list {fork / 'forked_vllm' / 'known.txt'}"
    assert f"\n{listed}\n  premature-release  invariants:" in done.out
    assert listed in (done.artefacts / "summary.md").read_text()
    assert "FAIL" not in done.out and "replay: " not in done.out
    assert done.report()["known_list"]["findings"] == found > 0
    assert listed in (done.artefacts / "report.html").read_text()
    junit = ElementTree.parse(done.artefacts / "junit.xml").getroot()
    assert junit.attrib["failures"] == "0"
    sarif = json.loads((done.artefacts / "report.sarif").read_bytes())
    assert {one["level"] for one in sarif["runs"][0]["results"]} == {"note"}
    (fork / ".cachewitness-expected").write_text("invariants:*  premature-release  # ours\n")
    beside = gate(fork, "fork", *SHORT, "--strict-expected")
    assert beside.code == 0, beside.out + beside.err
    assert {failure["known"] for failure in beside.failures()} == {""}
    (fork / ".cachewitness-expected").unlink()
    without = gate(fork, "fork", *SHORT, "--no-known")
    assert without.code == 1 and "known of" not in without.out, without.out + without.err


def test_a_change_is_shown_before_what_the_release_is_known_for(tmp_path: Path) -> None:
    """A list of the release hides no other anomaly, and the user's is strict still."""
    fork = make_fork(tmp_path / "fork", EARLY, known=KNOWN)
    FORGETFUL.plant(fork / "forked_vllm")
    layouts = ("--suite", "invariants", "--layout", "full-swa", "--layout", "full-mamba")
    done = gate(fork, "fork", *layouts)
    assert done.code == 1, done.out + done.err
    change = done.out.index(f"FAIL  {FORGETFUL.anomaly}")
    assert change < done.out.index("known of fork 1.0: ")
    unchanged = "if this is fork 1.0 as it was released, what its list does not have is a new"
    assert unchanged in re.findall("^verdict: .*$", done.out, re.MULTILINE)[0]
    for name in ("comment.md", "report.html"):
        assert unchanged in (done.artefacts / name).read_text()
    assert "FAIL  premature-release" not in done.out
    cases = ElementTree.parse(done.artefacts / "junit.xml").getroot().iter("testcase")
    outcomes = [case[0].tag for case in cases if "@" in case.attrib["name"]]
    assert outcomes == sorted(outcomes) and set(outcomes) == {"failure", "skipped"}
    (fork / ".cachewitness-expected").write_text("invariants:none@*  leak  # ours\n")
    stale = gate(
        make_fork(tmp_path / "b", EARLY, known=KNOWN),
        "fork",
        *SHORT,
        "--strict-expected",
        CACHEWITNESS_EXPECTED=str(fork / ".cachewitness-expected"),
    )
    assert stale.code == 4 and "nothing fits it" in stale.out, stale.out


def test_a_release_without_a_list_says_so(tmp_path: Path) -> None:
    fork = make_fork(tmp_path / "fork", EARLY, known=KNOWN)
    witness = fork / "forked_vllm" / "witness.py"
    witness.write_text(witness.read_text().replace('"fork", "1.0"', '"fork", "2.0"'))
    done = gate(fork, "fork", *SHORT)
    assert done.code == 1 and "known of fork 2.0: no list" in done.out, done.out + done.err


def test_unexpected_passes_are_shown(red: Gated, clean: Path, tmp_path: Path) -> None:
    """The same list over the mended fork is green and names every line to strike out."""
    entries = [f"{failure['id']} {failure['anomaly']}" for failure in red.failures()]
    listed = tmp_path / "listed"
    listed.write_text("".join(f"{entry}  # our issue 17\n" for entry in entries))
    done = gate(clean, "fork", *SHORT, CACHEWITNESS_EXPECTED=str(listed))
    assert done.code == 0, done.out + done.err
    section = done.out.partition("expected to fail, but passed:\n")[2].partition("\n\n")[0]
    assert sorted(line.strip() for line in section.splitlines()) == sorted(entries)


@pytest.mark.parametrize(
    "line", ["invariants:*  leak", "one:* two:*  # why", "no-id-at-all  leak  # why"]
)
def test_a_malformed_list_ends_with_4(clean: Path, tmp_path: Path, line: str) -> None:
    """A list that cannot be read is a mistake in set-up, told in one line with its place;
    nothing is run.
    """
    listed = tmp_path / "listed"
    listed.write_text(f"# known\n{line}\n")
    done = gate(clean, "fork", *SHORT, CACHEWITNESS_EXPECTED=str(listed))
    assert done.code == 4
    assert (
        len(re.findall(rf"^cachewitness: {re.escape(str(listed))}:2: .*$", done.out, re.MULTILINE))
        == 1
    )
    assert not (done.artefacts / "report.json").exists()
    assert "the engine was neither cleared nor convicted" in done.out


def test_artefacts_of_an_earlier_run_are_gone(red: Gated, tmp_path: Path) -> None:
    """What an earlier run left is never taken for this one's; the folder's other files stay."""
    kept = shutil.copytree(red.artefacts, tmp_path / "kept here")
    (kept / "notes.txt").write_text("mine")
    assert gate(red.folder, "reference", *SHORT, CACHEWITNESS_ARTEFACTS=str(kept)).code == 0
    assert not (kept / "failures").exists(), "what failed last passes now"
    assert (kept / "notes.txt").exists()


def test_on_github_failures_are_annotated_and_summed_up(red: Gated) -> None:
    """The summary is appended to what is there, without the workflow commands; those are in the
    log.
    """
    assert "::error title=premature-release in invariants" in red.out
    text = (red.folder / SUMMARY).read_text()
    assert text.startswith("before\n### cachewitness: FAIL (exit code 1)\n")
    assert "found by window-liveness" in text
    assert "::error" not in text
    assert text.endswith((red.artefacts / "summary.md").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name an engine first"),
        (("--layout", "full"), "name an engine first"),
        (("fork", "--report=elsewhere"), "--report is the gate's own"),
        (("fork", "--isolate", "no"), "can choose its exit code"),
        (("fork", "--quick", "--isolate=no"), "can choose its exit code"),
    ],
)
def test_a_wrong_call_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """A call that makes no sense ends with 4 and one line, before anything is written."""
    command = ["bash", str(ROOT / "ci" / "gate.sh"), *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=surroundings(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 4
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_harness_that_does_not_start_is_no_verdict(tmp_path: Path) -> None:
    """A Python without the packages leaves with 1, which the gate must not pass on as a failure
    of the engine.
    """
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named click' >&2\nexit 1\n")
    python.chmod(0o755)
    done = gate(tmp_path, "reference", CACHEWITNESS_PYTHON=str(python))
    assert done.code == 4
    assert "No module named click" in done.err


def installed(folder: Path, *commands: str) -> dict[str, str]:
    """Put a `cachewitness` of shell commands on the path; it tells its version and its arguments
    first.
    """
    path = folder / "bin" / "cachewitness"
    path.parent.mkdir()
    path.write_text(
        "\n".join(
            ["#!/bin/sh", 'echo "cachewitness 9.9 $*"', '[ "$1" = run ] || exit 0', *commands, ""]
        )
    )
    path.chmod(0o755)
    return {
        "CACHEWITNESS_PYTHON": "",
        "PATH": os.pathsep.join([str(path.parent), os.environ["PATH"]]),
    }


def report_of(code: int) -> str:
    """Return a command that leaves a report with an exit code, as far as the gate looks at it."""
    return f"printf '{{\\n  \"exit_code\": {code},\\n}}\\n' >cachewitness-artefacts/report.json"


def test_an_installed_harness_is_taken_from_the_path(tmp_path: Path) -> None:
    """Without CACHEWITNESS_PYTHON the gate runs the `cachewitness` that is installed, not this
    checkout's.
    """
    done = gate(tmp_path, "some:engine", "--layout", "a b", **installed(tmp_path, report_of(0)))
    assert done.code == 0, done.out + done.err
    asked = (
        "run --engine some:engine --seed 0 --seconds 60 --report cachewitness-artefacts"
        " --layout a b"
    )
    assert (done.artefacts / "report.txt").read_text() == f"cachewitness 9.9 {asked}\n"


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        (("exit 0",), 3),
        (("exit 1",), 3),
        (("exit 5",), 3),
        (("kill -SEGV $$",), 3),
        ((report_of(1), "exit 0"), 3),
        ((report_of(0), "exit 1"), 3),
        ((report_of(1), "exit 1"), 1),
        ((report_of(5), "exit 5"), 5),
        (("exit 4",), 4),
        (("exit 130",), 130),
    ],
)
def test_no_code_is_a_verdict_without_a_report_that_says_the_same(
    tmp_path: Path, commands: tuple[str, ...], code: int
) -> None:
    """Whoever ends the process chooses its code; only a whole report makes it a verdict."""
    done = gate(tmp_path, "some", **installed(tmp_path, *commands))
    assert done.code == code, done.out + done.err
    assert ("the engine was not judged" in done.out) == (code == 3)
    assert f"(exit code {code})" in (done.artefacts / "summary.md").read_text().splitlines()[0]
    marker, heading = (done.artefacts / "comment.md").read_text().splitlines()[:2]
    assert marker == "<!-- cachewitness -->" and heading.endswith(f"(exit code {code})")


def test_an_engine_that_ends_the_process_is_not_green(tmp_path: Path) -> None:
    """With a code of 0, from inside an operation: it died, or the gate says that nobody was
    judged.
    """
    quits = Bug(
        "engine-crashed",
        "witness.py",
        "        media = [",
        "        __import__('os')._exit(0)\n        media = [",
    )
    done = gate(make_fork(tmp_path / "fork", quits), "fork", *SHORT, "--fail-fast")
    assert done.code in (1, 3), done.out + done.err
    assert "verdict: pass" not in done.out and "gate: pass" not in done.out


def test_the_gate_says_in_one_line_what_it_covered(red: Gated) -> None:
    """Suites, traces, operations, hits, and what was not run; once, as it is long."""
    (line,) = re.findall(r"^.*\bcovered:? (.*)$", red.out, re.MULTILINE)
    assert re.fullmatch(
        r"1 suite, \d+ traces, [\d,]+ operations, [\d,]+ hits in [\d,]+ look-ups;"
        r" at most [^;]+; not run: invariants: traces that need prompt_logprobs"
        r"(; \d+ of [\d,]+ requests aborted by the engine)?",
        line,
    )


def test_the_guide_and_the_examples_are_in_step(tmp_path: Path) -> None:
    """The list in the guide can be read, and every file of this repository that guide and
    examples name is there.
    """
    listed = tmp_path / "listed"
    listed.write_text(example("text", "# ids read"))
    assert len(expected.load(listed)) == 3
    examples = [
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "ci" / "examples").iterdir())
    ]
    named = set(re.findall(r"\b((?:ci|harness|docs)/[\w./-]+\.\w+)", "\n".join([GUIDE, *examples])))
    assert {"ci/gate.sh", "ci/vllm_requirements.txt"} <= named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_what_is_skipped_is_listed(tmp_path: Path) -> None:
    """A test run that leaves the real vLLM out ends with a list that says so and why."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-o",
        f"cache_dir={tmp_path}",
        __file__,
        "-k",
        "fork_of_vllm",
    ]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=surroundings(ROOT, **alone),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = done.stdout.partition(" not run ")[2]
    assert re.search(
        r"test_a_fork_of_vllm_is_green\S*: CACHEWITNESS_VLLM_SOURCE does not name", listed
    )


# --- the real vLLM --------------------------------------------------------------------------------


def why_no_vllm() -> str:
    """Return why vLLM cannot be gated here; empty if it can."""
    if not VLLM_SOURCE:
        return "CACHEWITNESS_VLLM_SOURCE does not name a folder that holds `vllm`"
    if not (Path(VLLM_SOURCE) / "vllm" / "__init__.py").is_file():
        return f"CACHEWITNESS_VLLM_SOURCE: no vllm/__init__.py in {VLLM_SOURCE}"
    return "" if importlib.util.find_spec("torch") else f"{sys.executable} has no torch"


def make_vllm(folder: Path) -> Path:
    """Make a tree of vLLM as a checkout has it: `v1/core` and the files on the way copied,
    everything else linked.
    """
    here = (Path(VLLM_SOURCE) / "vllm").resolve()
    for copied, but in (("", "v1"), ("v1", "core"), ("v1/core", "")):
        (folder / "vllm" / copied).mkdir(parents=True)
        for path in (here / copied).iterdir():
            there = folder / "vllm" / copied / path.name
            if path.is_dir() and path.name not in (but, "__pycache__"):
                there.symlink_to(path)
            elif path.suffix == ".py":
                shutil.copy(path, there)
    return folder


@pytest.mark.vllm
@pytest.mark.skipif(bool(why_no_vllm()), reason=why_no_vllm())
def test_a_fork_of_vllm_is_green_and_with_the_fault_red(tmp_path: Path) -> None:
    """Real vLLM passes as it is; its window blocks given back one token early are a premature
    release.
    """
    fork = make_vllm(tmp_path / "vllm fork")
    arguments = ("--suite", "invariants", "--layout", "full-swa-mamba")
    clean = gate(fork, "vllm:source=.", *arguments)
    assert clean.code == 0, clean.out + clean.err
    assert "known of vLLM 0.33.0: " in clean.out
    bug = Bug(EARLY.anomaly, "v1/core/single_type_kv_cache_manager.py", EARLY.old, EARLY.new)
    bug.plant(fork / "vllm")
    red = gate(fork, "vllm:source=.", *arguments)
    assert red.code == 1, red.out + red.err
    assert {failure["anomaly"] for failure in red.failures()} == {bug.anomaly}


@pytest.mark.vllm
@pytest.mark.skipif(bool(why_no_vllm()), reason=why_no_vllm())
def test_a_release_of_vllm_is_green_as_it_is_and_a_change_is_shown_first(tmp_path: Path) -> None:
    """All suites, without a list of the user's: what the release is known for is folded, and a
    window that is given back early stands before it.
    """
    fork = make_vllm(tmp_path / "vllm fork")
    clean = gate(fork, "vllm:source=.", CACHEWITNESS_SECONDS="20", timeout=1200)
    assert clean.code == 0, clean.out + clean.err
    assert re.search(
        r"^known of vLLM \S+: [1-9]\d* findings?, list fixtures/expected/vllm-",
        clean.out,
        re.MULTILINE,
    ), clean.out
    assert "FAIL" not in clean.out
    bug = Bug(EARLY.anomaly, "v1/core/single_type_kv_cache_manager.py", EARLY.old, EARLY.new)
    bug.plant(fork / "vllm")
    layouts = ("--layout", "full-swa", "--layout", "full-mamba")
    suites = ("--suite", "invariants", "--suite", "scheduler")
    red = gate(fork, "vllm:source=.", *suites, *layouts, timeout=1200)
    assert red.code == 1, red.out + red.err
    assert red.out.index(f"FAIL  {EARLY.anomaly}") < red.out.index("known of vLLM ")
