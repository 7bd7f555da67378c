"""The page of a score puts what changed side by side, marks where the answers part, and runs no
text of a model.
"""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness.cli import invoke
from cachewitness.parity.scores import page as score_page
from cachewitness.parity.scores.document import Document
from suites.support.score_reports import changed, report

EVIL = '</p><script>document.title=1</script><img src=x onerror="1">'


class Shown(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def drawn(tmp_path: Path) -> Any:
    """Return what draws a report and reads its page."""

    def draw(document: Document, code: int = 0, **fields: Any) -> Shown:
        (tmp_path / "report.json").write_text(json.dumps(msgspec.to_builtins(document) | fields))
        assert invoke(["report", str(tmp_path)]) == code
        return Shown((tmp_path / "report.html").read_text(encoding="utf-8") if code == 0 else "")

    return draw


def test_lost_and_gained_answers_stand_beside_the_cold_ones(drawn: Any) -> None:
    page = drawn(report([changed(), changed("gained", question="And 2 + 2?")]))
    assert "FAIL (exit code 1)" in page.text and "hit: 1 of 16 answers differ" in page.text
    assert (
        "lost in arm hit: What is 3 + 4?" in page.text
        and "gained in arm hit: And 2 + 2?" in page.text
    )
    assert (
        page.tags.count("mark") == 4
        and "75.0 %" in page.text
        and "restored of full 512" in page.text
    )


def test_the_words_in_which_two_answers_part_are_marked() -> None:
    cold, other = score_page.parted("Fay owes 7, 7 + 1 = 8", "Fay owes 5, 5 + 1 = 6")
    assert [part.text for part in cold if part.apart] == ["7, 7", "8"]
    assert [part.text for part in other if part.apart] == ["5, 5", "6"]
    assert " ".join(part.text for part in other) == "Fay owes 5, 5 + 1 = 6"
    assert score_page.parted("same", "same") == ([("same", False)], [("same", False)])


def test_no_text_of_a_model_is_markup(drawn: Any) -> None:
    page = drawn(
        report(
            [changed(question=EVIL, target=EVIL, cold=EVIL, other=f"{EVIL} {EVIL}", group=EVIL)],
            engine=EVIL,
        )
    )
    assert not {"script", "img"} & {*page.tags} and page.text.count(EVIL) >= 5


def test_many_changes_and_long_answers_are_cut_and_counted(drawn: Any) -> None:
    page = drawn(
        report(
            [changed(row=row, other="word " * 100_000) for row in range(score_page.SHOWN_MAX + 5)]
        )
    )
    assert page.text.count("in arm hit: What") == score_page.SHOWN_MAX
    assert (
        "5 further answers changed; report.json has them." in page.text
        and len(page.text) < 1_000_000
    )


def test_a_score_without_a_change_says_so(drawn: Any) -> None:
    page = drawn(report([]))
    assert (
        "pass (exit code 0)" in page.text
        and "No answer was lost or gained." in page.text
        and "mark" not in page.tags
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"version": 2}, "is cachewitness.score 2; this release reads cachewitness.score 1"),
        ({"exit_code": 77}, "77 is no exit code of a run"),
        ({"changed": [3]}, "at `$.changed[0]`"),
        ({"judged": None}, "at `$.judged`"),
    ],
)
def test_a_report_that_does_not_fit_is_one_line(
    fields: dict[str, Any], message: str, drawn: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn(report([]), code=4, **fields)
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_server_that_counts_no_prompt_tokens_has_no_share(drawn: Any) -> None:
    page = drawn(report([], prompt_tokens=0))
    assert "–" in page.text and " %" not in page.text
