"""Every finding in LMCache has a short test without this project; what passes in it is its control.

With LMCache 0.5.6 and a vLLM (`ci/stage_lmcache.sh`) each test fails by its own assertion, and its
control passes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest

from suites.support.consoles import ROOT
from suites.support.real_vllm import REAL, run_alone

FOUND = ROOT / "fixtures/findings"
REGISTER = [
    entry
    for entry in tomllib.loads((FOUND / "findings.toml").read_text())["finding"]
    if entry["engine"] == "LMCache"
]
TESTS = sorted(file for entry in REGISTER for file in entry.get("alone", []))
LONGEST = 59

needs_lmcache = pytest.mark.skipif(
    find_spec("lmcache") is None, reason="needs lmcache; ci/stage_lmcache.sh has it"
)


def test_every_finding_has_a_short_test_that_needs_nothing_of_this_project() -> None:
    assert len(REGISTER) >= 3 and not [
        entry["name"] for entry in REGISTER if not entry.get("alone")
    ]
    assert {path.name for path in FOUND.glob("lmcache_*.py")} == set(TESTS)
    for file in TESTS:
        text = (FOUND / file).read_text()
        imports = re.findall(r"^ *(?:import|from) ([\w.]+)", text, re.MULTILINE)
        assert len(text.splitlines()) <= LONGEST, file
        assert not {name.partition(".")[0] for name in imports} & {
            "cachewitness",
            "cachewitness_reference",
            "suites",
        }, file


@pytest.mark.parametrize("file", TESTS)
class TestInstalled:
    """What needs the installed LMCache, and a vLLM."""

    pytestmark = [*REAL, pytest.mark.lmcache, needs_lmcache]

    def test_it_fails_by_its_own_assertion_and_its_control_passes(self, file: str) -> None:
        ran = run_alone(FOUND / file)
        failed = [
            line
            for line in ran.stdout.splitlines()
            if re.search(r"_test\.py:\d+: AssertionError", line)
        ]
        assert "1 failed, 1 passed" in ran.stdout and len(failed) == 1, ran.stdout


@pytest.mark.lmcache
@needs_lmcache
def test_the_null_block_needs_lmcache_alone() -> None:
    """Without a vLLM to import, and none of this repository."""
    argv = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "--tb=line",
        "-c",
        os.devnull,
        "-p",
        "no:cacheprovider",
    ]
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    file = FOUND / "lmcache_null_state_test.py"
    ran = subprocess.run(
        [*argv, str(file)],
        capture_output=True,
        text=True,
        cwd=FOUND,
        env=surroundings,
        timeout=300,
        check=False,
    )
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout
