"""A digest of what an engine is made of.

A unit that was done counts as done while package and engine stay what they were. The package is
told by its files. An engine of somebody else is told by its name and options, the files that these
name, the code beside a script or a program, the package that registers it and the code beside that,
and the Python that it runs in with every distribution that is installed for it. A server behind a
URL is told by its URL alone; `label` is for the rest.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from errno import ENAMETOOLONG
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path

import msgspec

import cachewitness
import cachewitness_reference
from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness.engines.policy import GROUP as POLICIES
from cachewitness.engines.registry import GROUP, EngineSpec

ASKED_SECONDS = 60
_LIST = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps([sys.version, *sorted(f'{d.name} {d.version}' for d in m.distributions())]))"
)
_REGISTERED = (
    "import json, sys; from cachewitness.sessions.campaign.build_digest import registered;"
    " print(json.dumps(registered(sys.argv[1])))"
)
SCRIPT = ".py"
CODE = (SCRIPT, ".so", ".pyd")
"""How the files end that a script may import from its folder."""
INSTALLED = ("site-packages", "dist-packages")
"""What folders are called in which distributions are installed."""
NOT_READ = {
    "__pycache__",
    ".git",
    ".venv",
    ".cachewitness",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}
"""Folders that are no part of an engine, whatever is in them."""
FIRST_LINE = 1000
"""So many bytes of a script's first line are read."""
LEVELS = 2
"""So deep a folder is looked into for code: a package needs no `__init__.py`."""
PYTHON = re.compile(r"python[\d.]*")


def made_of(spec: EngineSpec, policy: str, label: str) -> str:
    """Return a digest of what an engine is made of, and of the policy if that comes from another
    package.

    Raises UsageError if a file of the engine cannot be read, or its Python does not say what it
    has.
    """
    try:
        parts = _parts(spec, policy, label)
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror})"
        raise UsageError(
            f"engine {spec.text}: {why}, so it is not known what the engine is made of"
        ) from None
    return sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _parts(spec: EngineSpec, policy: str, label: str) -> list[object]:
    reads = spec.kind.written_for.reads if spec.kind.written_for else ()
    parts: list[object] = [
        spec.text,
        label,
        spec.isolation,
        _package(plugins.registered(POLICIES)[policy]),
    ]
    parts += [_content(os.environ.get(name, "")) for name in reads]
    for name, value in spec.options.items():
        words = _words(value)
        if words and name == spec.command:
            words[0] = shutil.which(words[0]) or words[0]
            parts += [_of_python(python) for python in _pythons(words)]
            parts.append(_module(words))
        parts += [_content(word) for word in dict.fromkeys([value, *words])]
        parts += [_content(word.partition("=")[2], folders=False) for word in words]
    if spec.foreign or spec.others:
        entry = plugins.registered(GROUP)[spec.kind.name]
        python = spec.isolation.python if spec.isolation else ""
        parts += [entry.value, _package(entry), _installed(python)]
        parts += [_asked(python, _REGISTERED, entry.value)] if python else []
    return parts


def forget() -> None:
    """Have files and installed distributions be looked at again."""
    for remembered in (package, _package, _installed, _asked):
        remembered.cache_clear()


@cache
def package() -> str:
    """Return the version of this package, and a digest of its files."""
    folders = [
        Path(str(one.__file__)).resolve().parent for one in (cachewitness, cachewitness_reference)
    ]
    return f"{cachewitness.__version__}+{sha256(b''.join(map(_tree, folders))).hexdigest()[:12]}"


def registered(value: str) -> list[str]:
    """Return what is told of this package and of the one that registers something, where this
    Python has them.
    """
    return [package(), _package(EntryPoint("", value, GROUP))]


# --- commands -------------------------------------------------------------------------------------


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return []


def _pythons(words: list[str]) -> list[str]:
    """Return the Pythons that a command names, or that the first line of a script does which it
    runs.
    """
    for named in (words, _first_line(_start(Path(words[0])))):
        if found := [
            path
            for word in named
            if PYTHON.fullmatch(Path(word).name) and (path := shutil.which(word))
        ]:
            return found
    return []


def _start(program: Path) -> bytes:
    """Return the first line of a file; nothing if it is none, or nobody may read it."""
    with suppress(OSError, ValueError):
        if program.is_file():
            with program.open("rb") as file:
                return file.readline(FIRST_LINE)
    return b""


def _first_line(content: bytes) -> list[str]:
    """Return the words of a script's first line that say what runs it; nothing for other files."""
    first = content[:FIRST_LINE].partition(b"\n")[0]
    return first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []


def _of_python(python: str) -> list[str]:
    """Return what is installed for a Python that a command names; nothing if it is too old to
    say.
    """
    with suppress(UsageError):
        return _installed(python)
    return []


