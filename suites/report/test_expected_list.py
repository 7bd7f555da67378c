"""The list of expected failures: what a line may name, and rules that an engine may deny."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers import ALL
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.checkers.finding import Finding, Tally, denials, denied
from cachewitness.core.declared import ALWAYS, DENIABLE
from cachewitness.core.trace_format import load as load_trace
from cachewitness.engines.registry import parse
from cachewitness.report import causes
from cachewitness.report.expected import Entry, Expectations, load
from cachewitness.sessions.run import lockstep


def listed(folder: Path, line: str) -> list[Entry]:
    file = folder / "expected.txt"
    file.write_text(f"{line}\n", encoding="utf-8")
    return load(file)


def excused(entries: list[Entry], anomaly: str, cause: str = "") -> bool:
    finding = Finding(anomaly=anomaly, sentence="", cause=cause)
    return any(entry.excuses(finding) for entry in entries)


def test_a_line_may_list_several_anomalies_and_causes_of_each(tmp_path: Path) -> None:
    """`a,b,c` is three anomalies; a cause belongs to the anomaly in front of it."""
    entries = listed(tmp_path, "*:*  leak,stale-hit,early-copy,lost-hit  # known")
    assert [(one.anomaly, one.cause) for one in entries] == [
        ("leak", ""),
        ("stale-hit", "early-copy"),
        ("lost-hit", ""),
    ]
    assert excused(entries, "leak") and excused(entries, "lost-hit")
    assert excused(entries, "stale-hit", "early-copy") and not excused(entries, "stale-hit")


def test_several_causes_of_one_anomaly_are_as_many_entries(tmp_path: Path) -> None:
    entries = listed(tmp_path, "*:*  answer-differs,cache,aborts+chunks  # known")
    assert [one.cause for one in entries] == ["cache", "aborts+chunks"]
    assert not excused(entries, "answer-differs", "replays")


def test_an_entry_may_name_what_the_rule_says(tmp_path: Path) -> None:
    """The whole line, brackets in it for themselves; another line of the same anomaly is not
    excused, nor one without a line.
    """
    (entry,) = listed(
        tmp_path, '*:*  stale-hit says="* read page * as tokens [0,*" strict  # known'
    )
    lines = {
        "request r2 read page 5 as tokens [0,16); the page holds [16,32) of r1": True,
        "request r2 read page 5 as tokens [16,32); the page holds [0,16) of r1": False,
        "": False,
    }
    for line, known in lines.items():
        finding = Finding(anomaly="stale-hit", sentence="", line=line)
        assert entry.excuses(finding) == known
    assert entry.strict and entry.text == '*:* stale-hit says="* read page * as tokens [0,*"'


def test_entries_that_say_different_things_are_two(tmp_path: Path) -> None:
    line = '*:*  leak says="page 1*"  # one'
    assert len(listed(tmp_path, line + "\n" + line.replace("1*", "2*"))) == 2
    with pytest.raises(UsageError, match="is listed twice"):
        listed(tmp_path, f"{line}\n{line}")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ('denied-rule,progress-floor says="*"', "is no rule"),
        ('denied-rule,reuse-floor says="*"', "denied-rule is no finding"),
        ("leak says=page", "'says=page' is none of"),
        ('leak says=""', "is none of"),
        ("leak,stale-hti", "'stale-hti' is neither an anomaly nor a cause of leak"),
        ("answer-differs,cash", "'cash' is neither an anomaly nor a cause of answer-differs"),
        ("answer-differs,cache+nothing", "'cache+nothing' is neither"),
        ("early-copy,leak", "'early-copy' is no anomaly"),
        ("leak,leak", "'leak' is named twice"),
        ("leak,", "'' is neither"),
        ("denied-rule", "denied-rule names no rule"),
        ("denied-rule,progress", "'progress' is no rule that an engine may deny"),
    ],
)
def test_what_is_neither_anomaly_nor_cause_is_refused(
    tmp_path: Path, names: str, message: str
) -> None:
    """A name that excuses nothing would be read as one that does."""
    with pytest.raises(UsageError, match=message.replace("+", r"\+")):
        listed(tmp_path, f"*:*  {names}  # known")


def test_causes_are_told_from_anomalies_and_are_those_of_the_differential() -> None:
    assert not set(causes.names()) & set(BY_NAME)
    trace = load_trace(_a_trace())
    header = parse("reference").open(trace.header).describe()
    facts = lockstep._facts([], lockstep._null(header), lockstep._Facts(header)._ours)
    assert {what.partition(" (")[0].replace(" ", "-") for what, _ in facts} == set(causes.FACTS)


def _a_trace() -> Path:
    folder = Path(__file__).resolve().parents[2] / "fixtures" / "traces" / "mutants"
    return folder / "null-block-counted-as-room.jsonl"


def test_every_rule_may_be_denied_or_may_not() -> None:
    """The data say so of each, but for those that judge nothing where nothing is declared."""
    rules = {checker.invariant or checker.name for checker in ALL}
    assert not set(ALWAYS) & set(DENIABLE)
    assert rules - {*ALWAYS, *DENIABLE} == {
        "checkpoints",
        "speculative-drop",
        "resumes",
        "stores",
        "tensors",
        "timely-release",
    }


def test_a_denied_rule_is_named_and_may_be_listed(tmp_path: Path) -> None:
    """Listed or not it stands in the line of what was covered; unlisted it is a reason for 5."""

    def tally() -> Tally:
        return Tally(checker="reuse-floor", not_applicable="why", denied="why", rule="reuse-floor")

    listing = Expectations(listed(tmp_path, "run:*  denied-rule,reuse-floor  # by design"))
    here = tally()
    there = tally()
    listing.admit("run:a@b", [here])
    listing.admit("fuzz:a@b", [there])
    assert denied([here]) == [] and listing.unmatched == []
    assert denied([there]) == [
        "rule reuse-floor applies, and the engine declares that it does not: why"
    ]
    assert denials([here]) == denials([there])
    assert denials([here]) == "not judged at all, as the engine declares: reuse-floor (why)"
