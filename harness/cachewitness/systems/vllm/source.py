"""Finds and imports the vLLM under test: the installed one, or a checkout or unpacked wheel named
by its path.

The cache core is pure Python. A tree without compiled parts is enough, so one environment serves
every release: unpack a wheel, name the folder. A process tests one vLLM; naming a second one is
refused rather than mixed with the first.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

from cachewitness._util import data
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.systems.vllm.alias import VLLM, alias

REQUIREMENTS = "ci/vllm_requirements.txt"
FIRST, LAST = "0.24", "0.33"
KNOWN = f"{FIRST} to {LAST}"
"""The releases that the adapter was written for."""
WHOLE = f"pip install vllm=={LAST}.0"
"""Everything, with its kernels: gigabytes, of which the cache core needs none."""
TORCH = "pip install torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu"
SOURCES = f"vllm-{LAST}.0"
CLONE = f"git clone --depth 1 --branch v{LAST}.0 https://github.com/vllm-project/vllm {SOURCES}"


@dataclass(frozen=True)
class Source:
    """The parts of one vLLM that the adapter builds on."""

    version: str
    interface: ModuleType
    """`vllm.v1.kv_cache_interface`"""
    manager: ModuleType
    """`vllm.v1.core.kv_cache_manager`"""
    utils: ModuleType
    """`vllm.v1.core.kv_cache_utils`"""
    request: ModuleType
    """`vllm.v1.request`"""
    package: str = VLLM
    """What the package is called; a fork may call vLLM's configuration after itself."""

    @property
    def release(self) -> tuple[int, int] | None:
        """The release as (major, minor); None for a tree that does not know its version."""
        return release_of(self.version)

    @property
    def whole_config(self) -> str:
        """What the class of the whole configuration is called: `VllmConfig`, or after a fork."""
        return f"{self.package.capitalize()}Config"

    def is_before(self, release: tuple[int, int]) -> bool:
        """Whether this is known to be older than a release."""
        return self.release is not None and self.release < release

    def part(self, module: str, name: str) -> Any:
        """Return something defined in `vllm.<module>`.

        Raises UsageError naming it if this vLLM has no such thing.
        """
        try:
            return getattr(importlib.import_module(f"vllm.{module}"), name)
        except (ImportError, AttributeError):
            raise UsageError(
                f"vLLM {self.version}: vllm.{module} has no {name}; this adapter knows {KNOWN}"
            ) from None


def release_of(version: str) -> tuple[int, int] | None:
    """Return the release of a version as (major, minor); None where the version is not known."""
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else None
    return found if found and found > (0, 1) else None


@contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment for a while; None: it is not there."""
    before = os.environ.get(name)
    try:
        _set(name, value)
        yield
    finally:
        _set(name, before)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@functools.cache
def load(path: str = "", package: str = "") -> Source:
    """Import vLLM, from `path` if one is given, and return its parts. `package`: the name of a fork
    in a package of its own, `NAME` or `NAME@RELEASE` with the release of vLLM that it follows.

    Raises UsageError for a path that holds no vLLM or comes second, EngineMissing if something must
    be installed first.
    """
    name, _, follows = package.partition("@")
    if path:
        _put_first(path, name or VLLM)
    if name:
        alias(name)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    for logger in (name or VLLM, "torch._library.triton"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    try:
        top = importlib.import_module("vllm")
        return Source(
            version=_version(top, name, follows),
            interface=importlib.import_module("vllm.v1.kv_cache_interface"),
            manager=importlib.import_module("vllm.v1.core.kv_cache_manager"),
            utils=importlib.import_module("vllm.v1.core.kv_cache_utils"),
            request=importlib.import_module("vllm.v1.request"),
            package=name or VLLM,
        )
    except ModuleNotFoundError as error:
        name = error.name or str(error)
        raise EngineMissing(_what_to_install(name, path), _mend(name)) from None
    except (ImportError, OSError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineMissing(
            f"vllm cannot be imported: {reason}; the set in {REQUIREMENTS} is known to work"
        ) from None


def _version(top: ModuleType, package: str, follows: str) -> str:
    """Return the version of vLLM, or the release that a fork follows with the fork's own."""
    version = str(getattr(top, "__version__", "unknown"))
    return f"{follows} ({package} {version})".strip() if package else version


def _what_to_install(name: str, path: str) -> str:
    if name == "vllm":
        return (
            "vllm is not installed, and need not be: its cache core is Python, which runs on a CPU"
            " from a checkout or an unpacked wheel, --engine vllm:source=PATH, with a few packages"
            f" ({REQUIREMENTS}); `cachewitness doctor vllm` prints the commands, and {WHOLE}"
            " installs all of it"
        )
    if name.startswith("vllm."):
        return f"{path or 'the installed vllm'} has no module {name}; this adapter knows {KNOWN}"
    return (
        f"vllm needs the package {name}, which is missing; pip install --no-deps -r {REQUIREMENTS},"
        " torch==2.13.0 first"
    )


def _mend(name: str) -> str:
    """Return the command that brings a module: the packages that the Python of vLLM needs, and its
    sources if these are missing; empty if no command does.
    """
    if name.startswith("vllm."):
        return ""
    listed = quote(str(data.requirements() / Path(REQUIREMENTS).name))
    packages = f"{TORCH} && pip install --no-deps -r {listed}"
    if name != "vllm":
        return packages
    return f"{packages} && {CLONE} && cachewitness doctor vllm:source={SOURCES}"


def _put_first(path: str, package: str) -> None:
    root = Path(path).expanduser().resolve()
    if not (root / package / "__init__.py").is_file():
        raise UsageError(
            f"--engine vllm:source={path}: no {package}/__init__.py there; name the folder that"
            f" holds `{package}`"
        )
    loaded = getattr(sys.modules.get("vllm"), "__file__", None)
    if loaded is not None and Path(loaded).resolve().parent != (root / package).resolve():
        raise UsageError(
            f"--engine vllm:source={path}: vllm is already imported from {Path(loaded).parent}; use"
            " one process for each"
        )
    if sys.path[0] != str(root):
        sys.path.insert(0, str(root))
