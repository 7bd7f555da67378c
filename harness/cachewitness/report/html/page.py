"""The page of a run, or of one history: one HTML file with everything in it."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from cachewitness._util.errors import UsageError
from cachewitness.core import validate
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import judge
from cachewitness.core.events import Event, Header
from cachewitness.core.result import Result, exit_code
from cachewitness.core.trace_format import Trace
from cachewitness.report import jsonreport, terminal
from cachewitness.report.counterexample import caused, compact, describe
from cachewitness.report.html import charts, words
from cachewitness.report.html.compress import packed
from cachewitness.report.html.event_text import Spoken, spoken
from cachewitness.report.html.frames import Film, film
from cachewitness.report.html.life import Life, LifeEvent, Place
from cachewitness.report.html.links import links, moment_of, moments_of, operations_of
from cachewitness.report.html.lives import lives
from cachewitness.report.html.sheet import Sheet, sheet
from cachewitness.report.summary import Stored

HERE = Path(__file__).parent
FILMS_MAX = 12
"""Failures that are shown step by step; the others are listed."""
SHORT_MAX = 300
"""Letters of a text in a list."""
LIVES_MAX = 64
"""Pages whose lives are in the page of a failure."""


class Picture(msgspec.Struct, dict=True):
    """One failure as the page shows it: what is said of it, its trace, and its history step by
    step. `folder` is what stands for `$DIR` in `replay`, empty if that does not stand there.
    """

    id: str
    anomaly: str
    checker: str
    rule: str
    implies: str
    sentence: str
    line: str = ""
    replay: str = ""
    folder: str = ""
    trace: str = ""
    operations: list[str] = []
    operation: int = 0
    why: str = ""
    cause: str = ""
    film: Film | None = None
    starts: list[int] = []
    lives: list[Life] = []
    sheet: Sheet | None = None
    spoken: list[Spoken] = []
    unspoken: int = 0
    charts: list[str] = []

    @property
    def at_fault(self) -> list[Life]:
        """The lives in which the cause is, or the failure."""
        return [life for life in self.lives if any(event.mark for event in life.events)]

    @property
    def began(self) -> tuple[Life, LifeEvent] | None:
        """The cause, where it is not what the finding says, and the life that it is in."""
        found = [(life, life.began) for life in self.lives]
        return next(((life, event) for life, event in found if event), None)

    @cached_property
    def links(self) -> list[str]:
        """The names of the moments, in order."""
        return links(self.film) if self.film else []

    @cached_property
    def operation_links(self) -> list[str]:
        """By operation the name of its moment; empty where it has none."""
        if self.film is None:
            return [""] * len(self.operations)
        by_moment = operations_of(self.film, self.starts)
        moments = moments_of(self.film, by_moment, len(self.operations))
        return [self.links[index] if index >= 0 else "" for index in moments]

    def link_of(self, seq: int) -> str:
        """Return the name of the moment of an event; empty if it is not shown."""
        index = moment_of(self.film, seq) if self.film else -1
        return self.links[index] if index >= 0 else ""


def of_run(document: jsonreport.Document, folder: Path) -> bytes:
    """Return the page of a run. `folder` has what was stored of its failures, by the names alone
    that the document gives.
    """
    failures = [failure for suite in document.suites for failure in suite.failures]
    first: dict[str, jsonreport.FailureEntry] = {}
    for failure in failures:
        if not failure.expected:
            first.setdefault(failure.anomaly, failure)
    shown = list(first.values())[:FILMS_MAX]
    pictures = [_picture(failure, folder) for failure in shown]
    listed = [failure for failure in failures if failure.expected]
    others = [
        failure
        for failure in failures
        if not failure.expected and not any(failure is one for one in shown)
    ]
    crashed = [
        f"{suite.name}: checker {line}" for suite in document.suites for line in suite.crashed
    ]
    stopped = [f"{suite.name}: {line}" for suite in document.suites for line in suite.bad_events]
    left = [f"{suite.name}: {line}" for suite in document.suites for line in suite.open]
    still_open = [*crashed, *left, *stopped, *document.broken_list]
    return _render(
        document=document,
        pictures=pictures,
        others=others,
        listed=listed,
        verdict=verdict(document.exit_code),
        open=still_open,
    )


def of_history(
    header: Header,
    events: list[Event],
    name: str,
    result: Result,
    weighed: tuple[int, str] | None = None,
) -> bytes:
    """Return the page of a recorded history and of what was found in it.

    `weighed` is the exit code by a list of expected failures, and what the list says.
    """
    finding = result.findings[0] if result.findings else None
    shown = finding or Finding(anomaly="", sentence="No checker finds anything in this history.")
    left = [
        f"{tally.checker}: {tally.crashed or tally.open}"
        for tally in result.tallies
        if tally.unjudged
    ]
    picture = _describe(shown, name)
    _show(picture, header, events, finding)
    code, picture.why = weighed or (exit_code(result), "")
    return _render(
        document=None,
        pictures=[picture],
        others=[],
        listed=[],
        verdict=verdict(code),
        open=left,
    )


def verdict(code: int) -> tuple[str, int, str]:
    """Return a verdict in a word, its exit code, and what it means."""
    word, _, meaning = terminal.MEANINGS[code]
    return word, code, meaning


def _describe(finding: Finding, name: str) -> Picture:
    anomaly = BY_NAME.get(finding.anomaly)
    rule, implies = (anomaly.invariant, anomaly.implies) if anomaly else ("", "")
    picture = Picture(name, finding.anomaly, finding.checker, rule, implies, finding.sentence)
    picture.line = finding.line
    return picture


def _picture(failure: jsonreport.FailureEntry, folder: Path) -> Picture:
    """Return a failure of a run, with its trace and history if they are stored and can be read."""
    picture = Picture(
        failure.id,
        failure.anomaly,
        failure.checker,
        failure.rule,
        failure.implies,
        failure.sentence,
    )
    picture.line = failure.line
    picture.operation = failure.operation
    picture.cause = caused(failure.cause)
    return filmed(picture, failure.stored, folder)


def filmed(picture: Picture, stored: Stored | None, folder: Path) -> Picture:
    """Add the trace and the history of a failure to its picture, or why they are not there."""
    if stored is None:
        picture.why = "its trace was not stored"
        return picture
    picture.replay = stored.portable
    picture.folder = str(folder.parent) if picture.replay != stored.replay else ""
    picture.starts = stored.starts
    try:
        trace: Trace = validate.load_trace(folder / Path(stored.trace).name)
        picture.trace = describe(trace)
        picture.operations = [compact(op) for op in trace.ops]
        if not stored.history:
            picture.why = "its history was not stored"
            return picture
        header, read = validate.events(folder / Path(stored.history).name)
        events = [*read]
        found = judge(header, iter(events)).findings
        alike = [one for one in found if one.anomaly == picture.anomaly] or found
        if not alike:
            picture.why = (
                "its history alone shows no contradiction: what was found needs more than the"
                " history"
            )
        _show(picture, header, events, alike[0] if alike else None)
    except UsageError as error:
        picture.why = str(error)
    return picture


def _show(picture: Picture, header: Header, events: list[Event], finding: Finding | None) -> None:
    if header.level == "answers":
        picture.spoken, picture.unspoken = spoken(events, finding)
        return
    picture.film = film(header, events, finding)
    picture.lives = lives(header, events, finding, _pages_of_interest(header, picture.film))
    picture.sheet = sheet(events, finding)
    picture.charts = [*charts.occupancy(picture.film), charts.hits(picture.film)]


def _pages_of_interest(header: Header, shown: Film) -> list[Place]:
    """Return the pages whose lives the page has: those of the moment of the failure, or of the last
    one, first those in block tables.
    """
    failing = [frame for frame in shown.frames if frame.failing] or shown.frames[-1:]
    rows = [row for frame in failing for lane in frame.lanes for row in lane.rows]
    pools = {group.id: group.pool for group in header.groups}
    tables = [(pools[row.group], cell.page) for row in rows for cell in row.cells]
    every = [
        (pool.id, one.page)
        for frame in failing
        for pool, pages in zip(header.pools, frame.pools, strict=True)
        for one in pages
    ]
    return [*dict.fromkeys(place for place in (*tables, *every) if place[1] >= 0)][:LIVES_MAX]


def _played(picture: Picture) -> dict[str, Any]:
    """Return what the script of a page needs of a picture: its film, and where things are in it."""
    assert picture.film is not None
    began = picture.began
    return packed(picture.film) | {
        "links": picture.links,
        "operations": operations_of(picture.film, picture.starts),
        "cause": moment_of(picture.film, began[1].seq) if began else -1,
        "states": words.STATES,
        "lives": [
            {
                "pool": life.pool,
                "page": life.page,
                "title": life.title,
                "left_out": life.left_out,
                "events": [
                    [moment_of(picture.film, one.seq), one.step, one.until, one.text, one.mark]
                    for one in life.events
                ],
            }
            for life in picture.lives
        ],
    }


def _render(**values: object) -> bytes:
    return rendered("page.html.j2", films=True, **values)


def rendered(template: str, *, films: bool, **values: object) -> bytes:
    """Return a page of this folder's template, with the style of all pages and, for `films`, what
    plays them.

    Every text in it is escaped. `verdict` is a word, the exit code, and what it means.
    """
    from cachewitness import __version__

    common = {
        "style": _part("page.css"),
        "script": _part("page.js") if films else "",
        "made_by": __version__,
    }
    return str(_environment().get_template(template).render(**values, **common)).encode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = lambda picture: _data(_played(picture))
    environment.filters["svg"] = lambda parts: Markup(
        "\n".join(parts)
    )  # made by `charts`, which escapes what it is given
    environment.filters["quoted"] = quote
    environment.filters["short"] = lambda text: (
        text if len(text) <= SHORT_MAX else f"{text[:SHORT_MAX]} …"
    )
    environment.filters["thousands"] = lambda number: (
        f"{number:,}" if isinstance(number, int) else f"{number:,.0f}"
    )
    return environment


def _part(name: str) -> Markup:
    return Markup((HERE / name).read_text(encoding="utf-8"))  # this package's own


def _data(value: Any) -> Markup:
    """Return a value as JSON that may stand inside a script element: no text in it ends that
    element.
    """
    text = msgspec.json.encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
