"""The engine of a unit: how it is opened on whichever machine, and a digest of what it is made of.

A unit that was done counts as done while package and engine stay what they were. The package is told by its files. An engine of
somebody else is told by its name and options, the files that these name, the modules and packages beside a script, the package
that registers it and the code beside that, and the Python that it runs in with every distribution that is installed for it. A
server behind a URL is told by its URL alone; `label` is for the rest.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from errno import ENAMETOOLONG
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
from harness.engines.within import Limits

ASKED_SECONDS = 60
_LIST = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps([sys.version, *sorted(f'{d.name} {d.version}' for d in m.distributions())]))"
)
SCRIPT = ".py"
CODE = (SCRIPT, ".so", ".pyd")
"""How the files end that a script may import from its folder."""
INSTALLED = ("site-packages", "dist-packages")
"""What folders are called in which distributions are installed."""
NOT_READ = {"__pycache__", ".git", ".venv", ".cachewitness", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
"""Folders that are no part of an engine, whatever is in them."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as the file names it. `isolation`: its own process; `within`: its deadlines where it has none.

    `made_of` is its digest where the campaign was planned.
    """

    text: str
    isolation: Isolation | None = None
    within: Limits | None = None
    label: str = ""
    made_of: str = ""

    def named(self) -> EngineSpec:
        """Return the engine as it is registered here; a program is not asked. Raises UsageError if it is not known."""
        spec = replace(parse(self.text), within=self.within)
        return spec if self.isolation is None else spec.isolated(self.isolation)

    def spec(self) -> EngineSpec:
        """Return the engine, ready to be opened. Raises UsageError if it is not known here, or does not say what it is."""
        spec = self.named()
        if spec.kind.command and spec.isolation:
            spec = replace(spec, kind=introduced(spec.kind, spec.text, spec.isolation))
        return spec


def held(spec: EngineSpec, policy: str, label: str) -> Held:
    """Return an engine for units under a policy, with its digest."""
    made = made_of(spec, policy, label)
    return Held(text=spec.text, isolation=spec.isolation, within=spec.within, label=label, made_of=made)


def made_of(spec: EngineSpec, policy: str, label: str) -> str:
    """Return a digest of what an engine is made of, and of the policy if that comes from another package.

    Raises UsageError if a file of the engine cannot be read, or its Python does not say what it has.
    """
    try:
        parts = _parts(spec, policy, label)
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror})"
        raise UsageError(f"engine {spec.text}: {why}, so it is not known what the engine is made of") from None
    return sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _parts(spec: EngineSpec, policy: str, label: str) -> list[object]:
    parts: list[object] = [spec.text, label, spec.isolation, _package(plugins.registered(POLICIES)[policy])]
    for name, value in spec.options.items():
        words = _words(value)
        if words and name == spec.kind.command:
            words[0] = shutil.which(words[0]) or words[0]
        parts += [_content(word) for word in dict.fromkeys([value, *words])]
    if spec.foreign or spec.others:
        entry = plugins.registered(GROUP)[spec.kind.name]
        python = spec.isolation.python if spec.isolation else ""
        parts += [entry.value, _package(entry), _installed(python)]
    return parts


def forget() -> None:
    """Have files and installed distributions be looked at again."""
    for remembered in (package, _package, _installed):
        remembered.cache_clear()


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
    """Return a digest of the file or the folder that a word names, and of the code beside a script; empty if it names none."""
    try:
        path = Path(word).expanduser()
        is_file, is_folder = path.is_file(), bool(word) and path.is_dir()
    except (ValueError, RuntimeError):  # no name of a file
        return ""
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            return ""
        raise
    if is_file:
        beside = _digest(path.parent, _beside(path.parent)) if path.suffix == SCRIPT else b""
        return sha256(path.read_bytes() + beside).hexdigest()
    return sha256(_tree(path)).hexdigest() if is_folder else ""


@cache
def _package(entry: EntryPoint) -> str:
    """Return a digest of the package that registers something, and of the code beside it; empty for what is in this package.

    In a folder of installed distributions their versions tell what lies beside it.
    """
    name = entry.value.partition(":")[0].partition(".")[0]
    found = find_spec(name) if name != harness.__name__ else None
    where = found.origin if found else None
    if not where:
        return ""
    path = Path(where)
    is_package = path.name == "__init__.py"
    folder = path.parent.parent if is_package else path.parent
    if folder.name not in INSTALLED:
        return _digest(folder, _beside(folder)).hex()
    return sha256(_tree(path.parent) if is_package else path.read_bytes()).hexdigest()


@cache
def _installed(python: str) -> list[str]:
    """Return the version of a Python and the distributions that it has, each with its version; without one, of that here."""
    if not python or python == sys.executable:
        return [sys.version, *sorted(f"{one.name} {one.version}" for one in distributions())]
    asked = [python, "-P", "-c", _LIST]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=ASKED_SECONDS, check=True).stdout
        listed: list[str] = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"{python}: does not say what is installed for it ({type(error).__name__})") from None
    return listed


def _tree(folder: Path) -> bytes:
    """Return a digest of the files below a folder, by their names and content."""
    return _digest(folder, _files(folder))


def _digest(folder: Path, files: Iterable[Path]) -> bytes:
    digest = sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return digest.digest()


def _files(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield the files below a folder, also those behind links; a link to a folder that it lies in is not followed."""
    above = above | {folder.resolve()}
    for path in folder.iterdir():
        if path.name in NOT_READ:
            continue
        if path.is_dir():
            if path.resolve() not in above:
                yield from _files(path, above)
        elif path.is_file():
            yield path


def _beside(folder: Path) -> Iterator[Path]:
    """Yield the modules in the folder of a script, and the files of the packages in it."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix in CODE:
            yield path
        elif path.name not in NOT_READ and (path / "__init__.py").is_file():
            yield from _files(path)
