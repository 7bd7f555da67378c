"""Puts a section into a page of Markdown: over the one of the same title, or at the end."""

from __future__ import annotations

import re
from pathlib import Path


def placed(page: str, section: str) -> str:
    """Return the text of a page with the section, which begins with its title."""
    title = section.splitlines()[0]
    before, found, rest = page.partition(f"\n{title}\n")
    end = rest.find("\n## ") if found else -1
    after = rest[end:] if end >= 0 else ""
    return f"{before.rstrip()}\n\n{section.rstrip()}\n{after}"


def headed(page: str, head: str) -> str:
    """Return a page with a new head, from its title on; the sections that the head does not have
    follow it.
    """
    own = {line for line in head.splitlines() if line.startswith("## ")}
    kept = [
        part
        for part in re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
        if part.splitlines()[0] not in own
    ]
    return "\n\n".join(part.strip() for part in [head, *kept]) + "\n"


def put(path: Path, section: str) -> None:
    """Write the section into the page."""
    path.write_text(placed(path.read_text(encoding="utf-8"), section), encoding="utf-8")


def tell(section: str, page: Path | None) -> None:
    """Print the section, and put it into the page if there is one."""
    print(section)
    if page:
        put(page, section)
