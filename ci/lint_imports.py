"""Check which way imports point, and how long files and functions are.

Why a lint and not a habit: the judge is worth something only while it knows nothing of what it
judges, a policy can be read on its own only while it leans on no other one, and the folders show
the flow only while nothing runs against it. All of that breaks silently, by one convenient import.

    suites -> cachewitness -> cachewitness_reference      nothing imports suites or ci
    suites.support                       the only part of suites that test modules import
    cachewitness_reference.<system>      the standard library, cachewitness_reference.primitives and itself (see `BUILDS_ON`)
    toy_model/*                          torch and safetensors as well
    toy_model/triton_kernels/*           Triton as well
    tensors.py, sub_managers.py          torch as well
    cachewitness._util                   itself, of the package
    cachewitness.core                    itself and cachewitness._util: the judge
    cachewitness.<room>                  rooms in front of it in `FLOW`, and itself
    cachewitness.systems.<system>        loaded by entry point, imported by nobody else (see `BUILDS_ON`)
    cachewitness_faults.<system>         cachewitness, with the one system; loaded by entry point as well
    cachewitness_training                cachewitness; nothing imports it but tests

No statement assigns unrelated things at once (`a, b = f(), g()`): an exchange of names and a list of
literals are no such statement.
No variable, argument, function or class is called `told` or `said` (see `VAGUE`).
A public name that is imported from `cachewitness` counts as imported from where it is defined.
No file of the package lies outside a room, but for doors: modules that only import names and list
them (see `DOORS`). No module imports another's private names, and no files
import each other in a circle.

Usage: python ci/lint_imports.py [ROOT]. Prints `file:line: message` for each finding; exits 1 if
there is one.
"""  # noqa: E501

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SOURCES = {
    "cachewitness_reference": "reference_impl/cachewitness_reference",
    "cachewitness": "harness/cachewitness",
    "cachewitness_faults": "harness/cachewitness_faults",
    "cachewitness_training": "harness/cachewitness_training",
    "suites": "suites",
    "ci": "ci",
    "benchmarks": "benchmarks",
}
"""Where the top-level packages lie."""
FILE_LINES_MAX = 950
SPECIFICATION_LINES_MAX = 380
FUNCTION_LINES_MAX = 100
DATA = ("cases.py", "lookup_cases.py")
"""Files that are lists of questions: no limit."""

BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a statement that hold further statements."""

VAGUE = ("told", "said")
"""Names that do not say what a value is: all that a function returns or prints is told. A name says
whether it is a message, a line, a reason, an answer, events, a report, ..."""

# What a room never imports.
BESIDE = ("cachewitness_faults", "cachewitness_training")
"""What a checkout has beside the product, and who installs the product does not."""
CLOSED = {
    "cachewitness_reference": ("cachewitness", *BESIDE, "suites", "ci"),
    "cachewitness": (*BESIDE, "suites", "ci"),
    "cachewitness_faults": ("cachewitness_training", "suites", "ci"),
    "cachewitness_training": ("cachewitness_faults", "suites", "ci"),
    "suites": ("ci",),
    "ci": ("suites",),
    "benchmarks": ("suites", "ci"),
}

FLOW = (
    "_util",
    "core",
    "workloads",
    "engines",
    "report",
    "toy",
    "parity",
    "sessions",
    "vectors",
    "plan",
    "systems",
    "cli",
    "api",
)
"""The rooms: whatever is in one imports only what is in front of it. docs/architecture.md draws the
same order."""

DOORS = ("machines", "strategies")
"""Modules of the package that only name what is public in a room, since it needs an extra."""

ALONE = {"_util": ("_util",), "core": ("_util", "core")}
"""Rooms that import nothing else of the package, and no reference: the judge, and what all share.
"""

PRODUCT = ("cachewitness", *BESIDE)
"""Packages that use nothing but public names of each other."""

BUILDS_ON = {
    "cachewitness.systems.lmcache": ("cachewitness.systems.vllm",),
    "cachewitness.systems.vllm": ("cachewitness.systems.lmcache",),
    "cachewitness_faults.lmcache": ("cachewitness.systems.vllm",),
    "cachewitness_faults.vllm": ("cachewitness.systems.lmcache", "cachewitness_faults.lmcache"),
    "cachewitness_reference.vllm_extended": ("cachewitness_reference.vllm",),
}
"""The packages that build on another of their kind. LMCache is a connector behind vLLM's scheduler,
and vLLM's option `connector=lmcache` opens it; what we add to vLLM for testing is vLLM's policy
with more."""

SUPPORT = "suites.support"
"""What test modules share. They import nothing else of suites."""


class Import(NamedTuple):
    """One imported name: `module` is as precise as the statement allows (`from a import b`
    counts as a.b).
    """

    line: int
    module: str


class Module(NamedTuple):
    """One source file: `name` is dotted, `path` relative to the root."""

    name: str
    path: Path
    lines: int
    statements: list[ast.AST]
    imports: list[Import]
    vague: list[tuple[int, str]]
    """(line, name) of what is called by one of `VAGUE`."""


def main(argv: list[str]) -> int:
    """Check the tree below ROOT (this repository unless named) and return the exit code."""
    root = Path(argv[0]) if argv else Path(__file__).resolve().parent.parent
    public = _public_names(root)
    modules = {module.name: _resolved(module, public) for module in _modules(root)}
    findings = [found for module in modules.values() for found in _check(module)]
    findings += _check_flow(modules)
    findings += _check_circles(modules)
    for path, line, message in sorted(set(findings)):
        print(f"{path}:{line}: {message}")
    return 1 if findings else 0


def _public_names(root: Path) -> dict[str, str]:
    """Return where each public name of the package is defined: the root of the package imports them
    for type checkers alone, and looks them up when they are asked for.
    """
    path = root / SOURCES["cachewitness"] / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return {
        f"cachewitness.{alias.asname or alias.name}": f"{statement.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def _resolved(module: Module, public: dict[str, str]) -> Module:
    """Return a module whose imports of public names count as imports of where these are defined."""
    imports = [Import(line, public.get(name, name)) for line, name in module.imports]
    return module._replace(imports=imports)


def _modules(root: Path) -> Iterator[Module]:
    for top, source in SOURCES.items():
        for path in sorted((root / source).rglob("*.py")):
            parts = (top, *path.relative_to(root / source).with_suffix("").parts)
            package = parts[:-1]
            name = ".".join(package if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text, filename=str(path))
            statements = list(_statements(tree, typed=name != "cachewitness"))
            yield Module(
                name,
                path.relative_to(root),
                len(text.splitlines()),
                statements,
                list(_imports(statements, package)),
                # Walking a tree takes longer than looking for a word, and few files have one.
                list(_vague_names(tree)) if any(word in text.lower() for word in VAGUE) else [],
            )


def _statements(tree: ast.Module, *, typed: bool) -> Iterator[ast.AST]:
    """Go through the statements at every depth; those for type checkers alone only if `typed`.
    Expressions hold none.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not typed and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
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


def _vague_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find what a file defines under a name of `VAGUE`, private and constant ones included."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                pass
            case _:
                continue
        if name.strip("_").lower() in VAGUE:
            yield node.lineno, name


def _check(module: Module) -> Iterator[tuple[Path, int, str]]:
    top = module.name.split(".")[0]
    for line, name in module.imports:
        for closed in CLOSED[top]:
            if _within(name, closed):
                yield (
                    module.path,
                    line,
                    f"{top} imports {closed}; imports point suites -> cachewitness -> reference",
                )
        if top == "suites" and _within(name, "suites") and not _within(name, SUPPORT):
            yield (
                module.path,
                line,
                f"imports {name}; test modules share {SUPPORT} and never import one another",
            )
        if top == "cachewitness_reference" and not _open_to_policy(module, name):
            yield (
                module.path,
                line,
                f"imports {name}; a policy imports the standard library, primitives and itself",
            )
        if top == "cachewitness_faults" and not _open_to_faults(module, name):
            yield (
                module.path,
                line,
                f"imports {name}; the faults of a system know no other system",
            )
        if top in PRODUCT and name.startswith("cachewitness") and _private(name):
            yield module.path, line, f"imports {name}; a module uses only public names of another"
    for line, name in module.vague:
        yield module.path, line, f"{name} does not say what it is; name what the value holds"
    if module.path.name in DATA:
        return
    most = SPECIFICATION_LINES_MAX if top == "cachewitness_reference" else FILE_LINES_MAX
    if module.lines > most:
        yield module.path, most + 1, f"{module.lines} lines; a file of {top} has at most {most}"
    for node in module.statements:
        if isinstance(node, ast.Assign) and _unrelated(node):
            yield (
                module.path,
                node.lineno,
                "assigns unrelated things at once; write a line for each",
            )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                message = (
                    f"{node.name} has {length} lines; a function has at most {FUNCTION_LINES_MAX}"
                )
                yield module.path, node.lineno, message


