"""Checkers as such: when they do not apply, when they crash, what they count, and how verdicts
merge.
"""

from __future__ import annotations

import msgspec
import pytest

from cachewitness.core.checkers import ALL, OF_PAGES, fresh, protocol
from cachewitness.core.checkers.anomalies import CATALOGUE, DISAGREEMENTS
from cachewitness.core.checkers.diagnose import diagnose
from cachewitness.core.checkers.finding import Finding, Tally, merge_tallies
from cachewitness.core.checkers.protocol import Checker, CheckerSet, Found, Handler
from cachewitness.core.driving import check
from cachewitness.core.events import (
    Finished,
    Header,
    History,
    Publish,
    Read,
    Rules,
    StepEnd,
    Submitted,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.result import Result, merge
from cachewitness.workloads.notation import parse

HYBRID = """\
pool 0: 12 pages, null 0, evicts lru
group 0: full block 4
group 1: recurrent block 4
rules: alignment 4, retention 0 on 1
submit r1 a:9
acquire r1 | 1 2 3 | 4 5 6
publish 0/1 r1:4
step 1: r1 0..4 | 1 2 3 | 4 5 6
publish 0/2 r1:8
publish 1/5 r1:8
step 2: r1 4..8 | 1 2 3 | 4 5 6
step 3: r1 8..9 | 1 2 3 | 4 5 6
finish r1
release r1
counts 0: free 8 held 0 cached 3
submit r2 a:9
hit r2 8 | 1 2 | 0 5
acquire r2 | 1 2 3 | 5 6
step 4: r2 8..9 | 1 2 3 | 0 5 6
"""
"""A history that is sound, with something for most checkers."""

DENSE = HYBRID.replace("publish 0/1 r1:4\n", "publish 0/1 r1:4\npublish 1/4 r1:4\n").replace(
    "cached 3", "cached 4"
)
"""The same with a snapshot too many."""


UNHELD = """\
pool 0: 12 pages, null 0
group 0: full block 4
rules: alignment 4
submit r1 a:5
acquire r1 | 1 2
publish 0/1 r1:4
step 1: r1 0..5 | 1 2
submit r2 a:8
acquire r2 | 4
step 2: r2 4..5 | 1 4
"""
"""r2 reads the block of r1 without having taken its page."""


class Grumbler(Checker):
    """Counts publications and fails at the second; finds a leak before that."""

    name = "grumbler"
    summary = "for tests"
    anomalies = ("leak",)

    def handlers(self) -> dict[type, Handler]:
        return {Publish: self.on_publish, Finished: self.on_finish}

    def on_publish(self, ledger: Ledger, event: Publish) -> Found:
        self.opportunities += 1
        if self.opportunities == 2:
            raise ValueError("no more")
        return (Finding(anomaly="leak", sentence="grumble"),)

    def on_finish(self, ledger: Ledger, event: Finished) -> Found:
        raise AssertionError("a checker that crashed is asked again")


class Liar(Grumbler):
    """Raises an anomaly that it does not list."""

    name = "liar"
    anomalies = ("no-progress",)


class Late(Grumbler):
    """Crashes at the end."""

    name = "late"

    def handlers(self) -> dict[type, Handler]:
        return {}

    def close(self, ledger: Ledger) -> Found:
        raise KeyError("gone")


class Early(Checker):
    """Remembers how far r1 had been computed when a step of it was about to end."""

    name = "early"
    summary = "for tests"
    anomalies = ()

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[int] = []

    def handlers(self) -> dict[type, Handler]:
        return {StepEnd: self.on_step_end}

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        self.computed.append(min(ledger.requests["r1"].computed, 8))
        return None


class Noting(Checker):
    """Remembers invalid reads."""

    name = "noting"
    summary = "for tests"
    anomalies = ()

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, str]] = []

    def handlers(self) -> dict[type, Handler]:
        return {}

    def note_invalid_read(self, ledger: Ledger, event: Read) -> None:
        self.reads.append((event.step, event.r))


def _tallies(result: Result) -> dict[str, Tally]:
    return {tally.checker: tally for tally in result.tallies}


def _with(history: History, **header: object) -> History:
    return History(msgspec.structs.replace(history.header, **header), history.events, history.op_of)


