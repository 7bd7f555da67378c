"""The page of a run shows each failure where it is, says nothing that is not so, and runs no
text of a trace.
"""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from cachewitness._util.data import fixtures
from cachewitness.cli import invoke
from cachewitness.core import stored as history
from cachewitness.core import validate
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.safety import SafetyLaw
from cachewitness.core.driving import drive, judge
from cachewitness.core.events import (
    Answer,
    Answering,
    Cold,
    Group,
    Header,
    Publish,
    Read,
    Rules,
    Submitted,
)
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Finish, Preempt, Step, Submit, Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.report.html import frames, page
from cachewitness.report.html.cells import COLUMNS_MAX, Cell, claim_of
from cachewitness.report.html.compress import packed
from cachewitness.report.html.event_text import spoken
from cachewitness.report.html.frames import Film, Frame
from cachewitness.workloads import layouts
from suites.support.browser import CHROMIUM, seen

FAULT = "reference:mutant=hit-is-maximum-over-groups"
EVIL = '</script><img src=x onerror="document.title=1">'


def result_of(
    ops: list[object],
    engine: str = "reference",
    layout: str = "full-mamba",
    pages: int = 9,
    **options: object,
) -> Result:
    header = TraceHeader("told", layouts.load(layout), pages, options=options)
    return drive(Trace(header, ops), parse(engine).open(header))  # type: ignore[arg-type]


def replayed(engine: str = FAULT) -> Result:
    """Hit what the attention group alone can serve; in the recurrent group the block table has
    the null page.
    """
    return result_of(
        [
            Submit("b1", "doc:16"),
            Step([("b1", 16)]),
            Submit("c1", "doc:16 more:1"),
            Step([("c1", 1)]),
        ],
        engine,
        retention_interval=0,
    )


def filmed(result: Result) -> Film:
    return frames.film(
        result.history.header,
        result.history.events,
        result.findings[0] if result.findings else None,
    )


def cells(frame: Frame, r: str, group: int) -> list[Cell]:
    (row,) = [row for lane in frame.lanes if lane.r == r for row in lane.rows if row.group == group]
    return row.cells


def test_the_wrong_cell_is_marked_in_the_moment_before_it_is_read() -> None:
    result = replayed()
    assert isinstance(result.history.events[result.findings[0].seq], Read)
    film = filmed(result)
    (failing,) = [frame for frame in film.frames if frame.failing]
    assert failing.title == "step 2: c1 computes tokens [16, 17)"
    assert [(cell.page, cell.looks, cell.marked) for cell in cells(failing, "c1", 1)] == [
        (0, "wrong", True),
        (4, "not-yet", False),
    ]
    assert cells(failing, "c1", 1)[0].claim == "the state after 16 tokens of c1"
    assert [(cell.looks, cell.marked) for cell in cells(failing, "c1", 0)] == [
        ("right", False),
        ("not-yet", False),
    ]


def test_what_is_computed_from_something_wrong_is_not_called_right() -> None:
    last = filmed(replayed()).frames[-1]
    assert [cell.looks for cell in cells(last, "c1", 0)] == ["right", "tainted"]


def test_a_clean_history_has_no_wrong_cell_and_no_mark() -> None:
    film = filmed(replayed("reference"))
    every = [
        cell
        for frame in film.frames
        for lane in frame.lanes
        for row in lane.rows
        for cell in row.cells
    ]
    assert {cell.looks for cell in every} <= {"right", "not-yet", "left", "null"} and "right" in {
        cell.looks for cell in every
    }
    assert not any(cell.marked for cell in every) and not any(
        frame.failing for frame in film.frames
    )


def test_columns_that_left_the_window_are_not_called_wrong() -> None:
    result = result_of(
        [Submit("r1", "A:80"), Step([("r1", 64)]), Step([("r1", 16)])], layout="full-swa", pages=33
    )
    assert result.findings == []
    looks = [cell.looks for cell in cells(filmed(result).frames[-1], "r1", 1)]
    assert (
        looks[-2:] == ["right", "right"]
        and set(looks[:2]) <= {"left", "null"}
        and "wrong" not in looks
    )


