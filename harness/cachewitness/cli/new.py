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
POOL_FILES = {"README.md": "allocator.md.j2", "test_{module}.py": "allocator_tests.py.j2"}
"""The same beside an allocator."""


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
@click.argument("what", type=click.Choice(["engine", "allocator"]))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", default="", metavar="NAME", help="Its name; default: the folder's.")
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
    place. Or with an allocator, a pool of blocks without an engine, and its tests.
    """
    from cachewitness._util import files
    from cachewitness._util.errors import UsageError

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
    texts = _engine(name, module, shape) if what == "engine" else _allocator(name, module)
    for path, text in texts.items():
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"new {what}: {folder / path}: its folder cannot be made ({error.strerror})"
            ) from None
        files.write(folder / path, [text.encode()])
    run = f"pip install -e . && cachewitness run --engine {name} && " if what == "engine" else ""
    after = f"cd {folder} && {run}pytest"
    say_written([folder / path for path in texts], as_json=as_json, next=after)
    if not as_json:
        output.echo(f"next: {after}")
        if "OWNER" in texts.get(WORKFLOW, ""):
            output.echo(f"before the workflow runs: fill in OWNER in {folder / WORKFLOW}")
    return 0


def _engine(name: str, module: str, shape: str) -> dict[str, str]:
    """Return the files of an engine by their paths."""
    from cachewitness._util import data
    from cachewitness.engines import origin

    adapter = (data.samples() / f"{shape}_adapter.py").read_text(encoding="utf-8")
    names = {"name": name, "module": module, "shape": shape, "sample": SHAPES[shape]}
    names["source"] = origin.origin().elsewhere()
    names["unknown"] = names["source"] == origin.PLACEHOLDER
    texts = {f"{module}.py": _named(adapter, shape, name)}
    for path, template in FILES.items():
        texts[path.format(module=module)] = _rendered(template, **names)
    return texts


def _allocator(name: str, module: str) -> dict[str, str]:
    """Return the files of an allocator by their paths."""
    from cachewitness._util import data

    pool = (data.samples() / "block_pool.py").read_text(encoding="utf-8")
    # The sample says where this repository tests it; here that is the file beside it.
    own = re.sub(
        r"`suites/\S+`\ntests the pool, and plants faults in it.",
        f"`test_{module}.py` tests it.",
        pool,
    )
    texts = {f"{module}.py": own}
    for path, template in POOL_FILES.items():
        texts[path.format(module=module)] = _rendered(template, name=name, module=module)
    return texts


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
