"""Renders the generated pages of docs/ from the templates in `docs/templates`; only a checkout has
them.

A template holds the sentences of a page, the code that renders it the numbers. To change a
sentence, edit the template and write the page again with the command that its first lines name.
Templates are in Jinja's syntax and see a few macros in `macros.j2`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from cachewitness._util import data
from cachewitness._util.errors import UsageError

TEMPLATES = Path(__file__).resolve().parents[3] / "docs" / "templates"

FILTERS: dict[str, Callable[..., str]] = {
    "thousands": lambda number: f"{number:,.0f}",
    "fixed": lambda number, digits: f"{number:.{digits}f}",
    "percent": lambda share: f"{100 * share:.0f} %",
    "scientific": lambda number: f"{number:.1e}",
    "wrapped": lambda text: "\n\n".join([*map(_filled, text.strip().split("\n\n")), ""]),
}
"""How templates write numbers (12,345; with so many digits; as a share of 1; 1.2e-05), and break
paragraphs into lines."""


def _filled(paragraph: str) -> str:
    return textwrap.fill(
        " ".join(paragraph.split()), 127, break_long_words=False, break_on_hyphens=False
    )


def folder(below: str = "") -> Path:
    """Return the folder `docs`, or one below it. Raises UsageError outside a checkout."""
    docs = data.fixtures().parent / "docs" / below
    if not docs.is_dir():
        raise UsageError(
            f"{docs} is missing; pages are written in a checkout of the repository alone"
        )
    return docs


def render(template: str, **values: object) -> str:
    """Return a page, or a section of one; blank lines that templates leave in a row become one.

    Raises jinja2.UndefinedError for a value that the template misses.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(FILTERS)
    text = environment.get_template(f"{template}.md.j2").render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
