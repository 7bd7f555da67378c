"""Check which way imports point, and how long files and functions are.

Why a lint and not a habit: the ledger and the checkers are worth something only while they know no policy, and a policy
can be read on its own only while it leans on no other one. Both break silently, by one convenient import.

    suites -> harness -> reference_impl      nothing imports suites or ci
    reference_impl.<system>                  the standard library, reference_impl.primitives and itself
    toy_model/*                              torch and safetensors as well
    tensors.py                               torch as well
    harness.ghost, harness.checkers          nothing of reference_impl, harness.engines, harness.mutants, at any remove

Usage: python ci/lint_imports.py [ROOT]. Prints `file:line: message` for each finding; exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOMS = ("reference_impl", "harness", "suites", "ci", "benchmarks")
FILE_LINES_MAX = 700
SPECIFICATION_LINES_MAX = 300
FUNCTION_LINES_MAX = 70

# What a room never imports.
CLOSED = {
    "reference_impl": ("harness", "suites", "ci"),
    "harness": ("suites", "ci"),
    "suites": ("ci",),
    "ci": ("suites",),
    "benchmarks": ("suites", "ci"),
}
GUARDED = ("harness.ghost", "harness.checkers")
POLICY = ("reference_impl", "harness.engines", "harness.mutants")


class Import(NamedTuple):
    """One imported name: `module` is as precise as the statement allows (`from a import b` counts as a.b)."""

    line: int
    module: str


class Module(NamedTuple):
    """One source file: `name` is dotted, `path` relative to the root."""

    name: str
    path: Path
    tree: ast.Module
    lines: int
    imports: list[Import]


def main(argv: list[str]) -> int:
    """Check the tree below ROOT (this repository unless named) and return the exit code."""
    root = Path(argv[0]) if argv else Path(__file__).resolve().parent.parent
    modules = {module.name: module for module in _modules(root)}
    findings = [found for module in modules.values() for found in _check(module)]
    findings += _check_guarded(modules)
    for path, line, message in sorted(set(findings)):
        print(f"{path}:{line}: {message}")
    return 1 if findings else 0


def _modules(root: Path) -> Iterator[Module]:
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            relative = path.relative_to(root)
            parts = relative.with_suffix("").parts
            package = parts[:-1]
            name = ".".join(package if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text, filename=str(path))
            yield Module(name, relative, tree, len(text.splitlines()), list(_imports(tree, package)))


def _imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(node.lineno, f"{stem}.{alias.name}")


def _check(module: Module) -> Iterator[tuple[Path, int, str]]:
    room = module.name.split(".")[0]
    for line, name in module.imports:
        for closed in CLOSED[room]:
            if _within(name, closed):
                yield module.path, line, f"{room} imports {closed}; imports point suites -> harness -> reference_impl"
        if room == "reference_impl" and not _open_to_policy(module, name):
            yield module.path, line, f"imports {name}; a policy imports the standard library, primitives and itself"
    most = SPECIFICATION_LINES_MAX if room == "reference_impl" else FILE_LINES_MAX
    if module.lines > most:
        yield module.path, most + 1, f"{module.lines} lines; a file of {room} has at most {most}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                message = f"{node.name} has {length} lines; a function has at most {FUNCTION_LINES_MAX}"
                yield module.path, node.lineno, message


def _open_to_policy(module: Module, name: str) -> bool:
    """Return whether a file of reference_impl may import `name`; rooms that are closed to all of it are judged elsewhere."""
    top = name.split(".")[0]
    if top in sys.stdlib_module_names or top in CLOSED["reference_impl"]:
        return True
    system = module.path.parts[1]
    if top in ("torch", "safetensors"):
        return system == "toy_model" or (top == "torch" and module.path.name == "tensors.py")
    return any(_within(name, f"reference_impl.{own}") for own in ("primitives", system))


def _check_guarded(modules: dict[str, Module]) -> list[tuple[Path, int, str]]:
    """Follow the imports of the ledger and of the checkers through the harness to anything of a policy."""
    findings = []
    waiting = [(name, name) for name in modules if any(_within(name, guarded) for guarded in GUARDED)]
    seen = {name for name, _ in waiting}
    while waiting:
        name, origin = waiting.pop()
        module = modules[name]
        for line, imported in module.imports:
            if any(_within(imported, policy) for policy in POLICY):
                through = "" if name == origin else f", and {origin} depends on this file"
                findings.append((module.path, line, f"imports {imported}{through}; the ledger and checkers know no policy"))
                continue
            steps = imported.split(".")
            for target in (".".join(steps[:depth]) for depth in range(1, len(steps) + 1)):
                if target in modules and target not in seen:
                    seen.add(target)
                    waiting.append((target, origin))
    return findings


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