def test_columns_between_a_prompt_and_the_window_over_its_answer_are_not_read() -> None:
    """Blocks of 4 tokens, a prompt of 5, and 15 tokens so far: a window of 4 reads from 12 on."""
    group = Group(0, "full", 4, answer_window=4)
    claims = [claim_of(group, "r", column, 15, 5)[1] for column in range(4)]
    assert claims == [(0, 4), (4, 5), None, (12, 15)]


def test_pages_are_told_by_what_the_ledger_knows_of_them() -> None:
    """A page that a request wrote and keyed is committed, idle when it has finished, and free
    when nobody ever came.
    """
    result = result_of([Submit("r1", "A:17"), Step([("r1", 17)]), Finish("r1")], layout="full")
    film = filmed(result)
    states = [{one.page: one.state for one in frame.pools[0]} for frame in film.frames]
    assert states[-2][1] == "committed" and states[-1] == {1: "idle", 2: "free"}
    assert "keys: the first 16 tokens of r1 (committed)" in film.frames[-1].pools[0][0].known


def test_a_preempted_request_is_told_once_and_has_no_table() -> None:
    film = filmed(
        result_of(
            [
                Submit("r1", "A:20"),
                Step([("r1", 20)]),
                Preempt("r1"),
                Submit("r2", "B:4"),
                Step([("r2", 4)]),
            ]
        )
    )
    (at,) = [index for index, frame in enumerate(film.frames) if frame.title == "r1 was preempted"]
    assert [(lane.r, lane.rows) for lane in film.frames[at].lanes] == [("r1", [])]
    assert "r1" not in {lane.r for lane in film.frames[at + 1].lanes}


def test_a_failing_key_is_marked_in_its_pool() -> None:
    result = result_of(
        [Submit("r1", "A:40"), Step([("r1", 40)])],
        "reference:mutant=null-block-published",
        retention_interval=None,
    )
    event = result.history.events[result.findings[0].seq]
    assert isinstance(event, Publish)
    assert any(frame.failing for frame in filmed(result).frames)


