"""Check which way imports point, and how long files and functions are.

Why a lint and not a habit: the ledger and the checkers are worth something only while they know no policy, a policy can be
read on its own only while it leans on no other one, and the folders of `harness` show the flow only while nothing runs against
it. All of that breaks silently, by one convenient import.

    suites -> harness -> reference_impl      nothing imports suites or ci
    suites.support                           the only part of suites that test modules import
    reference_impl.<system>                  the standard library, reference_impl.primitives and itself (see `BUILDS_ON`)
    toy_model/*                              torch and safetensors as well
    toy_model/triton_kernels/*               Triton as well
    tensors.py, sub_managers.py              torch as well
    harness.<room>                           rooms in front of it in `FLOW`, and itself
    harness.policies.<policy>                loaded by entry point, imported by nobody else (see `BUILDS_ON`)
    harness.ledger, harness.checkers         nothing of reference_impl, harness.engines, harness.mutants, harness.policies,
                                             at any remove

No file of `harness` lies outside a room, and no files import each other in a circle.

Usage: python ci/lint_imports.py [ROOT]. Prints `file:line: message` for each finding; exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOMS = ("reference_impl", "harness", "suites", "ci", "benchmarks")
FILE_LINES_MAX = 700
SPECIFICATION_LINES_MAX = 300
FUNCTION_LINES_MAX = 70

BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a statement that hold further statements."""

# What a room never imports.
CLOSED = {
    "reference_impl": ("harness", "suites", "ci"),
    "harness": ("suites", "ci"),
    "suites": ("ci",),
    "ci": ("suites",),
    "benchmarks": ("suites", "ci"),
}

FLOW = (
    "_util",
    "trace",
    "history",
    "engines",
    "ledger",
    "checkers",
    "verdict",
    "run",
    "cold",
    "score",
    "vectors",
    "plan",
    "fuzz",
    "mutants",
    "fleet",
    "policies",
    "picture",
    "cli",
    "api",
)
"""The rooms of harness: whatever is in one imports only what is in front of it. docs/architecture.md draws the same order."""

BUILDS_ON = {
    "harness.policies.lmcache": "harness.policies.vllm",
    "reference_impl.vllm_extended": "reference_impl.vllm",
}
"""The packages that build on another of their kind: LMCache's store is a connector behind vLLM's scheduler, and what we add to
vLLM for testing is vLLM's policy with more."""

SUPPORT = "suites.support"
"""What test modules share. They import nothing else of suites."""

GUARDED = ("harness.ledger", "harness.checkers")
POLICY = ("reference_impl", "harness.engines", "harness.mutants", "harness.policies")


class Import(NamedTuple):
    """One imported name: `module` is as precise as the statement allows (`from a import b` counts as a.b)."""

    line: int
    module: str


class Module(NamedTuple):
    """One source file: `name` is dotted, `path` relative to the root."""

    name: str
    path: Path
    lines: int
    statements: list[ast.AST]
    imports: list[Import]


def main(argv: list[str]) -> int:
    """Check the tree below ROOT (this repository unless named) and return the exit code."""
    root = Path(argv[0]) if argv else Path(__file__).resolve().parent.parent
    modules = {module.name: module for module in _modules(root)}
    findings = [found for module in modules.values() for found in _check(module)]
    findings += _check_guarded(modules)
    findings += _check_flow(modules)
    findings += _check_circles(modules)
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
            statements = list(_statements(tree))
            yield Module(name, relative, len(text.splitlines()), statements, list(_imports(statements, package)))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Go through the statements at every depth. No expression holds one, so expressions are passed over."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in BODIES:
            waiting += getattr(node, field, ())


def _imports(statements: Iterable[ast.AST], package: tuple[str, ...]) -> Iterator[Import]:
    for node in statements:
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
        if room == "suites" and _within(name, "suites") and not _within(name, SUPPORT):
            yield module.path, line, f"imports {name}; test modules share {SUPPORT} and never import one another"
        if room == "reference_impl" and not _open_to_policy(module, name):
            yield module.path, line, f"imports {name}; a policy imports the standard library, primitives and itself"
    most = SPECIFICATION_LINES_MAX if room == "reference_impl" else FILE_LINES_MAX
    if module.lines > most:
        yield module.path, most + 1, f"{module.lines} lines; a file of {room} has at most {most}"
    for node in module.statements:
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
    if top == "triton":
        return "triton_kernels" in module.path.parts
    if top in ("torch", "safetensors"):
        return system == "toy_model" or (top == "torch" and module.path.name in ("tensors.py", "sub_managers.py"))
    own = f"reference_impl.{system}"
    return any(_within(name, package) for package in ("reference_impl.primitives", own, BUILDS_ON.get(own, own)))


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


def _check_flow(modules: dict[str, Module]) -> Iterator[tuple[Path, int, str]]:
    """Find imports that run against the flow, files outside the rooms, and policies that somebody imports."""
    rank = {f"harness.{room}": place for place, room in enumerate(FLOW)}
    for module in modules.values():
        if not _within(module.name, "harness") or module.name == "harness":
            continue
        room = ".".join(module.name.split(".")[:2])
        if room not in rank or module.path.parts[1].endswith(".py"):
            yield module.path, 1, f"lies outside the rooms of harness; they are {', '.join(FLOW)}"
            continue
        for line, name in module.imports:
            other = ".".join(name.split(".")[:2])
            if rank.get(other, -1) > rank[room]:
                yield module.path, line, f"imports {name}; {room} comes before {other} in the flow"
            own, its = (".".join(full.split(".")[:3]) for full in (module.name, name))
            if _within(its, "harness.policies") and its not in ("harness.policies", own, BUILDS_ON.get(own)):
                yield module.path, line, f"imports {name}; a policy is loaded by its entry point"


def _check_circles(modules: dict[str, Module]) -> Iterator[tuple[Path, int, str]]:
    """Find files that import each other, at any remove; an import inside a function counts as well."""
    graph = {module.name: _imported(module, modules) for module in modules.values()}
    for circle in _circles(graph):
        first = modules[min(circle)]
        line = min(line for target, line in graph[first.name].items() if target in circle)
        yield first.path, line, f"{', '.join(sorted(circle))} import each other in a circle"


def _imported(module: Module, modules: dict[str, Module]) -> dict[str, int]:
    """Return the files that a file imports, with the line of the first import of each."""
    found: dict[str, int] = {}
    for line, name in module.imports:
        steps = name.split(".")
        known = (".".join(steps[:depth]) for depth in range(len(steps), 0, -1))
        target = next((prefix for prefix in known if prefix in modules), None)
        if target is not None and target != module.name:
            found.setdefault(target, line)
    return found


def _circles(graph: dict[str, dict[str, int]]) -> Iterator[set[str]]:
    """Yield the strongly connected components of more than one file (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    yield from found


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
