"""A run as JUnit XML, for the test panes of CI systems.

Every suite has one case for each checker (what it judged, or why it did not) and one for each trace
that failed. A checker that found something has no case of its own: the traces that it failed stand
for it. What makes the exit code other than 0 is a failure or an error here too, so that a CI system
that looks at nothing else does not show green.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from cachewitness.core.checkers.finding import Tally
from cachewitness.report.counterexample import message, witness_of
from cachewitness.report.summary import Failure, Report, Stored, SuiteReport

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


def render(report: Report, stored: Mapping[str, Stored]) -> bytes:
    """Return the run as a JUnit XML document."""
    root = ElementTree.Element(
        "testsuites", name=f"cachewitness {report.engine}", time=f"{report.seconds:.3f}"
    )
    for suite in report.suites:
        _suite(root, suite, stored)
    _rest(root, report)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(child.get(key, "0")) for child in root)))
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _suite(root: ElementTree.Element, suite: SuiteReport, stored: Mapping[str, Stored]) -> None:
    element = ElementTree.SubElement(
        root, "testsuite", name=suite.name, time=f"{suite.seconds:.3f}"
    )
    for tally in suite.tallies:
        if tally.unjudged or not tally.findings:
            _checker(element, suite.name, tally)
    for failure in sorted(suite.failures, key=lambda one: bool(one.expected)):
        _failure(element, suite.name, failure, stored.get(failure.id))
    for line in suite.bad_events:
        case = ElementTree.SubElement(
            element, "testcase", classname=suite.name, name="events of the engine"
        )
        _append(case, "error", line)
    _count(element)


def _checker(element: ElementTree.Element, suite: str, tally: Tally) -> None:
    case = ElementTree.SubElement(element, "testcase", classname=suite, name=tally.checker)
    if tally.unjudged:
        _append(case, "error", f"the checker {tally.unjudged}" if tally.crashed else tally.open)
    elif tally.not_applicable:
        _append(case, "skipped", f"not applicable: {tally.not_applicable}")
    elif not tally.opportunities:
        _append(case, "skipped", "had nothing to judge in this suite")
    else:
        ElementTree.SubElement(
            case, "system-out"
        ).text = f"{tally.opportunities} opportunities, nothing found"


def _failure(
    element: ElementTree.Element, suite: str, failure: Failure, stored: Stored | None
) -> None:
    case = ElementTree.SubElement(element, "testcase", classname=suite, name=_clean(failure.id))
    finding = failure.finding
    if failure.expected:
        listed = f"known ({failure.known})" if failure.known else "expected"
        _append(case, "skipped", f"{listed} {finding.anomaly}: {failure.expected}")
        return
    lines = witness_of(failure, stored)
    entry = _append(case, "failure", f"{finding.anomaly}: {message(finding)}")
    entry.set("type", finding.anomaly)
    entry.text = _clean("\n".join(lines))


def _rest(root: ElementTree.Element, report: Report) -> None:
    """Add what was not run (skipped) and what was asked for and had nothing to judge (errors)."""
    element = ElementTree.SubElement(root, "testsuite", name="completeness", time="0")
    for entry in report.not_run:
        case = ElementTree.SubElement(
            element, "testcase", classname="not run", name=_clean(entry.what)
        )
        _append(case, "skipped", entry.why)
    for what in report.vacuous:
        case = ElementTree.SubElement(
            element, "testcase", classname="nothing to judge", name=_clean(what)
        )
        _append(case, "error", what)
    if (known := report.known_list) is not None:
        case = ElementTree.SubElement(
            element, "testcase", classname="known findings", name=_clean(known.release)
        )
        _append(case, "skipped", known.line)
    if report.interrupted:
        case = ElementTree.SubElement(element, "testcase", classname="run", name="interrupted")
        _append(case, "error", "the run was stopped before its end")
    _count(element)


def _append(case: ElementTree.Element, kind: str, message: str) -> ElementTree.Element:
    return ElementTree.SubElement(case, kind, message=_clean(message))


def _count(element: ElementTree.Element) -> None:
    element.set("tests", str(len(element)))
    for key, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(key, str(sum(1 for case in element if case.find(kind) is not None)))


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
