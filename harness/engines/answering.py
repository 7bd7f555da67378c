"""What engines have in common that only answer (docs/answers.md): what they refuse, and what their header says."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness._util.errors import UsageError
from harness.history.events import Header, Rules
from harness.trace.format import TraceHeader


def chosen(engine: str, options: Mapping[str, str], name: str, known: Collection[str]) -> str:
    """Return the value of an option of an engine's name, by default the first that is known.

    Raises UsageError for a value that is not known.
    """
    value = options.get(name, next(iter(known)))
    if value not in known:
        raise UsageError(f"--engine {engine}: {name} is {_either(known)}, not {value!r}")
    return value


def takes(engine: str, header: TraceHeader, known: Collection[str]) -> None:
    """Raise UsageError if a trace has options that the engine does not take."""
    unknown = sorted(set(header.options) - set(known))
    if unknown:
        taken = f"the option {next(iter(known))}" if len(known) == 1 else f"the options {', '.join(known)}"
        raise UsageError(f"--engine {engine}: takes {taken} of a trace, not {', '.join(unknown)}")


def declared(engine: str, header: TraceHeader, rules: Rules, *, version: str = "", salt: bool = False) -> Header:
    """Return the header of an engine that was opened for a trace: it tells no pages, and its clients may go away."""
    return Header(
        engine=engine,
        engine_version=version,
        height="answers",
        pools=[],
        groups=[],
        rules=rules,
        capabilities=["abort", "salt"] if salt else ["abort"],
        trace=header.name,
    )


def _either(known: Collection[str]) -> str:
    return " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"
