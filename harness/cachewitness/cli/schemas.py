"""JSON schemas of what is stored, generated from the types that read it.

The files in `fixtures/schemas` are what other programs validate against; a test keeps them equal to
what is generated here. The schema of a trace or a history is that of one line: the first line of a
file is the header, all others are operations or events.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness._util.indented import indented
from cachewitness.cli import documents
from cachewitness.core import events as history
from cachewitness.core import trace_format as trace
from cachewitness.engines import doctor
from cachewitness.parity.likelihood import document as likelihood
from cachewitness.parity.scores import document as score
from cachewitness.report import jsonreport
from cachewitness.sessions.campaign import summary as campaign
from cachewitness.vectors import form as vectors

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"


def _trace() -> dict[str, Any]:
    title = f"a line of a trace, {trace.FORMAT} version {trace.VERSION}"
    return _of(title, trace.TraceHeader, trace.Op, trace.FORMAT, trace.VERSION)


def _history() -> dict[str, Any]:
    title = f"a line of a history, {history.FORMAT} version {history.VERSION}"
    return _of(title, history.Header, history.Event, history.FORMAT, history.VERSION)


def _report() -> dict[str, Any]:
    return _whole_schema("the report of a run", jsonreport.Document)


def _doctor() -> dict[str, Any]:
    return _whole_schema("what the doctor found", doctor.Document)


def _score() -> dict[str, Any]:
    return _whole_schema("the report of a score", score.Document)


def _whole_schema(what: str, kind: Any) -> dict[str, Any]:
    """Return the schema of what is one document: of a type whose `format` and `version` have a
    default, if it has any.
    """
    (whole,), definitions = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    _unwrap(definitions)
    fixed = (
        {field.name: field.default for field in msgspec.structs.fields(kind)}
        if isinstance(kind, type)
        else {}
    )
    if "format" in fixed:
        _pin(definitions[kind.__name__], fixed["format"], fixed["version"])
        what += f", {fixed['format']} version {fixed['version']}"
    return {"$schema": DIALECT, "title": what, **whole, "$defs": dict(sorted(definitions.items()))}


def _vectors(kind: str) -> dict[str, Any]:
    """Return the schema of a file of vectors of a kind."""
    file = vectors.FILES[kind]
    (whole,), definitions = msgspec.json.schema_components([file], ref_template=_REFERENCE)
    _unwrap(definitions)
    _pin(definitions["Info"], vectors.FORMAT, vectors.VERSION)
    definitions["Info"]["properties"]["kind"] = {"const": kind}
    title = f"test vectors of {kind}, {vectors.FORMAT} version {vectors.VERSION}"
    return {"$schema": DIALECT, "title": title, **whole, "$defs": dict(sorted(definitions.items()))}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "trace": _trace,
    "history": _history,
    "report": _report,
    "score": _score,
    "likelihood": functools.partial(_whole_schema, "compared likelihoods", likelihood.Document),
    "doctor": _doctor,
    "campaign": functools.partial(_whole_schema, "what came of a campaign", campaign.Document),
    **{kind: functools.partial(_whole_schema, *what) for kind, what in documents.KINDS.items()},
    **{f"vectors-{kind}": functools.partial(_vectors, kind) for kind in vectors.FILES},
}


def schema(kind: str) -> bytes:
    """Return the schema of `trace` or `history` lines, of `vectors-KIND`, or of what a command
    prints with --json, as JSON.

    Raises UsageError for another kind.
    """
    from cachewitness._util.names import nearest

    if kind not in KINDS:
        raise UsageError(f"there is no schema of {kind!r}{nearest(kind, KINDS)}")
    return indented(KINDS[kind]())


def title(kind: str) -> str:
    """Return what the schema is of."""
    return str(KINDS[kind]()["title"])


def _of(title: str, header: Any, line: Any, format_name: str, version: int) -> dict[str, Any]:
    (first, others), definitions = msgspec.json.schema_components(
        [header, line], ref_template=_REFERENCE
    )
    _unwrap(definitions)
    _pin(definitions[header.__name__], format_name, version)
    return {
        "$schema": DIALECT,
        "title": title,
        "anyOf": [first, *others["anyOf"]],
        "$defs": dict(sorted(definitions.items())),
    }


def _unwrap(definitions: dict[str, Any]) -> None:
    """Make every description one line of text, as docstrings are not."""
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = " ".join(definition["description"].split())


def _pin(definition: dict[str, Any], format_name: str, version: int) -> None:
    """Make the format and its version constants: a file of another version is another format."""
    definition["properties"]["format"] = {"const": format_name}
    definition["properties"]["version"] = {"const": version}