# --- the panel ------------------------------------------------------------------------------------


def test_a_sound_history_passes_every_checker() -> None:
    """And all that can be tempted by it were."""
    result = check(parse(HYBRID))
    assert (result.outcome, result.findings) == ("pass", [])
    idle = {name for name, tally in _tallies(result).items() if tally.opportunities == 0}
    assert idle == {
        "window-liveness",
        "checkpoints",
        "speculative-drop",
        "timely-release",
        "identity",
        "captures",
        "stores",
        "key-events",
        "statistics",
        "tensors",
    }


def test_a_checker_that_crashes_makes_the_verdict_unknown() -> None:
    """It is taken out, told with its error and the event, and the others go on."""
    result = check(parse(HYBRID), [Late(), *fresh()])
    assert result.outcome == "unknown"
    assert _tallies(result)["late"].crashed == "KeyError: 'gone' (at the end)"
    assert _tallies(result)["ownership"].opportunities > 0


def test_what_was_proved_stays_proved() -> None:
    """A finding beats a crash: the checker's own before it crashed, and another's after."""
    own = check(parse(HYBRID), [Grumbler()])
    assert (own.outcome, [finding.sentence for finding in own.findings]) == ("fail", ["grumble"])
    tally = _tallies(own)["grumbler"]
    assert (tally.opportunities, tally.findings) == (2, 1)
    assert tally.crashed.startswith("ValueError: no more (at event ")
    others = check(parse(DENSE), [Late(), *fresh()])
    assert others.outcome == "fail"
    assert "over-dense-retention" in {finding.anomaly for finding in others.findings}


def test_a_finding_is_of_a_listed_anomaly() -> None:
    """A checker that names another one has crashed."""
    result = check(parse(HYBRID), [Liar()])
    assert (result.outcome, result.findings) == ("unknown", [])
    assert "liar does not list leak" in _tallies(result)["liar"].crashed


def test_a_finding_is_signed() -> None:
    """By the checker that made it, at the event at which it made it."""
    finding = check(parse(DENSE)).findings[-1]
    event = parse(DENSE).events[finding.seq]
    assert finding.checker == "interval-sparsity"
    assert isinstance(event, Publish) and (event.page, event.length) == (4, 4)


def test_every_checker_sees_the_ledger_before_the_event() -> None:
    """A panel moves the ledger once, after all its checkers were asked."""
    history = parse(HYBRID)
    panel = CheckerSet(history.header, [early := Early()])
    for event in history.events:
        panel.observe(event)
    assert early.computed == [0, 4, 8, 8]
    assert panel.ledger.requests["r1"].computed == 9


# --- invalid reads --------------------------------------------------------------------------------


def test_an_invalid_read_is_diagnosed_once_and_goes_to_whoever_answers_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """r2 reads r1's page without holding it: of all checkers the one that lists use-after-free
    signs the only finding.
    """
    asked: list[Read] = []
    monkeypatch.setattr(
        protocol, "diagnose", lambda ledger, read: asked.append(read) or diagnose(ledger, read)
    )
    result = check(parse(UNHELD))
    assert [(finding.anomaly, finding.checker) for finding in result.findings] == [
        ("use-after-free", "safety-law")
    ]
    assert len(asked) == 1


def test_an_invalid_read_of_a_rule_that_does_not_apply_is_nobody_s_finding() -> None:
    """Its anomaly is listed by the safety law alone; the others are not asked in its place."""
    result = check(_with(parse(UNHELD), not_applicable={"safety-law": "for a reason"}))
    assert result.findings == []


def test_a_diagnosis_that_crashes_makes_the_verdict_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All who answer for reads are taken out, and no other checker."""

    def crash(ledger: Ledger, read: Read) -> Finding | None:
        raise ValueError("no idea")

    monkeypatch.setattr(protocol, "diagnose", crash)
    result = check(parse(UNHELD))
    assert (result.outcome, result.findings) == ("unknown", [])
    crashed = {
        name
        for name, tally in _tallies(result).items()
        if tally.crashed.startswith("ValueError: no idea (at event ")
    }
    assert crashed == {checker.name for checker in ALL if checker.answers_for_reads} - {
        "window-liveness"
    }


def test_whoever_takes_note_of_invalid_reads_sees_those_and_no_others() -> None:
    """Also those of a request that is tainted already, which are nobody's finding."""
    again = "step 3: r2 5..6 | 1 4\n"
    panel = CheckerSet(parse(UNHELD).header, [noting := Noting()])
    for event in parse(UNHELD + again).events:
        assert not panel.observe(event)
    assert noting.reads == [(2, "r2"), (3, "r2")]


