"""What pyproject.toml declares is what the code imports: nothing more, nothing less."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {
    *("cachewitness", "cachewitness_reference", "cachewitness_faults", "cachewitness_training"),
    *("suites", "ci", "benchmarks"),
}
IMPORTED_AS = {
    "ai-dynamo-runtime": "dynamo",
    "pyzmq": "zmq",
    "fla-core": "fla",
    "pyyaml": "yaml",
    "pytest-xdist": "xdist",
    "pytest-cov": "pytest_cov",
    "pre-commit": "pre_commit",
}
"""Distributions whose import name is not their own with `_` for `-`."""
TOOLS = {
    "pytest-xdist": "--numprocesses",
    "pytest-cov": "--cov",
    "ruff": "-m ruff",
    "mypy": "-m mypy",
    "codespell": "codespell_lib",
    "vulture": "-m vulture",
    "towncrier": "-m towncrier",
    "pre-commit": "pre-commit install",
}
"""Distributions that are run rather than imported, and the words that show where."""


def declared(extra: str = "") -> set[str]:
    """Return the names of the distributions that an extra asks for, or the package itself."""
    asked = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    names = {re.split(r"[\[<>=~! ]", text, maxsplit=1)[0] for text in asked}
    return names - {PROJECT["name"]}


def imported(files: Mapping[Path, str]) -> set[str]:
    """Return the top-level packages that files import, at any depth, that are neither Python's
    own nor ours.
    """
    found = set()
    for path, text in files.items():
        for node in ast.walk(ast.parse(text, str(path))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).split(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "importlib.import_module",
                "pytest.importorskip",
            ):
                name = node.args[0]
                found |= {name.value.split(".")[0]} if isinstance(name, ast.Constant) else set()
    return found - set(sys.stdlib_module_names) - OURS


def below(*rooms: str) -> dict[Path, str]:
    """Return the source files of rooms."""
    return {
        path: path.read_text(encoding="utf-8")
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
    }


@cache
def product() -> set[str]:
    """Return what users install imports."""
    return imported(below("harness", "reference_impl"))


def as_imports(distributions: Iterable[str]) -> set[str]:
    """Return the names under which distributions are imported."""
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in distributions}


BY_MODULE = {"vllm", "lmcache"}
"""Engines under test: their adapters import them module by module, under names that are put
together."""
EXTRAS = {name for name in PROJECT["optional-dependencies"] if not name.startswith("dev")}


def test_whatever_users_install_is_imported() -> None:
    """An import that waits for the extra to be there counts; a package that only another one
    needs is that one's to ask for.
    """
    for extra in ("", *sorted(EXTRAS)):
        assert as_imports(declared(extra)) - BY_MODULE <= product(), extra


def test_the_extra_vllm_is_imported_by_name() -> None:
    """Its modules move between releases, so their names are joined before they are imported: no
    import statement has them.
    """
    text = "".join(below("harness/cachewitness/systems/vllm").values())
    assert declared("vllm") == {"vllm"} and "import_module(" in text and '"vllm' in text


def test_whatever_is_imported_is_declared() -> None:
    """Also what another declared package would have brought anyway: it may stop to."""
    asked = set().union(*(declared(extra) for extra in ("", *EXTRAS)))
    assert as_imports(asked) >= product()


def test_whatever_developers_install_is_imported_or_run() -> None:
    """Tools are looked for where they are called; the tests' own imports may wait for an extra."""
    files = [*(ROOT / "ci").glob("*.sh"), ROOT / "CONTRIBUTING.md"]
    scripts = "".join(path.read_text(encoding="utf-8") for path in files)
    theirs = imported(below("suites", "benchmarks"))
    for extra in set(PROJECT["optional-dependencies"]) - EXTRAS:
        for name in declared(extra):
            assert as_imports([name]) <= theirs or TOOLS.get(name, "\0") in scripts, (
                f"{extra}: {name}"
            )


def test_imports_are_seen_wherever_they_stand() -> None:
    """The checks above are able to fail: an import in a function, by a name below the top, and
    by a call.
    """
    code = (
        "import os, cachewitness.cli\ndef f():\n    from torch.nn import Linear\n"
        "    return importlib.import_module('yaml.x')\n"
    )
    assert imported({Path("a.py"): code}) == {"torch", "yaml"}
