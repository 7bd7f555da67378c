"""Where the Python source of an engine is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness.engines.registry import GROUP, EngineSpec
from cachewitness.sessions.change.touched import Tree

SOURCE, PACKAGE = "source", "package"
"""The options of an engine's name that say where it is, and what it is called there."""


def tree_of(engine: EngineSpec) -> Tree:
    """Return the folder of an engine's package: the one that its name says, or where it is
    installed.

    Raises UsageError if it has no source in Python that could be followed.
    """
    kind = engine.kind
    if engine.command or engine.one_server:
        raise UsageError(
            f"--diff: engine {kind.name} runs as a program or a server of its own, of which nobody"
            " can tell which lines it enters; leave --diff out"
        )
    if not engine.foreign and kind.written_for is None:
        raise UsageError(
            f"--diff: engine {kind.name} is a part of cachewitness, and no fork of anything; leave"
            " --diff out"
        )
    if engine.isolation is None:
        raise UsageError(
            "--diff: what an engine enters is seen in a process of its own alone; add --isolate yes"
        )
    package = _package(engine)
    if source := engine.options.get(SOURCE):
        folder = Path(source).expanduser().resolve()
        if not (folder / package).is_dir():
            raise UsageError(f"--diff: {source} holds no folder {package}")
        return Tree(folder, package)
    if engine.isolation.python:
        raise UsageError(
            f"--diff: engine {kind.name} is installed in another Python, {engine.isolation.python};"
            " run the command there"
        )
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"--diff: no package {package} is installed here")
    return Tree(Path(next(iter(found.submodule_search_locations))).resolve().parent, package)


def _package(engine: EngineSpec) -> str:
    """Return what the engine's package is called: as its name says, or as its system is, or as it
    registers.
    """
    if named := engine.options.get(PACKAGE):
        return named.partition("@")[0]
    if engine.kind.written_for is not None:
        return engine.kind.written_for.distribution.replace("-", "_")
    return plugins.registered(GROUP)[engine.kind.name].value.partition(":")[0].partition(".")[0]
