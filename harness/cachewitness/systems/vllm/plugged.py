"""What is put into vLLM from outside, by names that the engine's options give: vLLM's plug-ins, a
scheduler, a connector.

A run is the same everywhere, so no plug-in is loaded that was not named, platforms among them,
though vLLM by itself loads all that are installed. Whose import fails is named.

Source: vLLM 0.33.0, `plugins/__init__.py`, `platforms/__init__.py`, `config/scheduler.py`,
`distributed/kv_transfer/kv_connector/factory.py`.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cachewitness._util import imports
from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness._util.names import nearest
from cachewitness.core.engine_failure import by_the_user, message_of
from cachewitness.systems.vllm.build import parameters

ALLOWED = "VLLM_PLUGINS"
"""The variable by which vLLM is told which plug-ins it may load; empty: none."""
Prepare = Callable[..., None]
"""Called before vLLM's cache manager is built, with `kv_cache_config` and, at scheduler level,
`vllm_config`."""
GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
"""The kinds of plug-ins that the core of an engine loads."""


def unprepared(**offered: Any) -> None:
    """Prepare nothing."""


def allow(text: str) -> list[str]:
    """Have vLLM load the plug-ins that are named, `a+b`, and no other; return their names. Call it
    before vLLM is imported.

    Raises UsageError if one is not installed.
    """
    names = [name for name in text.split("+") if name]
    os.environ[ALLOWED] = ",".join(names)
    installed = _installed() if names else {}
    for name in names:
        if name not in installed:
            raise UsageError(
                f"--engine vllm:plugins={text}: no plug-in is called"
                f" {name!r}{nearest(name, installed)}"
                if installed
                else f"--engine vllm:plugins={text}: no plug-in of vLLM is installed here"
            )
    return names


@contextmanager
def blamed(names: Sequence[str]) -> Iterator[None]:
    """Say of what is missing while vLLM is imported that a plug-in may want it, if some are named:
    a platform is imported with vLLM.
    """
    try:
        yield
    except EngineMissing as error:
        if not names:
            raise
        missing = str(error).partition(";")[0]
        raise UsageError(
            f"--engine vllm:plugins={'+'.join(names)}: vLLM cannot be imported with"
            f" {'this plug-in' if len(names) == 1 else 'these plug-ins'}: {missing}"
        ) from None


def start(names: Sequence[str]) -> None:
    """Run the plug-ins that are named, as an engine of vLLM does when it starts. vLLM passes over
    one that cannot be imported; here UsageError names it, or says that one failed.
    """
    where = f"--engine vllm:plugins={'+'.join(names)}"
    installed = _installed() if names else {}
    for name in names:
        try:
            installed[name].load()
        except BaseException as error:
            if by_the_user(error):
                raise
            raise UsageError(
                f"{where}: plug-in {name!r} ({installed[name].value}) cannot be imported:"
                f" {_reason(error)}"
            ) from None
    if not names:
        return
    try:
        importlib.import_module("vllm.plugins").load_general_plugins()
    except BaseException as error:
        if by_the_user(error):
            raise
        raise UsageError(
            f"{where}: a plug-in failed when vLLM called it: {_reason(error)}"
        ) from None


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for group in GROUPS for entry in entry_points(group=group)}


def imported(option: str, name: str) -> Any:
    """Return the class that an option names as `module:Class`; modules of this folder are found.

    Raises UsageError if there is none.
    """
    return _named(option, name, "Class", lambda found: isinstance(found, type))


def _named(option: str, name: str, what: str, fits: Callable[[Any], bool]) -> Any:
    where = f"--engine vllm:{option}={name}"
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{where}: write module:{what}")
    try:
        found = getattr(imports.imported(module), attribute, None)
    except Exception as error:
        raise UsageError(f"{where}: {module} cannot be imported: {_reason(error)}") from None
    if not fits(found):
        raise UsageError(f"{where}: {module} has no {what.lower()} {attribute!r}")
    return found


def prepared_by(name: str) -> Prepare:
    """Return what calls the function that the option `prepare` names, with as much of what is
    offered as it takes: what the executor or the worker of a platform does when it starts.

    Raises UsageError if there is none, or it fails.
    """
    if not name:
        return unprepared
    function = _named("prepare", name, "function", callable)

    def prepare(**offered: Any) -> None:
        try:
            known = parameters(function)
            function(**{key: value for key, value in offered.items() if key in known})
        except BaseException as error:
            if by_the_user(error):
                raise
            raise UsageError(f"--engine vllm:prepare={name}: failed: {_reason(error)}") from None

    return prepare


def settings(option: str, text: str) -> dict[str, Any]:
    """Return an option that is a JSON object. Raises UsageError for any other text."""
    try:
        read = json.loads(text) if text else {}
    except ValueError as error:
        raise UsageError(f"--engine vllm:{option}={text}: is no JSON ({error})") from None
    if not isinstance(read, dict):
        raise UsageError(f"--engine vllm:{option}={text}: is no JSON object")
    return read


def _reason(error: BaseException) -> str:
    lines = message_of(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
