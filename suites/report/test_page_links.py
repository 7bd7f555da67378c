"""On the page of a failure the operations, the slider, the links and the sheet say the same moment,
and it says much without a script.
"""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.data import fault_traces
from cachewitness.cli import invoke
from cachewitness.core import validate
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import drive, judge
from cachewitness.core.events import Event, Run, StepBegin, Submitted
from cachewitness.engines.registry import parse as engine
from cachewitness.report.html import page, words
from cachewitness.report.html.page import Picture
from cachewitness.report.html.sheet import BEHIND_MAX, REQUESTS_MAX, STEPS_MAX, sheet
from cachewitness.report.summary import Stored
from cachewitness.workloads.notation import parse
from suites.support.browser import CHROMIUM, seen

FAULT = "hit-is-maximum-over-groups"
TRACE = fault_traces() / f"{FAULT}.jsonl"
ENGINE = f"reference:mutant={FAULT}"
HISTORY = """
pool 0: 9 pages, null 0
group 0: full block 4
rules: alignment 4
submit r1 a:5
acquire r1 | 1 2
publish 0/1 r1:4
step 1: r1 0..5 | 1 2
submit r2 a:4 b:1
hit r2 4 | 1
acquire r2 | 1 3
step 2: r2 4..5 | 1 3
finish r1
release r1
"""


