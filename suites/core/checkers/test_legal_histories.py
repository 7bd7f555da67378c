"""Every anomaly is found in its example, and every lawful look-alike passes all checkers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util import data
from cachewitness._util.errors import UsageError
from cachewitness.core import stored as history
from cachewitness.core import validate
from cachewitness.core.checkers.anomalies import CATALOGUE
from cachewitness.core.driving import check
from cachewitness.workloads import anomaly_examples
from cachewitness.workloads.anomaly_examples import AnomalyExample

STORIES = anomaly_examples.load()
TWINS = [story for story in STORIES if story.anomalous]
FOLDER = data.fixtures() / "histories"


def _name(story: AnomalyExample) -> str:
    return story.name


@pytest.mark.parametrize("story", STORIES, ids=_name)
def test_a_lawful_look_alike_passes_and_tempts_its_checker(story: AnomalyExample) -> None:
    """No finding, no crash, and the checker that answers for the anomaly had something to judge."""
    result = check(history.load(FOLDER / "legal" / f"{story.name}.jsonl"))
    assert [finding.sentence for finding in result.findings] == []
    assert result.outcome == "pass"
    tally = next(tally for tally in result.tallies if tally.checker == story.tempts)
    assert tally.opportunities > 0


@pytest.mark.parametrize("story", TWINS, ids=_name)
def test_the_anomaly_of_the_twin_is_what_is_found_first(story: AnomalyExample) -> None:
    """Exactly that anomaly, told in a sentence that says what contradicts what."""
    result = check(history.load(FOLDER / "anomalous" / f"{story.name}.jsonl"))
    assert result.outcome == "fail"
    assert [tally.crashed for tally in result.tallies if tally.crashed] == []
    first = result.findings[0]
    assert first.anomaly == story.anomaly
    assert first.sentence.startswith("Let ") and first.sentence.endswith("a contradiction.")


@pytest.mark.parametrize("story", TWINS, ids=_name)
def test_the_twin_shows_one_fault(story: AnomalyExample) -> None:
    """What else is found follows from the first fault: it concerns the same requests or the same
    pages' readers.
    """
    findings = check(story.history("anomalous")).findings
    assert {finding.anomaly for finding in findings[1:]} <= {
        "stale-hit",
        "use-after-free",
        story.anomaly,
    }
    assert len({finding.r for finding in findings if finding.r}) <= 1


@pytest.mark.parametrize("story", STORIES, ids=_name)
def test_the_stored_histories_make_sense(story: AnomalyExample) -> None:
    """Lawful or not, they can be followed."""
    for kind in story.kinds:
        assert list(validate.problems(story.history(kind))) == []


def test_the_stored_files_are_those_of_the_stories() -> None:
    """No file is missing, none is out of step, none is left over; `python -m
    cachewitness.workloads.anomaly_examples` writes them.
    """
    stored = {str(path.relative_to(FOLDER)): path.read_bytes() for path in FOLDER.glob("*/*.jsonl")}
    assert stored == dict(anomaly_examples.files(STORIES))


def test_the_document_is_that_of_the_stories() -> None:
    """docs/reference/anomalies.md is written by the same command."""
    document = data.fixtures().parent / "docs" / "reference" / "anomalies.md"
    if document.parent.is_dir():
        assert document.read_text(encoding="utf-8") == anomaly_examples.document(STORIES)
    assert anomaly_examples.document(STORIES).count("\n### ") == len(CATALOGUE)


def test_every_anomaly_has_an_example_and_a_look_alike() -> None:
    """Those that take two histories to see are told in words, and shown in tests of the
    lock-step.
    """
    names = {anomaly.name for anomaly in CATALOGUE}
    assert (
        {story.anomaly for story in STORIES}
        == {story.anomaly for story in TWINS}
        == names - set(anomaly_examples.NO_STORY)
    )


def test_a_twin_differs_by_few_lines() -> None:
    """The stories stay readable: at most six lines are in the lawful history alone or in the
    other alone.
    """
    for story in TWINS:
        for sign in "+-":
            assert sum(line.startswith(sign) for line in story.text.splitlines()) <= 6, story.name


BAD = {
    "no source": ("looks like: leak\nlegal: x\n\npool 0: 4 pages\n", "look at source"),
    "a field that does not exist": (
        "looks like: leak\nlegal: x\nsource: y\nmoral: z\n",
        "look at moral",
    ),
    "no such anomaly": ("looks like: leek\nlegal: x\nsource: y\n", "no anomaly is called 'leek'"),
    "no such checker": (
        "looks like: leak\nlegal: x\nsource: y\ntempts: fate\n",
        "no checker is called 'fate'",
    ),
    "nobody is tempted": (
        "looks like: engine-crashed\nlegal: x\nsource: y\n",
        "say which one is tempted",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_story_is_refused_with_its_file(tmp_path: Path, fault: str) -> None:
    """What is wrong, and in which file."""
    text, expected = BAD[fault]
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(UsageError, match=f"mine.txt: .*{expected}"):
        anomaly_examples.load(tmp_path)


def test_a_bad_line_of_a_story_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    """The head of the file counts."""
    (tmp_path / "mine.txt").write_text(
        "looks like: leak\nlegal: x\nsource: y\n\npool 0: 4 pages\n+ grp 0: full block 4\n"
    )
    with pytest.raises(UsageError, match=r"mine\.txt:6: 'grp' begins no line"):
        anomaly_examples.load(tmp_path)[0].history("legal")


def test_the_command_writes_what_the_stories_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histories of both kinds and the document; what no story tells any more goes."""
    folder = tmp_path / "fixtures" / "histories"
    (folder / "legal").mkdir(parents=True)
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (folder / "mine.txt").write_text((FOLDER / "recycled-page.txt").read_text())
    (folder / "legal" / "forgotten.jsonl").write_text("")
    monkeypatch.setattr(data, "fixtures", lambda: tmp_path / "fixtures")
    assert anomaly_examples.main() == 0
    assert sorted(path.name for path in folder.glob("*/*")) == ["mine.jsonl", "mine.jsonl"]
    assert check(history.load(folder / "anomalous" / "mine.jsonl")).outcome == "fail"
    page = (tmp_path / "docs" / "reference" / "anomalies.md").read_text()
    assert "[mine](../../fixtures/histories/mine.txt)" in page
