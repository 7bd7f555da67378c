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
}
"""How templates write numbers: 12,345; with so many digits; as a share of 1; 1.2e-05."""

WIDTH = 100
_LEAD = re.compile(r"\s*(?:(?:[*-]|\d+\.) )?")
_AS_IT_IS = re.compile(r"\s*(?:$|[|<]|#+ |!\[)|Written by ")
_MARKER = re.compile(r" (?=#|(?:[*+>|-]|\d+[.)])(?: |$))")
"""A blank in front of what would begin a list, a quote, a table or a heading on its own line."""
_CODE = re.compile(r"`[^`]{,60}`")
_GLUE = "\0"


def flowed(text: str) -> str:
    """Return a page whose paragraphs and list items are filled up to WIDTH; code, tables and
    headings stay as they are.
    """
    out: list[str] = []
    paragraph: list[str] = []
    fenced = False
    for line in [*text.split("\n"), ""]:
        fence = line.lstrip().startswith("```")
        code = fenced or fence or (not paragraph and line.startswith("    "))
        as_it_is = code or _AS_IT_IS.match(line)
        if paragraph and (as_it_is or _lead(line).strip()):
            out += _filled(paragraph)
            paragraph = []
        if as_it_is:
            out.append(line)
        else:
            paragraph.append(line)
        fenced ^= fence
    return "\n".join(out[:-1])


def _filled(paragraph: list[str]) -> list[str]:
    lead = _lead(paragraph[0])
    words = " ".join([paragraph[0][len(lead) :].strip(), *(line.strip() for line in paragraph[1:])])
    filled = textwrap.wrap(
        _CODE.sub(lambda code: code[0].replace(" ", _GLUE), _MARKER.sub(_GLUE, words)),
        WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in filled]


def _lead(line: str) -> str:
    found = _LEAD.match(line)
    assert found
    return found[0]


def folder(below: str = "") -> Path:
    """Return the folder `docs`, or one below it. Raises UsageError outside a checkout."""
    docs = data.fixtures().parent / "docs" / below
    if not docs.is_dir():
        raise UsageError(
            f"{docs} is missing; pages are written in a checkout of the repository alone"
        )
    return docs


def render(template: str, **values: object) -> str:
    """Return a page, or a section of one, in lines of WIDTH; blank lines that templates leave in
    a row become one.

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
    return flowed(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