# --- not applicable -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [checker.name for checker in OF_PAGES])
def test_a_rule_that_does_not_apply_is_not_judged(name: str) -> None:
    """The header says why, the tally repeats it, nothing is counted and nothing found."""
    history = _with(parse(DENSE), not_applicable={name: "for a reason"})
    tally = _tallies(check(history))[name]
    assert (tally.not_applicable, tally.opportunities, tally.findings) == ("for a reason", 0, 0)


@pytest.mark.parametrize("name", ["replay-boundary-retained", "interval-sparsity", "reuse-floor"])
def test_without_caching_there_is_nothing_to_retain_or_reuse(name: str) -> None:
    """These rules say so themselves."""
    history = _with(parse(DENSE), rules=Rules(caching=False))
    assert _tallies(check(history))[name].not_applicable == "prefix caching is off"


# --- the catalogue --------------------------------------------------------------------------------


def test_every_anomaly_has_one_checker() -> None:
    """At its level, but for what no history shows: the engine's death or silence, and the
    difference from the reference.
    """
    for kinds in (OF_PAGES, [kind for kind in ALL if kind not in OF_PAGES]):
        anomalies = [anomaly for kind in kinds for anomaly in kind.anomalies]
        assert len(anomalies) == len(set(anomalies))
    listed = [anomaly for checker in ALL for anomaly in checker.anomalies]
    assert {anomaly.name for anomaly in CATALOGUE} - set(listed) == {
        "engine-crashed",
        "hung",
        "divergence",
    }
    assert set(listed) <= {anomaly.name for anomaly in CATALOGUE + DISAGREEMENTS}


def test_checkers_are_told_apart() -> None:
    """By names that are theirs alone, with a summary each; a fresh panel shares nothing with the
    last.
    """
    assert len({checker.name for checker in ALL}) == len(ALL)
    assert all(checker.summary for checker in ALL)
    one = fresh()
    other = fresh()
    assert not {id(checker) for checker in one} & {id(checker) for checker in other}


# --- verdicts -------------------------------------------------------------------------------------


def test_fail_beats_unknown_beats_pass() -> None:
    """In whatever order they come; nothing at all is a pass."""
    assert [merge([]), merge(["pass", "unknown"]), merge(["unknown", "fail", "pass"])] == [
        "pass",
        "unknown",
        "fail",
    ]


def test_tallies_add_up() -> None:
    """A rule is not applicable only if it never applied, and a crash is remembered."""
    one = [
        Tally(checker="x", opportunities=2, findings=1),
        Tally(checker="y", not_applicable="no keys"),
    ]
    two = [
        Tally(checker="x", opportunities=3, crashed="boom"),
        Tally(checker="y", opportunities=1, acceptable=1),
    ]
    assert merge_tallies(one + two) == [
        Tally(checker="x", opportunities=5, findings=1, crashed="boom"),
        Tally(checker="y", opportunities=1, acceptable=1),
    ]
    assert merge_tallies(one[1:] + one[1:]) == one[1:]


def test_a_death_on_record_is_a_failure() -> None:
    """Who checks the history of an engine that died finds that it died, at that operation."""
    result = check(parse(HYBRID + "died 4 AssertionError: no block\n"))
    assert (result.outcome, [finding.anomaly for finding in result.findings]) == (
        "fail",
        ["engine-crashed"],
    )
    assert (
        "operation 5" in result.findings[0].sentence and "no block" in result.findings[0].sentence
    )


def test_a_history_may_be_empty() -> None:
    """Nothing happened, nothing was judged."""
    header = Header("test", "manager", parse(HYBRID).header.pools, parse(HYBRID).header.groups)
    result = check(History(header, [Submitted(r="r1", tokens=[1])], [-1]))
    assert result.outcome == "pass"
    assert {tally.opportunities for tally in result.tallies} == {0}