class Places(HTMLParser):
    """The names on a page, and the links to them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.names += [found["id"]] if "id" in found else []
        self.links += [found["href"].removeprefix("#")] if "href" in found else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("replayed") / "report"
    arguments = ["replay", str(TRACE), "--engine", ENGINE, "--quiet", "--report", str(made)]
    assert invoke(arguments) == 1
    return made


def films(text: str) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(one) for one in found]


def test_every_operation_leads_to_a_moment_that_it_brought_about(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    (film,) = films(text)
    (listed,) = re.findall(r'<ol class="trace mono".*?>(.*?)</ol>', text)
    links = re.findall(r'<a href="#(.*?)">', listed)
    assert len(links) == len(validate.load_trace(TRACE).ops) == listed.count("<li")
    moments = [film["links"].index(link) for link in links]
    assert [film["operations"][moment] for moment in moments] == [0, 1, 2, 3]
    titles = [film["frames"][moment]["title"] for moment in moments]
    assert titles[0].startswith("b1 is submitted") and titles[3].startswith("step 2: c1 computes")
    assert film["operations"] == sorted(film["operations"])


def test_links_lead_to_moments_and_names_stand_once(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    (film,) = films(text)
    places = Places(text)
    assert set(places.links) <= {*film["links"]} and "step-2" in places.links
    assert len({*places.names}) == len(places.names)
    # Where no script runs, a link to a step leads to its column of the sheet.
    assert {"step-1", "step-2"} <= {*places.names}
    assert film["frames"][film["cause"]]["title"] == "c1 finds 16 tokens cached"


def test_two_failures_on_a_page_have_names_of_their_own(folder: Path) -> None:
    stored = json.loads((folder / "report.json").read_text())["suites"][0]["failures"][0]["stored"]
    pictures = [
        page.filmed(
            Picture(name, "group-misalignment", "c", "", "", "s"),
            Stored(**stored),
            folder / "failures",
        )
        for name in ("first", "second")
    ]
    text = page.rendered(
        "page.html.j2",
        films=True,
        document=None,
        pictures=pictures,
        others=[],
        listed=[],
        verdict=page.verdict(1),
        open=[],
    ).decode()
    places = Places(text)
    assert len({*places.names}) == len(places.names)
    assert {"step-2", "failure-2-step-2"} <= {*places.names}
    assert {"step-2", "failure-2-step-2"} <= {*places.links}


def test_the_sheet_has_every_request_in_every_step() -> None:
    history = parse(HISTORY)
    shown = sheet(history.events, None)
    assert shown.steps == [1, 2, 3]
    entries = {row.r: [[entry.words for entry in cell] for cell in row.cells] for row in shown.rows}
    assert entries == {
        "r1": [["submitted, 5", "[0, 5)"], [], ["finished"]],
        "r2": [[], ["submitted, 5", "hit 4", "[4, 5)"], []],
    }
    assert shown.left_out == (0, 0)


def test_a_long_sheet_is_cut_around_the_failure_and_says_so() -> None:
    """The failing request is in it, though it came first."""
    events: list[Event] = [Submitted(r="first", tokens=[1])]
    for step in range(2 * STEPS_MAX):
        runs = [Run("first", step, step + 1, []), Run(f"r{step}", 0, 1, [])]
        events += [StepBegin(step=step, seq=step + 1, runs=runs)]
    finding = Finding(anomaly="a", sentence="s", r="first", seq=STEPS_MAX + 20)
    shown = sheet(events, finding)
    failing = STEPS_MAX + 19
    assert (shown.step, shown.r) == (failing, "first")
    assert shown.steps == [*range(failing + BEHIND_MAX + 1 - STEPS_MAX, failing + BEHIND_MAX + 1)]
    assert shown.rows[0].r == "first" and len(shown.rows) == REQUESTS_MAX + 1
    assert shown.left_out == (STEPS_MAX, 2 * STEPS_MAX - REQUESTS_MAX)


def test_what_was_not_run_is_folded_with_its_count(folder: Path, tmp_path: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    report["not_run"] = [
        {"what": f"layout l{n}", "why": "no group of it fits", "count": 3} for n in range(5)
    ]
    for kept, folded in ((5, True), (2, False)):
        report["not_run"] = report["not_run"][:kept]
        (tmp_path / "report.json").write_text(json.dumps(report))
        assert invoke(["report", str(tmp_path)]) == 0
        text = (tmp_path / "report.html").read_text()
        assert ("<summary><strong>Not run:</strong> 5 items</summary>" in text) == folded
        assert ("no group of it fits: layout l0 × 3, layout l1 × 3" in text) == folded


def test_what_a_state_of_a_page_means_is_said_with_it(folder: Path) -> None:
    (film,) = films((folder / "report.html").read_text())
    assert film["states"]["poisoned"] == "held, and not written since it was acquired"
    assert {one["state"] for one in film["pages"]} <= {*film["states"]} == {*words.STATES}


def test_a_history_knows_where_its_operations_begin() -> None:
    trace = validate.load_trace(TRACE)
    history = drive(trace, engine(ENGINE).open(trace.header)).history
    starts = history.starts(len(trace.ops))
    assert len(starts) == len(trace.ops) and starts[0] == 0
    assert [history.op_of[start] for start in starts] == [0, 1, 2, 3]
    assert history.starts(6)[4:] == [len(history.events)] * 2
    assert judge(history.header, iter(history.events)).findings


ACTS = """<script>addEventListener("load", () => {
  const film = document.querySelector(".film"), slider = film.querySelector("input");
  const current = (where) => [...film.querySelectorAll(where + " [aria-current]")].map((one) => one.textContent);
  const state = () => [location.hash, current(".trace")[0], film.querySelector(".moment").textContent.split(":")[0], current(".sheet")[0] || ""];
  const all = [state()];
  slider.value = 1; slider.dispatchEvent(new Event("input")); all.push(state());
  film.querySelector(".trace a").click(); all.push(state());
  film.querySelector(".caused").click(); all.push(state());
  film.querySelector(".pool li").click(); all.push(film.querySelector(".picked").textContent);
  document.title = JSON.stringify(all);
});</script>"""  # noqa: E501


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium, to see the page as a browser does")
def test_a_browser_moves_the_operations_and_the_address_with_the_slider(
    folder: Path, tmp_path: Path
) -> None:
    shown = tmp_path / "page.html"
    text = (folder / "report.html").read_text()
    shown.write_text(text.replace("</body>", f"{ACTS}</body>"))
    dom = seen(shown, tmp_path / "profile", fragment="step-1")
    (title,) = re.findall(r"<title>(\[.*?\])</title>", dom)
    *states, life = json.loads(html.unescape(title))
    assert states == [
        ["#step-1", "step b1+16", "operation 2 · step 1", "step 1"],
        ["#moment-2", "step b1+16", "operation 2 · b1 finds nothing cached link", ""],
        ["#moment-1", "submit b1  doc1:16", "operation 1 · b1 is submitted", ""],
        ["#moment-6", "step c1+1", "operation 4 · c1 finds 16 tokens cached link", ""],
    ]
    assert life.startswith("Life of page 1") and "written by b1: tokens [0, 16)" in life
