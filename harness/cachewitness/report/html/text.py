"""The moment of a failure as lines for a terminal: the block tables, and what the ledger knows
of the pages in them.
"""

from __future__ import annotations

from cachewitness.report.html import words
from cachewitness.report.html.cells import Cell
from cachewitness.report.html.frames import Film, Frame, Lane
from cachewitness.report.html.life import Life, LifeEvent

SIGNS = {
    "right": "ok",
    "wrong": "WRONG",
    "tainted": "TAINTED",
    "not-yet": "later",
    "unread": "not now",
    "left": "not read",
    "null": "-",
}
MARKS = {"cause": "the cause", "found": "here it fails", "both": "the cause"}
INDENT = "  "


def moment(film: Film) -> list[str]:
    """Return the frame in which the failure was found: its marked requests, or all that have
    tables, or its marked pages.
    """
    frame = next((frame for frame in film.frames if frame.failing), None)
    if frame is None:
        return []
    marked = [
        lane for lane in frame.lanes if any(cell.marked for row in lane.rows for cell in row.cells)
    ]
    # A finding about a page that no request has in its tables, as a needless eviction, marks no
    # lane.
    shown = marked or [lane for lane in frame.lanes if lane.rows]
    lines = [line for lane in shown for line in _lane(lane, film)] + (
        [] if marked else _pages(frame, film)
    )
    return [f"{frame.title}, where it fails:", *lines] if lines else []


def life(one: Life) -> list[str]:
    """Return the life of a page, an event a line, with the cause and the failure marked."""
    width = max((len(_steps(event)) for event in one.events), default=0)
    lines = [f"life of {one.title}:"]
    lines += [f"{INDENT}… {one.left_out} events are left out"] if one.left_out else []
    for event in one.events:
        mark = f"  <-- {MARKS[event.mark]}" if event.mark else ""
        lines.append(f"{INDENT}{_steps(event):<{width}}  {event.text}{mark}")
    return lines


def _steps(event: LifeEvent) -> str:
    return f"steps {event.step}-{event.until}" if event.until else f"step {event.step}"


def _lane(lane: Lane, film: Film) -> list[str]:
    lines = [f"{INDENT}request {lane.r} {lane.doing}"]
    for row in lane.rows:
        lines.append(f"{INDENT * 2}{film.groups[row.group]}")
        lines += [f"{INDENT * 3}{_cell(cell)}" for cell in row.cells]
    return lines


def _cell(cell: Cell) -> str:
    if cell.looks == "fold":
        return f"… {cell.claim}"
    if cell.page < 0:
        return f"no page   {SIGNS[cell.looks]:<8} {cell.claim}" + (
            "  <-- here" if cell.marked else ""
        )
    line = f"page {cell.page:<4} {SIGNS[cell.looks]:<8} {cell.claim}"
    known = f"; but page {cell.page} {cell.known}" if cell.looks in ("wrong", "tainted") else ""
    return line + known + ("  <-- here" if cell.marked else "")


def _pages(frame: Frame, film: Film) -> list[str]:
    """Return the pages that the failure is about."""
    return [
        f"{INDENT}{name}, page {one.page} ({one.state}: {words.STATES[one.state]}): {one.known}"
        "  <-- here"
        for name, pages in zip(film.pools, frame.pools, strict=True)
        for one in pages
        if one.marked
    ]
