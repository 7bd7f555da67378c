"""The page over many runs, such as those of every night: what each came to, what changed since the
one before it, and lines of findings, operations and hit rates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from cachewitness._util import chart
from cachewitness.core.result import EXIT_FAIL, EXIT_PASS
from cachewitness.report import comparison, terminal
from cachewitness.report.html.page import rendered
from cachewitness.report.jsonreport import Document

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 150, 58, 8, 20, 22
"""Of a chart, in pixels, and the room around its lines."""
ROWS_MAX = 400
"""So many runs of an engine have a row, the newest first."""
Looks = Literal["pass", "fail", "other"]


class Night(NamedTuple):
    """One run: what it is called, its page if there is one, and its numbers. `rate` is the part of
    look-ups that hit, from 0 to 1, None without any; `speed` operations per second.

    `new` and `mended` count failures against the run before it, `less` has a line for each thing
    that one checked and this one did not; without a run before it there is nothing to say.
    """

    name: str
    page: str
    verdict: str
    looks: Looks
    code: int
    version: str
    failures: int
    expected: int
    operations: int
    rate: float | None
    speed: float | None
    new: list[str]
    mended: int
    less: list[str]


class Engine(NamedTuple):
    """The runs of one engine, the oldest first, and their charts."""

    name: str
    nights: list[Night]
    charts: list[str]


class Run(NamedTuple):
    """What a folder has of a run: its name, its page relative to the index (empty: none), and its
    report.
    """

    name: str
    page: str
    report: Document


def of_runs(
    runs: Iterator[Run], endless: Collection[str], unread: Sequence[str]
) -> tuple[bytes, int]:
    """Return the page of runs, which come the oldest first, and how many there were.

    `endless` are the suites of random traces, `unread` has a line for each file that could not be
    read, and may grow while the runs are taken. Of the reports only two are held at a time.
    """
    nights: dict[str, list[Night]] = {}
    before: dict[str, Document] = {}
    for run in runs:
        engine = f"{run.report.engine}, policy {run.report.policy}"
        nights.setdefault(engine, []).append(_night(run, before.get(engine), endless))
        before[engine] = run.report
    engines = [Engine(name, those, [*_charts(those)]) for name, those in nights.items()]
    count = sum(map(len, nights.values()))
    return rendered(
        "trend.html.j2",
        films=False,
        verdict=_verdict([those[-1] for those in nights.values()]),
        engines=engines,
        most=ROWS_MAX,
        count=count,
        unread=unread,
    ), count


def _verdict(last: list[Night]) -> tuple[str, int, str]:
    """Return what the newest run of each engine came to: the worst of them."""
    if not last:
        return "no run", 5, "nothing was read"
    worst = next((one for one in last if one.code == EXIT_FAIL), None) or next(
        (one for one in last if one.code != EXIT_PASS), last[0]
    )
    return worst.verdict, worst.code, f"the newest run, {worst.name}"


def _night(run: Run, before: Document | None, endless: Collection[str]) -> Night:
    report = run.report
    failures = [failure for suite in report.suites for failure in suite.failures]
    expected = sum(bool(failure.expected) for failure in failures)
    numbers = comparison.numbers(report.suites, report.seconds)
    changed = comparison.compare(before, report, ("", ""), endless) if before else None
    looks: dict[int, Looks] = {EXIT_PASS: "pass", EXIT_FAIL: "fail"}
    return Night(
        name=run.name,
        page=run.page,
        verdict=terminal.MEANINGS[report.exit_code][0],
        looks=looks.get(report.exit_code, "other"),
        code=report.exit_code,
        version=report.engine_version,
        failures=len(failures) - expected,
        expected=expected,
        operations=numbers.operations,
        rate=numbers.hit_rate,
        speed=numbers.operations_per_second,
        new=[f"{one.anomaly} {one.id}" for one in changed.new] if changed else [],
        mended=len(changed.mended) if changed else 0,
        less=changed.less if changed else [],
    )


# --- charts ---------------------------------------------------------------------------------------


def _charts(nights: Sequence[Night]) -> Iterator[str]:
    yield _chart("findings that no list expects", nights, lambda one: one.failures, _count)
    yield _chart("operations", nights, lambda one: one.operations, _count)
    yield _chart("look-ups that hit", nights, lambda one: one.rate, _percent, most=1.0)
    yield _chart("operations per second", nights, lambda one: one.speed, _count)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _chart(
    what: str,
    nights: Sequence[Night],
    value: Callable[[Night], float | None],
    shown: Callable[[float], str],
    most: float = 0.0,
) -> str:
    """Return a line with a dot for each run, whose colour is its verdict; it is broken where a run
    has no such number.
    """
    values = [value(night) for night in nights]
    top = most or max([1.0, *(one for one in values if one is not None)])
    pieces: list[list[chart.Point]] = [[]]
    dots = []
    for at, (night, one) in enumerate(zip(nights, values, strict=True)):
        if one is None:
            pieces.append([])
            continue
        place = (_x(at, len(nights)), _y(one / top))
        pieces[-1].append(place)
        words = f"{night.name}: {shown(one)} {what}, {night.verdict}"
        dots.append(
            chart.element(
                "circle", chart.title(words), class_=night.looks, cx=place[0], cy=place[1], r=4
            )
        )
    return chart.element(
        "svg",
        chart.text(LEFT, 13, what, "label"),
        *_axes(nights, shown(top), shown(0.0)),
        *(chart.polyline(piece, class_="trend") for piece in pieces if len(piece) > 1),
        *dots,
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{what}, in {len(nights)} runs from {nights[0].name} to {nights[-1].name}",
    )


def _axes(nights: Sequence[Night], top: str, bottom: str) -> list[str]:
    """Return the axes with their ends: the largest value and zero, the first run and the last."""
    floor = HEIGHT - BOTTOM
    end = WIDTH - RIGHT
    parts = [
        chart.line((LEFT, floor), (end, floor), "axis"),
        chart.line((LEFT, TOP), (LEFT, floor), "axis"),
        chart.text(LEFT - 6, TOP + 8, top, "label", text_anchor="end"),
        chart.text(LEFT - 6, floor, bottom, "label", text_anchor="end"),
        chart.text(LEFT, HEIGHT - 6, _short(nights[0].name), "label"),
    ]
    if len(nights) > 1:
        last = _short(nights[-1].name)
        parts.append(chart.text(end, HEIGHT - 6, last, "label", text_anchor="end"))
    return parts


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"…{name[-23:]}"


def _x(at: int, count: int) -> float:
    room = WIDTH - LEFT - RIGHT - 12
    return LEFT + 6 + (room * at / (count - 1) if count > 1 else room / 2)


def _y(part: float) -> float:
    return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP - 4)