def test_long_histories_and_rows_are_cut_around_the_failure_and_say_so() -> None:
    steps = [Step([("r1", 1)]) for _ in range(frames.FRAMES_MAX)]
    film = filmed(
        result_of([Submit("r1", "A:1000"), Step([("r1", 1000)]), *steps], layout="full", pages=200)
    )
    assert len(film.frames) == frames.FRAMES_MAX and film.left_out > 0
    row = cells(film.frames[-1], "r1", 0)
    (fold,) = [cell for cell in row if cell.looks == "fold"]
    hidden = int(fold.claim.split()[0])
    assert len(row) <= COLUMNS_MAX + 1 and len(row) - 1 + hidden == -(-1240 // 16)


def test_what_frames_have_alike_stands_in_the_page_once() -> None:
    """Unpacked it is the film again; packed it is less than a tenth of its size."""
    steps = [Step([(f"r{n}", 1) for n in range(8)]) for _ in range(60)]
    begun = [op for n in range(8) for op in (Submit(f"r{n}", f"d{n}:320"), Step([(f"r{n}", 320)]))]
    film = filmed(result_of([*begun, *steps], layout="full", pages=300))
    small = packed(film)
    for frame, own in zip(film.frames, small["frames"], strict=True):
        numbered = [
            [r, doing, [small["rows"][row] for row in rows]] for r, doing, rows in own["lanes"]
        ]
        lanes = [
            [r, doing, [[group, [small["cells"][n] for n in cells]] for group, cells in rows]]
            for r, doing, rows in numbered
        ]
        assert lanes == [
            [lane.r, lane.doing, [[row.group, row.cells] for row in lane.rows]]
            for lane in frame.lanes
        ]
        assert [[small["pages"][page] for page in pool] for pool in own["pools"]] == frame.pools
        assert (own["title"], own["failing"]) == (frame.title, frame.failing)
    assert 10 * len(msgspec.json.encode(small)) < len(msgspec.json.encode(film))


def test_only_the_moments_that_are_shown_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those that a look at all of them has at the same places."""
    result = replayed()
    whole = filmed(result)
    monkeypatch.setattr(frames, "FRAMES_MAX", 3)
    part = filmed(result)
    (at,) = [index for index, frame in enumerate(whole.frames) if frame.failing]
    assert part.frames == whole.frames[at - 2 : at + 1] and part.left_out == len(whole.frames) - 3
    assert part.samples == whole.samples and part.hits == whole.hits


def test_charts_count_as_the_ledger_does() -> None:
    film = filmed(
        result_of(
            [Submit("r1", "A:32"), Step([("r1", 32)]), Submit("r2", "A:32 B:1"), Step([("r2", 1)])],
            layout="full",
        )
    )
    assert [sample.pools for sample in film.samples] == [
        [(2, 0, 8)],
        [(3, 0, 8)],
    ] and film.hits == [(1, "r1", 0), (2, "r2", 32)]
    (chart,) = page.charts.occupancy(film)
    assert (
        "pool 0: of 8 pages at most 3 held by requests, 3 with those kept for their keys" in chart
    )
    assert "1 of 2 look-ups found something, at most 32 tokens" in page.charts.hits(film)


# --- the page -------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """What elements a page has, and what texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run") / "report"
    arguments = [
        "--engine",
        FAULT,
        "--layout",
        "full-mamba",
        "--suite",
        "invariants",
        "--fail-fast",
        "--quiet",
    ]
    assert invoke(["run", *arguments, "--report", str(made)]) == 1
    return made


def test_a_run_with_a_report_has_a_page_that_shows_its_failure(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    shown = Elements(text)
    report = json.loads((folder / "report.json").read_bytes())
    failure, *_ = [failure for suite in report["suites"] for failure in suite["failures"]]
    assert "FAIL (exit code 1)" in re.sub(r"\s+", " ", shown.text)
    # The folder may be moved: the command names it once, in front.
    name = Path(failure["stored"]["trace"]).name
    command = f'DIR={folder}; cachewitness replay "$DIR"/failures/{name} --engine {FAULT}'
    assert command in shown.text
    assert " ".join(failure["sentence"].split()) in " ".join(shown.text.split())
    assert failure["line"] and failure["line"] in shown.text
    (film,) = [
        json.loads(one)
        for one in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    ]
    rows = [
        film["rows"][row]
        for frame in film["frames"]
        for _, _, rows in frame["lanes"]
        for row in rows
    ]
    marked = [
        film["cells"][cell]
        for _, cells in rows
        for cell in cells
        if film["cells"][cell].get("marked")
    ]
    assert [cell["looks"] for cell in marked] == ["wrong"]
    assert "//" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL), (
        "the page asks the network for nothing"
    )


def test_the_page_of_a_run_that_passes_says_so_and_what_was_not_run(tmp_path: Path) -> None:
    assert invoke(
        ["run", "--layout", "full", "--suite", "invariants", "--quiet", "--report", str(tmp_path)]
    ) in (0, 5)
    text = " ".join(Elements((tmp_path / "report.html").read_text()).text.split())
    assert (
        "No trace of this run contradicts a rule." in text
        and "Not run:" in text
        and "FAIL" not in text
    )


def test_a_page_that_cannot_be_drawn_takes_the_verdict_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said in a line, the report is whole, and a run that passes has not delivered what
    was asked for.
    """
    monkeypatch.setattr(page, "of_run", lambda document, folder: {}["no"])
    arguments = [
        "run",
        "--layout",
        "full-mamba",
        "--suite",
        "invariants",
        "--quiet",
        "--report",
        str(tmp_path),
    ]
    assert invoke([*arguments, "--engine", FAULT, "--fail-fast"]) == 1
    assert json.loads((tmp_path / "report.json").read_bytes())["exit_code"] == 1
    assert "report.html: cannot be drawn: KeyError: 'no'" in capsys.readouterr().err
    assert invoke(arguments) == 4


def test_a_history_has_a_page_as_well(tmp_path: Path) -> None:
    history.save(replayed().history, tmp_path / "some.jsonl")
    assert (
        invoke(["report", str(tmp_path / "some.jsonl"), "--out", str(tmp_path / "page.html")]) == 0
    )
    assert "group-misalignment" in (tmp_path / "page.html").read_text()


def test_the_page_of_a_history_passes_only_what_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a history in which nothing happened, and of one whose checker crashed, it says what
    `check` says.
    """
    history.save(result_of([]).history, tmp_path / "idle.jsonl")
    history.save(replayed("reference").history, tmp_path / "some.jsonl")

    def crash(*_: object) -> None:
        raise RuntimeError("boom")

    for name, code, word, patched in (
        ("idle", 5, "nothing checked", False),
        ("some", 2, "unknown", True),
    ):
        if patched:
            monkeypatch.setattr(SafetyLaw, "on_read", crash)
        assert invoke(["check", str(tmp_path / f"{name}.jsonl"), "--quiet"]) == code
        assert (
            invoke(
                ["report", str(tmp_path / f"{name}.jsonl"), "--out", str(tmp_path / "page.html")]
            )
            == 0
        )
        text = " ".join(Elements((tmp_path / "page.html").read_text()).text.split())
        assert (
            f"{word} (exit code {code})" in text
            and ("Not judged: safety-law: RuntimeError: boom" in text) == patched
        )


def test_failures_that_are_expected_are_not_called_none(folder: Path, tmp_path: Path) -> None:
    report = json.loads((folder / "report.json").read_bytes())
    for suite in report["suites"]:
        for failure in suite["failures"]:
            failure["expected"] = "a reason"
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert invoke(["report", str(tmp_path)]) == 0
    text = Elements((tmp_path / "report.html").read_text()).text
    assert (
        "No trace of this run contradicts" not in text
        and "What failed is listed as expected." in text
    )


def test_expected_findings_are_no_failures_and_an_empty_suite_did_not_pass(
    folder: Path, tmp_path: Path
) -> None:
    """The page counts as the text does: 1 further failure of 2, and a known one beside them."""
    report = json.loads((folder / "report.json").read_bytes())
    suite, *_ = report["suites"]
    first, *_ = suite["failures"]
    known = first | {"id": "invariants:known@full", "expected": "a reason"}
    suite["failures"] = [first, known, first | {"id": "invariants:other@full"}]
    empty = suite | {"name": "differential-scheduler", "traces": 0, "failures": []}
    report["suites"] = [suite, empty | {"verdict": "pass"}]
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert invoke(["report", str(tmp_path)]) == 0
    text = " ".join(Elements((tmp_path / "report.html").read_text()).text.split())
    assert "1 further failure anomaly" in text and "1 expected by a list" in text
    assert re.search(r"failuresexpected invariantsfail\d+21 ", text)
    assert "differential-schedulernot run0" in text


def test_what_was_stopped_or_not_judged_is_on_the_page(folder: Path, tmp_path: Path) -> None:
    report = json.loads((folder / "report.json").read_bytes())
    report["suites"][0] |= {
        "crashed": ["reuse: boom"],
        "bad_events": ["trace t: no page 9"],
        "failures": [],
    }
    report["exit_code"] = 4
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert invoke(["report", str(tmp_path)]) == 0
    text = " ".join(Elements((tmp_path / "report.html").read_text()).text.split())
    assert "Not judged: invariants: checker reuse: boom; invariants: trace t: no page 9" in text
    assert "No trace of this run contradicts" not in text


def test_a_failure_found_at_the_end_has_its_moment() -> None:
    """A history whose finding belongs to no event is told to fail where it ends."""
    result = replayed("reference")
    film = frames.film(
        result.history.header, result.history.events, Finding(anomaly="leak", sentence="s", seq=-1)
    )
    assert [frame.failing for frame in film.frames] == [False] * (len(film.frames) - 1) + [True]


def test_what_fails_as_a_step_begins_has_a_moment_of_its_own() -> None:
    """With steps in flight one ends in front of it, in the operation before: that is another
    moment, and of another operation.
    """
    path = fixtures() / "histories" / "anomalous" / "state-read-in-flight.jsonl"
    header, read = validate.events(path)
    events = [*read]
    finding = judge(header, iter(events)).findings[0]
    film = frames.film(header, events, finding)
    (failing,) = [frame for frame in film.frames if frame.failing]
    begun = events[finding.seq]
    assert failing.title == f"step {begun.step} is scheduled"
    before = film.frames[film.frames.index(failing) - 1]
    assert "has ended" in before.title and before.seq < failing.seq <= finding.seq


def test_what_a_history_names_is_text_on_the_page(tmp_path: Path) -> None:
    result = result_of(
        [
            Submit(EVIL, "A:16", salt=EVIL),
            Step([(EVIL, 16)]),
            Submit("r2", "A:16 B:4", salt=EVIL),
            Step([("r2", 4)]),
        ],
        FAULT,
    )
    text = page.of_history(result.history.header, result.history.events, EVIL, result).decode()
    shown = Elements(text)
    assert "img" not in shown.tags and shown.tags.count("script") == 2 and EVIL in shown.text


def test_a_report_names_no_file_outside_its_folder(folder: Path, tmp_path: Path) -> None:
    """Of a stored path only the name counts."""
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    outside = tmp_path / "outside.trace.jsonl"
    report = json.loads((copied / "report.json").read_bytes())
    stored = next(failure["stored"] for suite in report["suites"] for failure in suite["failures"])
    shutil.copy(stored["trace"], outside)
    stored["trace"] = str(outside)
    (copied / "report.json").write_text(json.dumps(report))
    assert invoke(["report", str(copied)]) == 0
    assert "Not shown step by step:" in Elements((copied / "report.html").read_text()).text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{", "truncated"),
        ('{"suites": 3}', "at `$.suites`"),
        ("[" * 100_000, "report.json"),
        ('{"format": "cachewitness.score", "settings": {}}', "missing required field"),
        ('{"format": "cachewitness.run"}', "missing required field"),
    ],
)
def test_a_report_that_cannot_be_read_is_one_line(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    assert invoke(["report", str(tmp_path)]) == 4
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium, to see the page as a browser does")
def test_a_browser_shows_the_failing_moment_first(folder: Path, tmp_path: Path) -> None:
    """Without an error on its console, and with the wrong cell on the screen."""
    dom = seen(folder / "report.html", tmp_path / "profile")
    assert "(here it fails)" in dom and len(re.findall(r'class="cell wrong marked"', dom)) == 1
    assert re.search(r'class="detail"[^>]*>Here it fails. The block table says of page 0', dom)


BOX = """<script>addEventListener("load", () => {
  const box = document.querySelector(".cell.marked").getBoundingClientRect();
  document.title = JSON.stringify([box.left, innerWidth - box.right, box.top, innerHeight - box.bottom]);
});</script>"""  # noqa: E501


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium, to see the page as a browser does")
def test_a_browser_shows_the_wrong_cell_without_scrolling(tmp_path: Path) -> None:
    """Though it is the fortieth column of the last of nineteen requests."""
    others = [op for n in range(18) for op in (Submit(f"o{n}", f"d{n}:96"), Step([(f"o{n}", 96)]))]
    cached = [
        Submit("b1", "doc:640"),
        *[Step([("b1", 640)])] * 2,
        Submit("c1", "doc:640 more:1"),
        Step([("c1", 1)]),
    ]
    result = result_of([*others, *cached], FAULT, pages=400, retention_interval=0)
    shown = page.of_history(result.history.header, result.history.events, "wide", result).decode()
    (tmp_path / "wide.html").write_text(shown.replace("</body>", f"{BOX}</body>"))
    dom = seen(tmp_path / "wide.html", tmp_path / "profile", "--window-size=1280,800")
    (title,) = re.findall(r"<title>(\[.*?\])</title>", dom)
    assert all(distance >= 0 for distance in json.loads(title)), title


ANSWERS = [
    Submitted(r="a", tokens=[1, 2, 3], generate=3),
    Submitted(r="<b>", tokens=[1, 2], generate=2, seq=1),
    Answer(r="a", tokens=[7, 8, 9], logprobs=[-1.0, -2.0, -3.0], restored=2, seq=2),
    Cold(
        r="a",
        tokens=[7, 8, 9],
        logprobs=[-1.0, -2.25, -3.0],
        restored=0,
        tolerance=1e-6,
        ceiling=1e-3,
        seq=3,
    ),
    Answer(r="<b>", tokens=[5, 6], logprobs=[-1.0, -1.0], restored=0, seq=4),
    Cold(
        r="<b>",
        tokens=[4, 4],
        logprobs=[-1.0, -1.0],
        restored=0,
        tolerance=1e-6,
        ceiling=1e-3,
        seq=5,
    ),
    Cold(
        r="<b>",
        tokens=[6],
        logprobs=[-1.0],
        start=1,
        restored=0,
        tolerance=1e-6,
        ceiling=1e-3,
        seq=6,
    ),
]


def test_answers_stand_beside_the_cold_ones_and_what_differs_is_marked() -> None:
    """The second answer parts at a near tie, and goes on as the baseline does behind the engine's
    own token: nothing is marked.
    """
    rows, left_out = spoken(ANSWERS, Finding(anomaly="answer-differs", sentence="", r="a"))
    assert not left_out and [(row.r, row.restored, row.failing) for row in rows] == [
        ("a", "2", True),
        ("<b>", "0", False),
    ]
    assert [(token.answered, token.cold, token.differs) for token in rows[0].tokens] == [
        ("7 (-1)", "7 (-1)", False),
        ("8 (-2)", "8 (-2.25)", True),
        ("9 (-3)", "9 (-3)", False),
    ]
    assert [(token.answered, token.cold, token.differs) for token in rows[1].tokens] == [
        ("5 (-1)", "4 (-1)", False),
        ("6 (-1)", "6 (-1)", False),
    ]


def test_long_answers_are_cut_around_what_differs() -> None:
    many = list(range(100))
    answer = Answer(r="a", tokens=many)
    right = Cold(r="a", tokens=[*many[:60], 0, *many[61:]], tolerance=1e-6, ceiling=1e-3)
    events = [ANSWERS[0], answer, right]
    (row,), _ = spoken(events, None)
    assert len(row.tokens) + row.left_out == 100 and [
        token.at for token in row.tokens if token.differs
    ] == [61]


def test_the_page_of_answers_has_no_block_tables(tmp_path: Path) -> None:
    header = Header(
        engine="e",
        level="answers",
        pools=[],
        groups=[],
        rules=Rules(answering=Answering("float64", 99)),
    )
    text = page.of_history(header, ANSWERS, "answers", judge(header, iter(ANSWERS))).decode()
    assert "8 (-2) ✗" in text and "8 (-2.25)" in text and "&lt;b&gt;" in text
    assert "<b>" not in text and "Block tables: " not in text and "answer-differs" in text
