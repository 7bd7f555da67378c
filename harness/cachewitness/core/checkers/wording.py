"""Words that the sentences and the lines of several checkers share.

A line is the finding in one line of the field's words. LINE_MAX characters, indented by two, fit
100 columns.
"""

from __future__ import annotations

from collections.abc import Collection

LINE_MAX = 98
PAGES_MAX = 4
"""How many pages a line names; of more it names the first ones and the number of the others."""


def count(number: int, what: str) -> str:
    """Return a number of things, `1 token` or `2 tokens`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def named(holder: str) -> str:
    """Return a holder of pages by its name; copies and captures, as `copy:3`, are no requests."""
    return holder if ":" in holder else f"request {holder}"


def all_named(holders: Collection[str]) -> str:
    """Return several holders, `request r1 and request r2`; `no request` if there is none."""
    return " and ".join(named(holder) for holder in sorted(holders)) or "no request"


def page_list(pages: Collection[int]) -> str:
    """Return pages by number, `page 3`, `pages 3, 4` or `pages 1, 2, 3, 4 and 7 more`."""
    shown = ", ".join(map(str, sorted(pages)[:PAGES_MAX]))
    more = f" and {len(pages) - PAGES_MAX} more" if len(pages) > PAGES_MAX else ""
    return f"page{'s' if len(pages) > 1 else ''} {shown}{more}"


def key_of(r: str, length: int) -> str:
    """Return a key by the request that published it and the tokens that it names."""
    return f"key of {r} [0,{length})"


def with_detail(line: str, detail: str) -> str:
    """Return a finding's line with a detail behind it, without if both are too long for a line."""
    longer = f"{line}; {detail}"
    return longer if detail and len(longer) <= LINE_MAX else line


def describe_retention(interval: int, boundaries: Collection[int]) -> str:
    """Return what a retention interval keeps of a prompt that can be resumed at some boundaries,
    all of them in tokens.
    """
    places = " or ".join(str(boundary) for boundary in sorted(boundaries) if boundary)
    parts = [f"multiples of {interval}"] if interval else []
    parts += [f"what a request needs to resume at {places}"] if places else []
    return " and ".join(parts) or "nothing of it"