def _module(words: list[str]) -> str:
    """Return a digest of the code in the current folder, if a command has a Python run a module
    of it.
    """
    at = words.index("-m") + 1 if "-m" in words else len(words)
    name = words[at].partition(".")[0] if at < len(words) else ""
    here = Path.cwd()
    there = bool(name) and ((here / f"{name}{SCRIPT}").is_file() or (here / name).is_dir())
    return _digest(here, _modules_of_folder(here)).hex() if there else ""


def _content(word: str, *, folders: bool = True) -> str:
    """Return a digest of the file or the folder that a word names, and of the code beside a
    program; empty if it names none.
    """
    try:
        path = Path(word).expanduser()
        is_file = path.is_file()
        is_folder = folders and bool(word) and path.is_dir()
    except (ValueError, RuntimeError):  # no name of a file
        return ""
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            return ""
        raise
    if is_file:
        content = path.read_bytes()
        beside = _digest(path.parent, _beside_program(path, content))
        return sha256(content + beside).hexdigest()
    return sha256(_tree(path)).hexdigest() if is_folder else ""


def _beside_program(path: Path, content: bytes) -> Iterable[Path]:
    """Return the code that a script may import from its folder, and the libraries that a program
    may load from there.
    """
    if path.suffix == SCRIPT or any(
        PYTHON.fullmatch(Path(word).name) for word in _first_line(content)
    ):
        return _modules_of_folder(path.parent)
    if content.startswith(b"\x7fELF"):
        return [file for file in path.parent.iterdir() if ".so" in file.suffixes and file.is_file()]
    return []


# --- packages -------------------------------------------------------------------------------------


@cache
def _package(entry: EntryPoint) -> str:
    """Return a digest of the package that registers something, and of the code beside it; empty for
    what is in this package.

    In a folder of installed distributions their versions tell what lies beside it.
    """
    name = entry.value.partition(":")[0].partition(".")[0]
    found = find_spec(name) if name != cachewitness.__name__ else None
    whole = found.submodule_search_locations if found else None
    places = list(whole or ()) or ([found.origin] if found and found.origin else [])
    return sha256(b"".join(_place(Path(place)) for place in places)).hexdigest() if places else ""


def _place(place: Path) -> bytes:
    """Return a digest of a module's file, or of a package's folder, and of the code beside it."""
    if place.parent.name not in INSTALLED:
        return _digest(place.parent, _modules_of_folder(place.parent))
    return _tree(place) if place.is_dir() else place.read_bytes()


@cache
def _installed(python: str) -> list[str]:
    """Return the version of a Python and the distributions that it has, each with its version;
    without one, of that here.
    """
    if not python or python == sys.executable:
        return [sys.version, *sorted(f"{one.name} {one.version}" for one in distributions())]
    return _asked(python, _LIST)


@cache
def _asked(python: str, code: str, *words: str) -> list[str]:
    """Return what another Python says. Raises UsageError if it does not."""
    try:
        output = subprocess.run(
            [python, "-c", code, *words],
            capture_output=True,
            text=True,
            timeout=ASKED_SECONDS,
            check=True,
            cwd=os.sep,
        ).stdout
        listed: list[str] = json.loads(output)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        what = (
            "what is installed for it"
            if code is _LIST
            else "what the engine is made of there (has it this cachewitness?)"
        )
        raise UsageError(f"{python}: does not say {what} ({type(error).__name__})") from None
    return listed


# --- files ----------------------------------------------------------------------------------------


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
    """Yield the files below a folder, also those behind links; a link to a folder that it lies
    in is not followed.
    """
    above = above | {folder.resolve()}
    for path in folder.iterdir():
        if path.name in NOT_READ:
            continue
        if path.is_dir():
            if path.resolve() not in above:
                yield from _files(path, above)
        elif path.is_file():
            yield path


def _modules_of_folder(folder: Path) -> Iterator[Path]:
    """Yield the modules in the folder of a script, and the files of the packages in it."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix in CODE:
            yield path
        elif path.name not in NOT_READ and _is_package(path):
            yield from _files(path)
        elif path.name not in NOT_READ and _holds_code(path, LEVELS):
            yield from (file for file in _files(path) if file.suffix in CODE)


def _is_package(path: Path) -> bool:
    """Whether a folder is a package; one that nobody may look into can be imported by nobody."""
    with suppress(PermissionError):
        return (path / "__init__.py").is_file()
    return False


def _holds_code(path: Path, levels: int) -> bool:
    """Whether Python can import something from a folder, so many levels deep; not where a Python
    of its own is installed.
    """
    with suppress(OSError):
        if not path.is_dir() or (path / "pyvenv.cfg").is_file() or path.name in NOT_READ:
            return False
        within = list(path.iterdir())
        return any(file.suffix in CODE and file.is_file() for file in within) or (
            levels > 1 and any(_holds_code(folder, levels - 1) for folder in within)
        )
    return False
