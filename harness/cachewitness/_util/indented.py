"""A document as JSON that people read as well."""

from __future__ import annotations

import msgspec


def indented(document: object, indent: int = 2) -> bytes:
    """Return a document as JSON, so many blanks a level, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=indent) + b"\n"