def _unrelated(node: ast.Assign) -> bool:
    """Whether a statement is `a, b = x, y` and neither exchanges names nor lists literals."""
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    if len(target.elts) != len(node.value.elts) or all(map(_literal, node.value.elts)):
        return False
    names = {ast.unparse(name) for name in target.elts}
    places = (ast.Name, ast.Attribute, ast.Subscript)
    values = (part for value in node.value.elts for part in ast.walk(value))
    return not any(isinstance(part, places) and ast.unparse(part) in names for part in values)


def _literal(value: ast.expr) -> bool:
    operand = value.operand if isinstance(value, ast.UnaryOp) else value
    return isinstance(operand, ast.Constant)


def _private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__") and last != "_util"


def _open_to_policy(module: Module, name: str) -> bool:
    """Return whether a reference may import `name`; packages that are closed to all of them are
    judged elsewhere.
    """
    top = name.split(".")[0]
    if top in sys.stdlib_module_names or top in CLOSED["cachewitness_reference"]:
        return True
    if top == "triton":
        return "triton_kernels" in module.path.parts
    own = ".".join(module.name.split(".")[:2])
    if top in ("torch", "safetensors"):
        in_toy = own == "cachewitness_reference.toy_model"
        return in_toy or (top == "torch" and module.path.name in ("tensors.py", "sub_managers.py"))
    return any(
        _within(name, package)
        for package in ("cachewitness_reference.primitives", own, *BUILDS_ON.get(own, ()))
    )


def _open_to_faults(module: Module, name: str) -> bool:
    """Return whether the faults of a system may import `name`: nothing of other systems."""
    own = ".".join(module.name.split(".")[:2])
    system = own.removeprefix("cachewitness_faults")
    its = (own, f"cachewitness.systems{system}", *BUILDS_ON.get(own, ()))
    closed = ("cachewitness_faults", "cachewitness.systems")
    return not any(_within(name, package) for package in closed) or any(
        _within(name, package) for package in its
    )


def _check_flow(modules: dict[str, Module]) -> Iterator[tuple[Path, int, str]]:
    """Find imports that run against the flow, files outside the rooms, and systems that somebody
    imports.
    """
    rank = {room: place for place, room in enumerate(FLOW)}
    for module in modules.values():
        if not _within(module.name, "cachewitness") or module.name in (
            "cachewitness",
            "cachewitness.__main__",
        ):
            continue
        room = module.name.split(".")[1]
        if room in DOORS and module.path.parts[2:] == (f"{room}.py",):
            yield from _check_door(module)
            continue
        if room not in rank or module.path.parts[2].endswith(".py"):
            yield (
                module.path,
                1,
                f"lies outside the rooms of cachewitness; they are {', '.join(FLOW)}",
            )
            continue
        for line, name in module.imports:
            if room in ALONE and not _open_to_alone(room, name):
                yield (
                    module.path,
                    line,
                    f"imports {name}; {room} imports {' and '.join(ALONE[room])} of the package",
                )
                continue
            other = (*name.split("."), "")[1]
            if _within(name, "cachewitness") and rank.get(other, -1) > rank[room]:
                yield module.path, line, f"imports {name}; {room} comes before {other} in the flow"
            own, its = (".".join(full.split(".")[:3]) for full in (module.name, name))
            if _within(its, "cachewitness.systems") and its not in (own, *BUILDS_ON.get(own, ())):
                yield module.path, line, f"imports {name}; a system is loaded by its entry point"


def _check_door(module: Module) -> Iterator[tuple[Path, int, str]]:
    """Find what a door has beside its docstring, its imports and `__all__`."""
    tree = module.statements[0]
    for node in tree.body if isinstance(tree, ast.Module) else ():
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if not (text or names or isinstance(node, ast.Import | ast.ImportFrom)):
            message = "a door of the package imports public names and defines nothing"
            yield module.path, node.lineno, message


def _open_to_alone(room: str, name: str) -> bool:
    """Return whether the judge, or what all share, may import `name`."""
    if _within(name, "cachewitness_reference"):
        return False
    return not _within(name, "cachewitness") or any(
        _within(name, f"cachewitness.{own}") for own in ALONE[room]
    )


def _check_circles(modules: dict[str, Module]) -> Iterator[tuple[Path, int, str]]:
    """Find files that import each other, at any remove; an import inside a function counts as
    well.
    """
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
