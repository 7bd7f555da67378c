"""Puts a section into a page of Markdown: over the one of the same title, or at the end."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, section: str) -> None:
    """Write the section, which begins with its title, into the page."""
    title = section.splitlines()[0]
    text = path.read_text(encoding="utf-8")
    before, found, rest = text.partition(f"\n{title}\n")
    end = rest.find("\n## ") if found else -1
    after = rest[end:] if end >= 0 else ""
    path.write_text(f"{before.rstrip()}\n\n{section.rstrip()}\n{after}", encoding="utf-8")
