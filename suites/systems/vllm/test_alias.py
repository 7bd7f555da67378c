"""A fork of vLLM in a package of its own: each module of vLLM is the fork's, the same object."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suites.support.checkout import PYTHONPATH

FORK = {
    "forkllm/__init__.py": "__version__ = '7.1'\n",
    "forkllm/v1/__init__.py": "",
    "forkllm/v1/core.py": "import forkllm.v1.request\nfrom vllm.v1.request import Request\n",
    "forkllm/v1/request.py": "class Request: pass\n",
}


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    for name, text in FORK.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def asked(fork: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the fork on the path, in a process of its own: it tests one vLLM."""
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        cwd=fork,
        env={"PYTHONPATH": f"{fork}:{PYTHONPATH}"},
        check=False,
    )


def test_its_modules_are_vllm_s(fork: Path) -> None:
    """A class that is imported by either name is one class."""
    made = asked(
        fork,
        "from cachewitness.systems.vllm.alias import alias\n"
        "alias('forkllm'); alias('forkllm')\n"
        "import vllm.v1.core, forkllm.v1.request\n"
        "assert vllm.__version__ == '7.1'\n"
        "assert vllm.v1.core.Request is forkllm.v1.request.Request\n"
        "try: import vllm.v1.nowhere\n"
        "except ModuleNotFoundError as error: print(error.name, '|', error)\n",
    )
    assert made.stderr == ""
    assert made.stdout == "vllm.v1.nowhere | No module named 'forkllm.v1.nowhere'\n"


def test_a_process_tests_one_vllm(fork: Path) -> None:
    made = asked(
        fork,
        "from cachewitness._util.errors import UsageError\n"
        "from cachewitness.systems.vllm.alias import alias\n"
        "alias('forkllm')\n"
        "try: alias('other')\n"
        "except UsageError as error: print(error)\n",
    )
    assert made.stdout == (
        "--engine vllm:package=other: forkllm is already imported; use one process for each\n"
    )


def test_a_folder_without_the_package_is_one_line(fork: Path) -> None:
    made = asked(
        fork,
        "from cachewitness.cli import invoke\n"
        f"words = ['run', '--engine', 'vllm:source={fork},package=otherllm@0.29']\n"
        "assert invoke([*words, '--layout', 'full', '--suite', 'invariants']) == 4\n",
    )
    assert "no otherllm/__init__.py there" in made.stderr
    assert made.stderr.count("\n") == 1


def test_what_the_fork_lacks_is_named(fork: Path) -> None:
    made = asked(
        fork,
        "from cachewitness.cli import invoke\n"
        f"words = ['run', '--engine', 'vllm:source={fork},package=forkllm']\n"
        "assert invoke([*words, '--layout', 'full', '--suite', 'invariants']) == 4\n",
    )
    assert "has no module vllm.v1.kv_cache_interface" in made.stderr
