"""The engine of a unit: how it is opened on whichever machine, and a digest of what it is made of.

A unit that was done counts as done while package and engine stay what they were. The package is told by its files. An engine of
somebody else is told by its name and options, the files that these name, the package that registers it, and every distribution
that is installed for the Python that it runs in. A server behind a URL is told by its URL alone; `label` is for the rest.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path

import msgspec

import harness
from harness._util import plugins
from harness._util.errors import UsageError
from harness.engines.child.engine import Isolation
from harness.engines.child.jsonl import introduced
from harness.engines.policy import GROUP as POLICIES
from harness.engines.registry import GROUP, EngineSpec, parse

ASKED_SECONDS = 60
_LIST = "import importlib.metadata as m, json; print(json.dumps(sorted(f'{d.name} {d.version}' for d in m.distributions())))"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as the file names it. `isolation`: its own process; `made_of`: its digest where the campaign was planned."""

    text: str
    isolation: Isolation | None = None
    label: str = ""
    made_of: str = ""

    def named(self) -> EngineSpec:
        """Return the engine as it is registered here; a program is not asked. Raises UsageError if it is not known."""
        spec = parse(self.text)
        return spec if self.isolation is None else spec.isolated(self.isolation)

    def spec(self) -> EngineSpec:
        """Return the engine, ready to be opened. Raises UsageError if it is not known here, or does not say what it is."""
        spec = self.named()
        if spec.kind.command and spec.isolation:
            spec = replace(spec, kind=introduced(spec.kind, spec.text, spec.isolation))
        return spec


def held(spec: EngineSpec, policy: str, label: str) -> Held:
    """Return an engine for units under a policy, with its digest."""
    return Held(text=spec.text, isolation=spec.isolation, label=label, made_of=made_of(spec, policy, label))


def made_of(spec: EngineSpec, policy: str, label: str) -> str:
    """Return a digest of what an engine is made of, and of the policy if that comes from another package."""
    parts: list[object] = [spec.text, label, spec.isolation, _package(plugins.registered(POLICIES)[policy])]
    for value in spec.options.values():
        parts += [_content(word) for word in {value, *_words(value)}]
    if spec.foreign or spec.others:
        entry = plugins.registered(GROUP)[spec.kind.name]
        python = spec.isolation.python if spec.isolation else ""
        parts += [entry.value, _package(entry), _installed(python)]
    return sha256(msgspec.json.encode(parts)).hexdigest()[:16]


@cache
def package() -> str:
    """Return the version of this package, and a digest of its files."""
    here = Path(harness.__file__).resolve().parent
    folders = (here, here.parent / "reference_impl")
    return f"{harness.__version__}+{sha256(b''.join(map(_tree, folders))).hexdigest()[:12]}"


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return []


def _content(word: str) -> str:
    """Return a digest of the file or the folder that a word names; empty if it names none."""
    try:
        path = Path(word).expanduser()
        if path.is_file():
            return sha256(path.read_bytes()).hexdigest()
        return sha256(_tree(path)).hexdigest() if word and path.is_dir() else ""
    except (OSError, ValueError):
        return ""


@cache
def _package(entry: EntryPoint) -> str:
    """Return a digest of the package that registers something; empty for what is in this package."""
    name = entry.value.partition(":")[0].partition(".")[0]
    found = find_spec(name) if name != harness.__name__ else None
    where = found.origin if found else None
    if not where:
        return ""
    path = Path(where)
    return sha256(_tree(path.parent) if path.name == "__init__.py" else path.read_bytes()).hexdigest()


@cache
def _installed(python: str) -> list[str]:
    """Return the distributions that a Python has, each with its version; of the one that runs here without another."""
    if not python or python == sys.executable:
        return sorted(f"{one.name} {one.version}" for one in distributions())
    asked = [python, "-P", "-c", _LIST]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=ASKED_SECONDS, check=True).stdout
        listed: list[str] = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"{python}: does not say what is installed for it ({type(error).__name__})") from None
    return listed


def _tree(folder: Path) -> bytes:
    """Return a digest of the files below a folder, by their names and content."""
    digest = sha256()
    for path in sorted(_files(folder)):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return digest.digest()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file():
            yield path
