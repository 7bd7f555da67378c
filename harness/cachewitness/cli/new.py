"""`cachewitness new`: a folder to begin with."""

from __future__ import annotations

import importlib.util
import keyword
import re
from dataclasses import dataclass
from pathlib import Path

import click

from cachewitness._util import output
from cachewitness.cli.json_option import json_option
from cachewitness.cli.options import say_written

STARTER = Path(__file__).parent / "starter"
WORKFLOW = ".github/workflows/cache-gate.yml"
FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "README.md": "README.md.j2",
    "test_{module}.py": "tests.py.j2",
    WORKFLOW: "cache-gate.yml.j2",
}
"""What is written beside the engine itself, and from what."""


@dataclass(frozen=True)
class Shape:
    """A sample to begin with, `docs/samples/SHAPE_adapter.py`: its class that stands for the
    cache, the one that drives it, and what the cache is.
    """

    cache: str
    adapter: str
    what: str


SHAPES = {
    "paged": Shape("PagedCache", "PagedAdapter", "a small paged prefix cache"),
    "hybrid": Shape(
        "HybridCache", "HybridAdapter", "full attention and recurrent states in one pool of pages"
    ),
    "slots": Shape(
        "SlotCache", "SlotAdapter", "a few slots that keep what a request leaves at its end"
    ),
    "radix": Shape("RadixCache", "RadixAdapter", "a radix tree over places for one token each"),
}


@click.command()
@click.argument("what", type=click.Choice(["engine"]))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--name", default="", metavar="NAME", help="The engine's name; default: the folder's."
)
@click.option(
    "--shape",
    type=click.Choice([*SHAPES]),
    default="paged",
    show_default=True,
    help=(
        "What the cache is like: pages of a prefix (paged); attention and recurrent states by pages"
        " (hybrid); states kept where a request ends (slots); a tree of tokens (radix)."
    ),
)
@json_option("written")
def new(what: str, folder: Path, name: str, shape: str, as_json: bool) -> int:
    """Write a folder with an engine that works, its tests and a workflow: put your cache in its
    place.
    """
    from cachewitness._util import data, files
    from cachewitness._util.errors import UsageError
    from cachewitness.engines import origin

    name = name or folder.resolve().name
    module = name.replace("-", "_")
    if (
        not module.isidentifier()
        or keyword.iskeyword(module)
        or not (name.isascii() and name.islower())
    ):
        raise UsageError(
            f"new {what}: {name!r} is no name for a Python module; give one in small letters by"
            " --name"
        )
    if taken := _taken(name, module):
        raise UsageError(f"new {what}: {name!r} is {taken}; give another by --name")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"new {what}: {folder} is not empty; name a folder that does not exist yet"
        )
    adapter = (data.samples() / f"{shape}_adapter.py").read_text(encoding="utf-8")
    texts = {f"{module}.py": _named(adapter, shape, name)}
    names = {"name": name, "module": module, "shape": shape, "sample": SHAPES[shape]}
    names["source"] = origin.origin().elsewhere()
    names["unknown"] = names["source"] == origin.PLACEHOLDER
    for path, template in FILES.items():
        texts[path.format(module=module)] = _rendered(template, **names)
    for path, text in texts.items():
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"new {what}: {folder / path}: its folder cannot be made ({error.strerror})"
            ) from None
        files.write(folder / path, [text.encode()])
    after = f"cd {folder} && pip install -e . && cachewitness run --engine {name} && pytest"
    say_written([folder / path for path in texts], as_json=as_json, next=after)
    if not as_json:
        output.echo(f"next: {after}")
        if names["unknown"]:
            output.echo(f"before the workflow runs: fill in OWNER in {folder / WORKFLOW}")
    return 0


def _taken(name: str, module: str) -> str:
    """Return what has an engine's name already; empty if nothing has."""
    from cachewitness.engines import registry

    if name in registry.kinds():
        return "an engine that is there already"
    there = importlib.util.find_spec(module)
    return (
        f"a module that is there already ({there.origin}), which it would hide"
        if there and there.origin
        else ""
    )


def _named(adapter: str, shape: str, name: str) -> str:
    """Return a sample with another name, and as no sample."""
    adapter = re.sub(r'\A""".*', f'"""The engine {name} under cachewitness.', adapter)
    return adapter.replace('"a sample: ', '"').replace(f'"{shape}"', f'"{name}"')


def _rendered(template: str, **names: object) -> str:
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return environment.from_string((STARTER / template).read_text(encoding="utf-8")).render(**names)
