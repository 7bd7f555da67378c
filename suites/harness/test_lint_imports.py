"""Every import rule and every length limit has a tree that breaks it, and the lint says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CLEAN = {
    "reference_impl/__init__.py": '"""Policies."""\n',
    "reference_impl/primitives/__init__.py": "import dataclasses\n",
    "reference_impl/vllm/__init__.py": "from reference_impl.primitives import ids\nfrom . import pool\n",
    "reference_impl/vllm/spec.py": "",
    "reference_impl/vllm/pool.py": "import re\nfrom reference_impl.vllm import spec\nfrom ..primitives import ids\n",
    "reference_impl/vllm_extended/tier.py": "from reference_impl.vllm import pool\n",
    "reference_impl/toy_model/model.py": "import torch\n",
    "reference_impl/tensorrt_edge/tensors.py": "from torch import nn\n",
    "harness/__init__.py": "",
    "harness/_util/names.py": "import difflib\n",
    "harness/ledger/trie.py": "import msgspec\n",
    "harness/ledger/loop.py": "def f():\n    from harness.ledger import ledger\n",
    "harness/ledger/ledger.py": "from harness.ledger import trie\nfrom harness._util import names\n",
    "harness/checkers/leak.py": "from harness.ledger.ledger import Ledger\nfrom harness.checkers import protocol\n",
    "harness/engines/reference.py": "from reference_impl.vllm import pool\n",
    "harness/policies/vllm/engine.py": "from harness.engines import reference\n",
    "harness/policies/lmcache/engine.py": "from harness.policies.vllm import engine\n",
    "harness/cli/run.py": "from harness.checkers import leak\n\n\ndef f():\n    from harness.ledger import trie\n",
    "suites/fuzz/test_fuzz.py": "import pytest\nfrom harness.ledger.ledger import Ledger\nimport reference_impl.vllm\n",
    "suites/support/stub.py": "from suites.support import words\n",
    "suites/score/test_run.py": "from suites.support.stub import Stub\nfrom ..support import words\n",
    "ci/gate.py": "from harness.ledger import ledger\n",
}

VIOLATIONS = {
    "harness imports suites": ("harness/cli/a.py", "import suites.fuzz\n", 1),
    "harness imports ci": ("harness/cli/a.py", "import json\nfrom ci import gate\n", 2),
    "suites import ci": ("suites/fuzz/test_a.py", "from ci import gate\n", 1),
    "a test imports another": ("suites/fuzz/test_a.py", "import suites.support\nfrom suites.fuzz.test_b import run\n", 2),
    "a test imports its neighbour by a relative path": ("suites/fuzz/test_a.py", "from .stub import Stub\n", 1),
    "support imports a test": ("suites/support/stub.py", "from suites.fuzz import test_fuzz\n", 1),
    "ci imports suites": ("ci/gate.py", "import suites\n", 1),
    "reference_impl imports harness": ("reference_impl/vllm/pool.py", "from harness._util.errors import UsageError\n", 1),
    "a policy imports another policy": ("reference_impl/vllm/pool.py", "import reference_impl.lmcache.lookup\n", 1),
    "a policy imports another by a relative path": ("reference_impl/vllm/pool.py", "from ..lmcache import lookup\n", 1),
    "a policy imports what builds on it": ("reference_impl/vllm/pool.py", "import reference_impl.vllm_extended.tier\n", 1),
    "a policy imports one that it does not build on": ("reference_impl/lmcache/l1.py", "import reference_impl.vllm.spec\n", 1),
    "a policy imports a package": ("reference_impl/vllm/pool.py", "import json\nimport msgspec\n", 2),
    "a policy imports torch outside tensors.py": ("reference_impl/vllm/pool.py", "import torch\n", 1),
    "primitives import a policy": ("reference_impl/primitives/ids.py", "from reference_impl.vllm import spec\n", 1),
    "the ledger imports a policy": ("harness/ledger/ledger.py", "from reference_impl.primitives import ids\n", 1),
    "the ledger imports an engine": ("harness/ledger/ledger.py", "from harness.engines import protocol\n", 1),
    "a checker imports an engine by its package": ("harness/checkers/leak.py", "from harness import engines\n", 1),
    "a checker imports a mutant": ("harness/checkers/leak.py", "def f():\n    import harness.mutants.leak\n", 2),
    "the ledger reaches a policy at one remove": ("harness/_util/names.py", "\n\nfrom reference_impl.vllm import pool\n", 3),
    "the ledger reaches a policy through its package": ("harness/__init__.py", "import harness.engines\n", 1),
    "a file lies outside the rooms": ("harness/loose.py", "", 1),
    "a room is not in the flow": ("harness/attic/old.py", "", 1),
    "an import runs against the flow": ("harness/trace/shrink.py", "import json\nfrom harness.run import execute\n", 2),
    "an import in a function runs against the flow": ("harness/run/a.py", "def f():\n    from harness.cli import run\n", 2),
    "somebody imports a policy": ("harness/cli/plan.py", "from harness.policies.vllm import engine\n", 1),
    "a policy imports another that it does not build on": (
        "harness/policies/vllm/engine.py",
        "import re\nfrom harness.policies.furiosa import engine\n",
        2,
    ),
    "two files import each other": ("harness/ledger/ledger.py", "import re\nfrom harness.ledger import loop\n", 2),
    "a function has 71 lines": ("harness/cli/long.py", "x = 1\n\n\ndef f():\n" + "    x = 1\n" * 70, 4),
    "a file has 701 lines": ("harness/cli/long.py", "x = 1\n" * 701, 701),
    "a file of a policy has 301 lines": ("reference_impl/vllm/long.py", "x = 1\n" * 301, 301),
}


def _lint(root: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, str(ROOT / "ci" / "lint_imports.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_tree_that_keeps_every_rule_passes(tmp_path: Path) -> None:
    """Positive control: each permitted direction occurs, and nothing is reported."""
    result = _lint(tmp_path, CLEAN)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_a_violation_is_reported_where_it_stands(tmp_path: Path, rule: str) -> None:
    """One file is exchanged for one that breaks one rule: exactly that line is named."""
    path, text, line = VIOLATIONS[rule]
    result = _lint(tmp_path, CLEAN | {path: text})
    assert result.returncode == 1
    assert {found.split(": ")[0] for found in result.stdout.splitlines()} == {f"{path}:{line}"}, result.stdout


def test_lengths_at_the_limit_pass(tmp_path: Path) -> None:
    """70 lines of function and 700 lines of file are still allowed."""
    function = "def f():\n" + "    x = 1\n" * 69
    result = _lint(tmp_path, CLEAN | {"harness/cli/long.py": function + "x = 1\n" * 630})
    assert (result.returncode, result.stdout) == (0, "")


def test_the_finding_names_who_depends_on_the_file(tmp_path: Path) -> None:
    """A helper of the ledger is judged as the ledger is, and the message says for whose sake."""
    result = _lint(tmp_path, CLEAN | {"harness/_util/names.py": "import reference_impl.vllm\n"})
    assert "and harness.ledger.ledger depends on this file" in result.stdout
