"""Write the pages of docs/ that follow from the code alone: command line, public API, policies,
anomalies.

    python -m benchmarks.pages

The other generated pages need measurements and are written by the commands that they name. A test
compares the pages written here with what this module renders.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator

import click

import cachewitness
from cachewitness._util import data, files, pages
from cachewitness.cli import cli
from cachewitness.engines import policy as policies
from cachewitness.workloads import anomaly_examples


def main() -> int:
    """Write every page and return the exit code."""
    for name, text in rendered().items():
        files.write(pages.folder("reference") / f"{name}.md", [text.encode()])
        print(f"docs/reference/{name}.md")
    return 0


def rendered() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {
        "anomalies": anomaly_examples.document(anomaly_examples.load()),
        "api": public_names(),
        "cli": command_line(),
        "policies": policy_tables(),
    }


def public_names() -> str:
    """Return docs/reference/api.md: every public name with its own docstring."""
    groups = (inspect.getdoc(cachewitness) or "").partition("\n\n")[2].rpartition("\n\n")[0]
    names = sorted(
        {*cachewitness.__all__} - {"__version__"}, key=lambda name: groups.index(f"`{name}`")
    )
    named = {name: getattr(cachewitness, name) for name in names}
    functions = {
        name: value for name, value in named.items() if inspect.isfunction(value) and value.__doc__
    }
    return pages.render(
        "api",
        groups=groups,
        functions={
            name: (_signature(name, value), inspect.getdoc(value))
            for name, value in functions.items()
        },
        others={name: documented(name) for name in named if name not in functions},
    )


def documented(name: str) -> str:
    """Return what is written of a public name that is no function: the docstring of a class, or the
    text under an assignment; empty if there is none.
    """
    value = getattr(cachewitness, name)
    if inspect.isclass(value):
        return inspect.getdoc(value) or ""
    imports = ast.walk(ast.parse(inspect.getsource(cachewitness)))
    module, attribute = next(
        (statement.module or "", alias.name)
        for statement in imports
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if name in (alias.asname, alias.name)
    )
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for statement, after in itertools.pairwise(body):
        is_it = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == attribute
        if is_it and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return inspect.cleandoc(str(after.value.value))
    return ""


def _signature(name: str, function: Callable[..., object]) -> str:
    """Return the parameters of a function, a line each, as they are written in its source."""
    parameters = inspect.signature(function).parameters.values()
    star = next(
        (index for index, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), None
    )
    lines = [
        f"{one.name}: {one.annotation}"
        + ("" if one.default is one.empty else f" = {one.default!r}")
        for one in parameters
    ]
    if star is not None:
        lines.insert(star, "*")
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + ")"


def command_line() -> str:
    """Return docs/reference/cli.md: the options of every command are those of its `--help`."""
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    options = {
        name: [_option(option) for option in command.params if isinstance(option, click.Option)]
        for name, command in commands.items()
        if command is not None
    }
    return pages.render("cli", options=options)


def _option(option: click.Option) -> list[str]:
    """Return the row of an option: how it is written, and what it means with its default."""
    if option.is_flag:
        value = ""
    elif isinstance(option.type, click.Choice):
        value = " " + "|".join(option.type.choices)
    else:
        value = f" {option.metavar or 'N'}"
    default = f" (default: `{option.default}`)" if option.show_default else ""
    spelt = f"`{option.opts[0]}{value}`".replace("|", "\\|")
    return [spelt, f"{(option.help or '').rstrip('.')}{default}"]


def policy_tables() -> str:
    """Return docs/reference/policies.md: what each policy of this repository says of itself."""
    own = data.fixtures().parent / "reference_impl" / "cachewitness_reference"
    kinds = [policies.get(name) for name in policies.names() if (own / name).is_dir()]
    axes = [
        [f"**{axis}**: {meaning}", *(kind.axes[axis] for kind in kinds)]
        for axis, meaning in policies.AXES.items()
    ]
    return pages.render(
        "policies",
        policies=[list(_row(kind)) for kind in kinds],
        names=[f"`{kind.name}`" for kind in kinds],
        axes=axes,
        not_applicable=[
            [f"`{kind.name}`", name, why]
            for kind in kinds
            for name, why in kind.not_applicable.items()
        ],
    )


def _row(kind: policies.PolicyKind) -> Iterator[str]:
    yield f"[`{kind.name}`](../../reference_impl/cachewitness_reference/{kind.name}/__init__.py)"
    yield kind.summary
    yield f"<{kind.source}>"
    yield kind.pinned[:10]
    yield " … ".join(dict.fromkeys((kind.releases[0], kind.releases[-1])))
    yield ", ".join(kind.levels)
    yield f"{sum(rule.implemented for rule in kind.rules)} of {len(kind.rules)}"


if __name__ == "__main__":
    sys.exit(main())
