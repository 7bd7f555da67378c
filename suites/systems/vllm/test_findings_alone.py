"""Every finding in vLLM has a short test that needs vLLM alone, and fails with the release that has
it.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`: of what was found in that release every
test fails by its own assertion, and of what was mended before it every test passes.
"""

from __future__ import annotations

import re
import tomllib

import pytest

from cachewitness.core import validate
from cachewitness.core.driving import drive
from cachewitness.engines.export import Failed
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.source import load
from suites.support.consoles import ROOT
from suites.support.real_vllm import REAL, SOURCE, run_alone

FOUND = ROOT / "fixtures/findings"
REGISTER = [
    entry
    for entry in tomllib.loads((FOUND / "findings.toml").read_text())["finding"]
    if entry["engine"] == "vLLM"
]
ALONE = {
    file: (entry["version"], FOUND / entry.get("trace", ""))
    for entry in REGISTER
    for file in entry.get("alone", [])
}
"""By file: the release in which it was found, and the trace."""
TESTS = {
    file: found
    for file, found in ALONE.items()
    if file.startswith("test_") or file.endswith("_test.py")
}
EXPORTED = [file for file in TESTS if file.startswith("test_")]
LONGEST = 59


def release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    first, second = version.split(".")[:2]
    return int(first), int(second)


def test_every_finding_has_a_short_test_of_vllm_alone() -> None:
    assert not [entry["name"] for entry in REGISTER if not entry.get("alone")]
    assert {path.name for path in [*FOUND.glob("test_*.py"), *FOUND.glob("vllm_*.py")]} == set(
        ALONE
    )
    for file in ALONE:
        text = (FOUND / file).read_text()
        imports = re.findall(r"^ *(?:import|from) ([\w.]+)", text, re.MULTILINE)
        assert len(text.splitlines()) <= LONGEST, file
        assert not {name.partition(".")[0] for name in imports} & {
            "cachewitness",
            "cachewitness_reference",
            "suites",
        }, file


@pytest.mark.parametrize("file", EXPORTED)
class TestExported:
    """Tests that `replay --export pytest` wrote."""

    pytestmark = REAL

    def test_it_is_what_its_trace_exports(self, file: str) -> None:
        version, path = TESTS[file]
        if release(load(SOURCE).version) != release(version):
            pytest.skip(f"was found in vLLM {version}")
        trace = validate.load_trace(path)
        spec = parse(f"vllm:source={SOURCE}")
        result = drive(trace, spec.open(trace.header))
        first = result.findings[0]
        assert result.trace is not None and spec.kind.export is not None
        made = spec.kind.export(
            result.trace,
            result.history,
            Failed(first.anomaly, first.r, first.seq, first.owed),
            spec.options,
        )
        assert (made.text, made.path) == ((FOUND / file).read_text(), SOURCE)


class TestReal:
    """What the release that is here has, and what was mended before it."""

    pytestmark = REAL

    def test_what_was_found_in_this_release_fails_by_its_own_assertion(self) -> None:
        files = [
            FOUND / file
            for file, (version, _) in TESTS.items()
            if release(version) == release(load(SOURCE).version)
        ]
        if not files:
            pytest.skip(f"nothing was found first in vLLM {load(SOURCE).version}")
        ran = run_alone(*files)
        failed = [line for line in ran.stdout.splitlines() if ": AssertionError" in line]
        tests = sum(file.read_text().count("\ndef test_") for file in files)
        assert f"{tests} failed" in ran.stdout and len(failed) == tests, ran.stdout

    def test_what_was_mended_before_it_passes(self) -> None:
        files = [
            FOUND / file
            for file, (version, _) in TESTS.items()
            if release(version) < release(load(SOURCE).version)
        ]
        if not files:
            pytest.skip(f"nothing was found before vLLM {load(SOURCE).version}")
        ran = run_alone(*files)
        assert ran.returncode == 0 and f"{len(files)} passed" in ran.stdout, ran.stdout
