"""docs/results/findings.md is what the register of findings makes, and the register names every
file of its folder.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks import findings
from benchmarks.trace_picture import SHOWN_MAX, drawn
from cachewitness._util import pages
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.trace_format import Step, Submit, Trace, TraceHeader, load
from cachewitness.workloads.layouts import load as layout

FOUND = findings.register()
DOCS = pages.folder()
RESULTS = pages.folder("results")
SVG = "{http://www.w3.org/2000/svg}"


def test_the_page_and_its_pictures_are_fresh() -> None:
    """If not: `python -m benchmarks.findings`."""
    assert (RESULTS / "findings.md").read_text(encoding="utf-8") == findings.page()
    drawn_now = findings.pictures()
    assert {
        path.name: path.read_text(encoding="utf-8") for path in (RESULTS / "findings").iterdir()
    } == drawn_now


def test_every_file_of_the_folder_is_in_the_register_and_the_other_way_round() -> None:
    named = {
        name
        for one in FOUND
        for name in (one.trace, *one.alone)
        if name and not name.startswith("../")
    }
    assert named == {
        path.name for path in findings.folder().iterdir() if path.suffix in (".jsonl", ".py")
    }
    assert all((findings.folder() / one.trace).is_file() for one in FOUND if one.trace)
    assert len({one.name for one in FOUND}) == len(FOUND)


@pytest.mark.parametrize("one", FOUND, ids=lambda one: one.anchor)
def test_a_finding_can_be_seen_again(one: findings.Finding) -> None:
    """It has a trace, or a program; its anomaly is one; the operation at which it shows is in
    its trace.
    """
    assert one.trace or one.alone
    assert one.anomaly in BY_NAME
    assert 0 <= one.shows <= (len(load(findings.folder() / one.trace).ops) if one.trace else 0)


def test_what_stops_an_engine_is_told_in_words_alone() -> None:
    """Neither a trace nor a program that ends software that is not ours, or has it wait for
    ever, lies here.
    """
    assert not [one.name for one in FOUND if one.anomaly in ("no-progress", "hung")]
    assert all(
        "raises" in one.happens or "Error" in one.happens
        for one in FOUND
        if one.anomaly == "engine-crashed"
    ), "it is told"
    stopped = findings.stopped()
    assert {one.anomaly for one in stopped} <= set(BY_NAME) and {
        "no-progress",
        "engine-crashed",
    } <= {one.anomaly for one in stopped}
    for one in stopped:
        assert not re.search(r"\.(jsonl|py|svg)\b|\[|Submit|Step\b", f"{one.what} {one.how}"), (
            one.what
        )
        page, _, heading = one.page.partition("#")
        headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert not heading or heading in [
            re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings
        ]


def test_a_public_report_is_a_link() -> None:
    one = next(one for one in FOUND if "vllm-project/vllm#57580" in one.report)
    assert (
        "[vllm-project/vllm#57580](https://github.com/vllm-project/vllm/issues/57580)"
        in one.reports
    )


def test_a_picture_has_a_bar_for_each_text_as_long_as_it_is() -> None:
    """Equal texts have one colour, others another; the marked line is where the finding shows;
    equal steps are one line.
    """
    ops = [Submit("a", "doc:32"), Step(), Step(), Submit("b", "doc:32 own:16", salt="<s>"), Step()]
    root = ElementTree.fromstring(drawn(Trace(TraceHeader("told", layout("full"), 9), ops), 4))
    rects = [
        (rect.get("class") or "", float(rect.get("width") or 0)) for rect in root.iter(f"{SVG}rect")
    ]
    bars = [(style, width) for style, width in rects if re.fullmatch(r"t\d+", style)]
    assert [style for style, _ in bars] == ["t0", "t0", "t1"]
    assert bars[0][1] == bars[1][1] == pytest.approx(2 * bars[2][1], abs=2)
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert "2–3" in texts and "salt <s>" in texts and "5" not in texts
    assert [style for style, _ in rects].count("here") == 1


def test_a_long_trace_is_folded() -> None:
    ops = [Submit(f"r{number}", "doc:16") for number in range(60)]
    picture = drawn(Trace(TraceHeader("told", layout("full"), 9), ops), 60)
    assert picture.count('class="t0"') == SHOWN_MAX and "… lines before: 36" in picture
