"""Every import rule and every length limit has a tree that breaks it, and the lint says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CLEAN = {
    "reference_impl/cachewitness_reference/__init__.py": '"""Policies."""\n',
    "reference_impl/cachewitness_reference/primitives/__init__.py": "import dataclasses\n",
    "reference_impl/cachewitness_reference/vllm/__init__.py": (
        "from cachewitness_reference.primitives import ids\nfrom . import pool\n"
    ),
    "reference_impl/cachewitness_reference/vllm/spec.py": "",
    "reference_impl/cachewitness_reference/vllm/pool.py": (
        "import re\nfrom cachewitness_reference.vllm import spec\nfrom ..primitives import ids\n"
    ),
    "reference_impl/cachewitness_reference/vllm_extended/tier.py": (
        "from cachewitness_reference.vllm import pool\n"
    ),
    "reference_impl/cachewitness_reference/toy_model/model.py": "import torch\n",
    "reference_impl/cachewitness_reference/tensorrt_edge/tensors.py": "from torch import nn\n",
    "harness/cachewitness/__init__.py": (
        "if TYPE_CHECKING:\n    from cachewitness.cli.run import run as run_suites\n"
        "    from cachewitness.engines.reference import pool as pool\n"
    ),
    "harness/cachewitness/machines.py": (
        '"""A door."""\n\nfrom cachewitness.cli.run import run\n\n__all__ = ["run"]\n'
    ),
    "harness/cachewitness/_util/names.py": (
        "import difflib\na, b = 1, 2\na, b = b, a\nx, y = min(a, b)\n"
    ),
    "harness/cachewitness/core/ledger/trie.py": "import msgspec\n",
    "harness/cachewitness/core/ledger/loop.py": (
        "def f():\n    from cachewitness.core.ledger import ledger\n"
    ),
    "harness/cachewitness/core/ledger/ledger.py": (
        "from cachewitness.core.ledger import trie\nfrom cachewitness._util import names\n"
    ),
    "harness/cachewitness/core/checkers/leak.py": (
        "from cachewitness.core.ledger.ledger import Ledger\n"
        "from cachewitness.core.checkers import protocol\n"
    ),
    "harness/cachewitness/engines/reference.py": "from cachewitness_reference.vllm import pool\n",
    "harness/cachewitness/systems/vllm/reference/engine.py": (
        "from cachewitness.engines import reference\n"
    ),
    "harness/cachewitness/systems/lmcache/reference/engine.py": (
        "from cachewitness import pool\nfrom cachewitness.systems.vllm.reference import engine\n"
    ),
    "harness/cachewitness_faults/vllm/reference/mutants/lookup.py": (
        "from cachewitness.engines.mutant import mutant\n"
        "from cachewitness.systems.vllm.reference import faults\n"
        "from cachewitness_faults.lmcache import connector_faults\n"
        "from cachewitness_reference.vllm import pool\n"
    ),
    "harness/cachewitness_training/loop.py": (
        "import torch\nfrom cachewitness._util import data\n"
        "from cachewitness_training import start\n"
    ),
    "harness/cachewitness/cli/run.py": (
        "from cachewitness.core.checkers import leak\n\n\ndef f():\n"
        "    from cachewitness.core.ledger import trie\n"
    ),
    "suites/sessions/fuzz/test_fuzz.py": (
        "import pytest\nfrom cachewitness.core.ledger.ledger import Ledger\n"
        "import cachewitness_reference.vllm\n"
    ),
    "suites/support/stub.py": "from suites.support import words\n",
    "suites/parity/scores/test_run.py": (
        "from suites.support.stub import Stub\nfrom ...support import words\n"
    ),
    "ci/gate.py": "from cachewitness.core.ledger import ledger\n",
}

VIOLATIONS = {
    "a door that defines something": (
        "harness/cachewitness/machines.py",
        "from cachewitness.cli.run import run\n\n\ndef f():\n    run()\n",
        4,
    ),
    "a door that nobody declared": ("harness/cachewitness/doors.py", "import json\n", 1),
    "a public name of a room behind": (
        "harness/cachewitness/engines/reference.py",
        "from cachewitness_reference.vllm import pool\nfrom cachewitness import run_suites\n",
        2,
    ),
    "harness imports suites": ("harness/cachewitness/cli/a.py", "import suites.fuzz\n", 1),
    "harness imports ci": (
        "harness/cachewitness/cli/a.py",
        "import json\nfrom ci import gate\n",
        2,
    ),
    "suites import ci": ("suites/sessions/fuzz/test_a.py", "from ci import gate\n", 1),
    "a test imports another": (
        "suites/sessions/fuzz/test_a.py",
        "import suites.support\nfrom suites.fuzz.test_b import run\n",
        2,
    ),
    "a test imports its neighbour by a relative path": (
        "suites/sessions/fuzz/test_a.py",
        "from .stub import Stub\n",
        1,
    ),
    "support imports a test": ("suites/support/stub.py", "from suites.fuzz import test_fuzz\n", 1),
    "ci imports suites": ("ci/gate.py", "import suites\n", 1),
    "reference_impl imports harness": (
        "reference_impl/cachewitness_reference/vllm/pool.py",
        "from cachewitness._util.errors import UsageError\n",
        1,
    ),
    "a policy imports another policy": (
        "reference_impl/cachewitness_reference/vllm/pool.py",
        "import cachewitness_reference.lmcache.lookup\n",
        1,
    ),
    "a policy imports another by a relative path": (
        "reference_impl/cachewitness_reference/vllm/pool.py",
        "from ..lmcache import lookup\n",
        1,
    ),
    "a policy imports what builds on it": (
        "reference_impl/cachewitness_reference/vllm/pool.py",
        "import cachewitness_reference.vllm_extended.tier\n",
        1,
    ),
    "a policy imports one that it does not build on": (
        "reference_impl/cachewitness_reference/lmcache/l1.py",
        "import cachewitness_reference.vllm.spec\n",
        1,
    ),
    "a policy imports a package": (
        "reference_impl/cachewitness_reference/vllm/pool.py",
        "import json\nimport msgspec\n",
        2,
    ),
    "a policy imports torch outside tensors.py": (
        "reference_impl/cachewitness_reference/vllm/pool.py",
        "import torch\n",
        1,
    ),
    "primitives import a policy": (
        "reference_impl/cachewitness_reference/primitives/ids.py",
        "from cachewitness_reference.vllm import spec\n",
        1,
    ),
    "the ledger imports a policy": (
        "harness/cachewitness/core/ledger/ledger.py",
        "from cachewitness_reference.primitives import ids\n",
        1,
    ),
    "the ledger imports an engine": (
        "harness/cachewitness/core/ledger/ledger.py",
        "from cachewitness.engines import protocol\n",
        1,
    ),
    "a checker imports an engine by its package": (
        "harness/cachewitness/core/checkers/leak.py",
        "from cachewitness import engines\n",
        1,
    ),
    "a checker imports a mutant": (
        "harness/cachewitness/core/checkers/leak.py",
        "def f():\n    import cachewitness.sessions.mutants.leak\n",
        2,
    ),
    "what all share imports a policy": (
        "harness/cachewitness/_util/names.py",
        "\n\nfrom cachewitness_reference.vllm import pool\n",
        3,
    ),
    "the judge imports what is asked": (
        "harness/cachewitness/core/worker.py",
        "import json\nfrom cachewitness.workloads import layouts\n",
        2,
    ),
    "what all share imports the judge": (
        "harness/cachewitness/_util/names.py",
        "from cachewitness.core import events\n",
        1,
    ),
    "a module imports the private name of another": (
        "harness/cachewitness/systems/vllm/kind.py",
        "from cachewitness.engines.driver import _guess\n",
        1,
    ),
    "the product imports a fault": (
        "harness/cachewitness/systems/vllm/kind.py",
        "import re\nfrom cachewitness_faults.vllm import faults\n",
        2,
    ),
    "the product imports the training": (
        "harness/cachewitness/toy/kind.py",
        "import cachewitness_training.loop\n",
        1,
    ),
    "a specification imports a fault": (
        "reference_impl/cachewitness_reference/vllm/pool.py",
        "import cachewitness_faults.vllm\n",
        1,
    ),
    "a fault imports another system": (
        "harness/cachewitness_faults/furiosa/reference/mutants.py",
        "import re\nfrom cachewitness.systems.vllm.reference import faults\n",
        2,
    ),
    "a fault imports another system's faults": (
        "harness/cachewitness_faults/sglang/faults.py",
        "from cachewitness_faults.vllm import faults\n",
        1,
    ),
    "a fault imports a private name": (
        "harness/cachewitness_faults/vllm/faults.py",
        "from cachewitness.engines.driver import _guess\n",
        1,
    ),
    "faults import tests": ("harness/cachewitness_faults/vllm/faults.py", "import suites\n", 1),
    "a file lies outside the rooms": ("harness/cachewitness/loose.py", "", 1),
    "a room is not in the flow": ("harness/cachewitness/attic/old.py", "", 1),
    "an import runs against the flow": (
        "harness/cachewitness/workloads/shrink.py",
        "import json\nfrom cachewitness.sessions.run import execute\n",
        2,
    ),
    "an import in a function runs against the flow": (
        "harness/cachewitness/sessions/run/a.py",
        "def f():\n    from cachewitness.cli import run\n",
        2,
    ),
    "somebody imports a policy": (
        "harness/cachewitness/cli/plan.py",
        "from cachewitness.systems.vllm.reference import engine\n",
        1,
    ),
    "a policy imports another that it does not build on": (
        "harness/cachewitness/systems/vllm/reference/engine.py",
        "import re\nfrom cachewitness.systems.furiosa.reference import engine\n",
        2,
    ),
    "two files import each other": (
        "harness/cachewitness/core/ledger/ledger.py",
        "import re\nfrom cachewitness.core.ledger import loop\n",
        2,
    ),
    "unrelated things are assigned at once": (
        "harness/cachewitness/cli/a.py",
        "x = 1\na, b = min(x, 2), max(x, 2)\n",
        2,
    ),
    "a variable has a name that says nothing of it": (
        "harness/cachewitness/cli/a.py",
        "said_before = untold = 1\ntold = min(said_before, untold)\n",
        2,
    ),
    "an argument has a name that says nothing of it": (
        "harness/cachewitness/cli/a.py",
        "def f(x):\n    return f(said=x)\n\n\ndef g(said):\n    return said\n",
        5,
    ),
    "a private function has a name that says nothing of it": (
        "harness/cachewitness/cli/a.py",
        "x = 1\n\n\nclass A:\n    def _told(self):\n        return 1\n",
        5,
    ),
    "a function has 101 lines": (
        "harness/cachewitness/cli/long.py",
        "x = 1\n\n\ndef f():\n" + "    x = 1\n" * 100,
        4,
    ),
    "a file has 951 lines": ("harness/cachewitness/cli/long.py", "x = 1\n" * 951, 951),
    "a file of a policy has 381 lines": (
        "reference_impl/cachewitness_reference/vllm/long.py",
        "x = 1\n" * 381,
        381,
    ),
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
    assert {found.split(": ")[0] for found in result.stdout.splitlines()} == {f"{path}:{line}"}, (
        result.stdout
    )


def test_lengths_at_the_limit_pass(tmp_path: Path) -> None:
    """100 lines of function and 950 lines of file are still allowed."""
    function = "def f():\n" + "    x = 1\n" * 69
    result = _lint(
        tmp_path, CLEAN | {"harness/cachewitness/cli/long.py": function + "x = 1\n" * 850}
    )
    assert (result.returncode, result.stdout) == (0, "")


def test_the_judge_knows_no_reference_through_what_all_share(tmp_path: Path) -> None:
    result = _lint(
        tmp_path,
        CLEAN | {"harness/cachewitness/_util/names.py": "import cachewitness_reference.vllm\n"},
    )
    assert "_util imports _util of the package" in result.stdout
