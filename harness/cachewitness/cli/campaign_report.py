"""Prints the summary of a campaign."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from cachewitness.core.result import EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.report import terminal
from cachewitness.report.counterexample import wrapped
from cachewitness.report.tables import new_table, print_table
from cachewitness.sessions.campaign.summary import Document, FindingRow

LISTED_MAX = 5
"""How many units that were not done, and how many reasons why something was not run, are listed."""


def print_summary(document: Document, out: Console, share: str = "") -> None:
    """Print what was done, what was found, and the verdict; a share without a finding has none."""
    _print(
        f"campaign {document.name} ({document.campaign}), cachewitness {document.package}",
        out,
        "bold",
    )
    self_test = document.self_test
    missed = f"was NOT found as {self_test.anomaly}" if self_test.ran else "was not run"
    found = (
        f"was found as {self_test.anomaly} by {self_test.checker}" if self_test.found else missed
    )
    _print(f"self-test: {self_test.fault}, planted in the reference, {found}", out)
    _print(_work(document), out)
    out.print()
    table = new_table(
        out, ["engine", "policy", "traces", "operations", "findings", "marks", "verdict"]
    )
    for subject in document.subjects:
        name, colour, _ = terminal.MEANINGS[subject.exit_code]
        if share and subject.exit_code in (EXIT_PASS, EXIT_NOTHING_CHECKED):
            name, colour = "–", ""
        label = f" ({subject.label})" if subject.label else ""
        numbers = (
            f"{n:,}"
            for n in (subject.traces, subject.operations, subject.findings, len(subject.marks))
        )
        table.add_row(
            f"{subject.engine}{label}", subject.policy, *numbers, Text(name, style=colour)
        )
    print_table(table, out)
    out.print()
    for subject in document.subjects:
        entries = subject.not_run[:LISTED_MAX]
        more = len(subject.not_run) - len(entries)
        lines = [f"{entry.what}: {entry.why} ({entry.count} times)" for entry in entries]
        terminal.print_section(
            f"not run on {subject.engine}, {subject.policy}",
            [*lines, *([f"and {more} more"] if more else [])],
            out,
        )
    rest = (
        [f"and {len(document.not_done) - LISTED_MAX} more"]
        if len(document.not_done) > LISTED_MAX
        else []
    )
    terminal.print_section("units not done", [*document.not_done[:LISTED_MAX], *rest], out)
    _print_classes(document, out)
    for finding in document.findings:
        _print_finding(finding, out)
    if share and document.exit_code == EXIT_PASS:
        then = "the same command without --shard, on all shares merged, judges the campaign"
        _print(f"no verdict (exit code 0): share {share} is done, nothing found; {then}", out)
    else:
        terminal.print_verdict(
            document.exit_code, out, reasons=document.reasons, passed="nothing found"
        )
    again = "; the same command goes on with what is not done" if document.not_done else ""
    _print(f"digest {document.digest}{again}", out)


def _work(document: Document) -> str:
    before = f" ({document.done_before:,} of them before)" if document.done_before else ""
    lost = f"; {document.workers_lost:,} workers were lost" if document.workers_lost else ""
    return (
        f"{document.done:,} of {document.units:,} units done{before}, {document.traces:,} traces, "
        f"{document.operations:,} operations, {document.seconds:.1f} s{lost}"
    )


def _print_classes(document: Document, out: Console) -> None:
    if not document.classes:
        return
    table = new_table(out, ["anomaly", "checker", "level", "met", "groups", "on"])
    for one in document.classes:
        engines = ", ".join(one.engines)
        table.add_row(
            one.anomaly, one.checker, one.level, f"{one.met:,}", " ".join(one.kinds), engines
        )
    print_table(table, out)
    out.print()


def _print_finding(finding: FindingRow, out: Console) -> None:
    _print(
        f"{finding.signature}: {finding.anomaly} by {finding.checker}, {finding.level} level",
        out,
        "bold red",
    )
    more = f", and in {finding.traces - 1} more minimal traces" if finding.traces > 1 else ""
    length = (
        f"{finding.operations} operations" if finding.operations else "a trace that cannot be read"
    )
    summary = f"{length}, groups {' '.join(finding.kinds)}, on {', '.join(finding.engines)}{more}"
    for text in (summary, finding.line, finding.sentence, finding.why_long, finding.unread):
        terminal.print_lines(wrapped(text, "  ") if text else [], out)
    if finding.replay:
        _print(f"  replay: {finding.replay}", out)
    out.print()


def _print(text: str, out: Console, style: str = "") -> None:
    out.print(Text(text, style=style), soft_wrap=True)
