"""Prints a campaign on a terminal, or as plain text into a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from shlex import quote

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from cachewitness.core.result import (
    EXIT_FAIL,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
)
from cachewitness.engines.mutant import DEFAULT_POLICY
from cachewitness.engines.registry import EngineSpec
from cachewitness.report import terminal
from cachewitness.report.counterexample import wrapped
from cachewitness.report.refusals import refusals
from cachewitness.report.summary import Report, Stored, shown
from cachewitness.report.tables import new_table, print_table
from cachewitness.sessions.fuzz import coverage_points
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.exhaustive import Coverage
from cachewitness.sessions.fuzz.scope import BLOCK
from cachewitness.sessions.fuzz.self_test import CanaryResult
from cachewitness.sessions.fuzz.trial import CONFIGURATIONS

UNPROVED = "no fault could be planted, so it is not proved that one would have been seen"
EXPLAINED_MAX = 12
"""So many marks that were never reached are explained; of more, the names are listed."""


def print_campaign(
    campaign: Campaign,
    self_test: CanaryResult | None,
    stored: Mapping[str, Stored],
    again: str,
    out: Console,
) -> None:
    """Print what a campaign did and reached, the witness if something failed, the verdict, and
    the line that runs it again.
    """
    report = campaign.report
    version = f" ({report.engine_version})" if report.engine_version else ""
    _print(
        f"engine {report.engine}{version}, policy {campaign.plan.policy}, seed"
        f" {campaign.plan.seed}",
        out,
        "bold",
    )
    terminal.print_environment(report, out)
    if report.held:
        _print(report.held, out)
    _print(f"self-test: {self_test_line(self_test)}", out)
    _print(
        f"{campaign.traces:,} traces, each on a configuration of its own; {terminal.speed(report)}",
        out,
    )
    terminal.print_activity(report.activity, out)
    failures = shown(report)
    for failure in failures:
        terminal.print_witness(failure, stored.get(failure.id), out)
    terminal.print_tallies(report.tallies(), out, folded=bool(failures))
    _print_marks(
        campaign.marks, coverage_points.drawn(own=campaign.engine.kind.drawing is not None), out
    )
    refused = [entry for entry in report.not_run if entry.what == CONFIGURATIONS]
    drawn = campaign.traces + sum(entry.count for entry in refused)
    terminal.print_section(
        "not run",
        [
            *([refusals(refused, drawn)] if refused else []),
            *(
                f"{entry.what}: {entry.why} ({entry.count} times)"
                for entry in report.not_run
                if entry.what != CONFIGURATIONS
            ),
        ],
        out,
    )
    terminal.print_bad_events(report.bad_events, out)
    terminal.print_expected(report, out)
    terminal.print_known(report, out)
    _print(terminal.covered(report), out)
    terminal.print_verdict(
        exit_code(campaign, self_test),
        out,
        reasons=reasons(campaign, self_test),
        passed="nothing found",
    )
    _print(f"again: {again}  (digest {campaign.digest})", out)


def print_coverage(
    coverage: Coverage,
    self_test: CanaryResult,
    engine: EngineSpec,
    stored: Mapping[str, Stored],
    out: Console,
) -> None:
    """Print what an exhaustive search covered, the witness if something failed, and the verdict."""
    b = coverage.bound
    asked = f"{b.requests} request{'s' * (b.requests > 1)}"
    limits = (
        f"{asked}, prompts of up to {b.longest} tokens, {b.model_len} tokens in all, {b.pages}"
        " pages"
    )
    _print(
        f"engine {engine.text}, every trace of {limits}; blocks of {BLOCK} tokens unless said"
        " otherwise",
        out,
        "bold",
    )
    _print(f"self-test: {self_test_line(self_test)}", out)
    table = new_table(out, ["configuration", "states", "transitions", "depth", ""])
    for one in coverage.covered:
        counts = (f"{len(one.states):,}", f"{one.transitions:,}", str(one.depth))
        table.add_row(Text(one.scope.name), *counts, "complete" if one.complete else "not complete")
    print_table(table, out)
    states = sum(len(one.states) for one in coverage.covered)
    transitions = sum(one.transitions for one in coverage.covered)
    _print("", out)
    _print(f"{states:,} states, {transitions:,} transitions in {coverage.seconds:.1f} s", out)
    terminal.print_section("not run", [f"{one.what}: {one.why}" for one in coverage.not_run], out)
    if coverage.failure:
        terminal.print_witness(coverage.failure, stored.get(coverage.failure.id), out)
    code, reasons = judged(coverage, self_test)
    passed = "complete: nothing within the bound contradicts a rule"
    if left_out := coverage.left_out:
        passed += (
            f"; {left_out} of {left_out + len(coverage.covered)} configurations were left out,"
            " --full searches them"
        )
    terminal.print_verdict(code, out, reasons=reasons, passed=passed)


def judged(coverage: Coverage, self_test: CanaryResult) -> tuple[int, list[str]]:
    """Return the exit code of an exhaustive search, that of a crash if the self-test was missed,
    and the reasons.
    """
    if not self_test.reported:
        return EXIT_INTERNAL, [f"the self-test {self_test_line(self_test)}"]
    found = [coverage.failure.finding.anomaly] if coverage.failure else []
    if coverage.interrupted:
        return EXIT_INTERRUPTED, found
    if found:
        return EXIT_FAIL, found + (
            [f"it could not go on: {coverage.stopped}"] if coverage.stopped else []
        )
    if coverage.crashed:
        return EXIT_UNKNOWN, [coverage.crashed]
    if not coverage.complete:
        return EXIT_UNKNOWN, ["time was up before everything within the bound was seen"]
    return (
        (EXIT_PASS, [])
        if coverage.hits
        else (EXIT_NOTHING_CHECKED, ["no look-up of the engine hit anything"])
    )


def exit_code(campaign: Campaign, self_test: CanaryResult | None) -> int:
    """Return the exit code of a campaign: that of a crash if the self-test was missed, since then
    nothing that was said counts.

    Without a self-test there is no pass.
    """
    if self_test is not None:
        return campaign.report.exit_code if self_test.reported else EXIT_INTERNAL
    return (
        EXIT_NOTHING_CHECKED
        if campaign.report.exit_code == EXIT_PASS
        else campaign.report.exit_code
    )


def proved(campaign: Campaign, self_test: CanaryResult | None) -> Report:
    """Return the report of a campaign with what became of the self-test in it, and so with the exit
    code of the campaign.
    """
    report = replace(campaign.report, vacuous=[*campaign.report.vacuous])
    if self_test is None:
        report.vacuous.append(UNPROVED)
    elif not self_test.reported:
        report.blind = f"the self-test {self_test_line(self_test)}"
        report.vacuous.append(report.blind)
    return report


def self_test_line(self_test: CanaryResult | None) -> str:
    """Return in one sentence what became of the self_test."""
    if self_test is None:
        return "none; the chosen configurations express no fault that could be planted"
    planted = f"{self_test.mutant}, planted in the reference, "
    if not self_test.reported:
        return (
            f"{planted}was NOT reported as {self_test.anomaly} in {self_test.operations:,} operations:"  # noqa: E501
            " the harness is blind"
        )
    return (
        f"{planted}was reported as {self_test.anomaly} by {self_test.checker} after {self_test.operations:,}"  # noqa: E501
        " operations"
    )


def command(
    engine: EngineSpec,
    policy: str,
    layouts: Sequence[str],
    options: Sequence[str],
    operations: int,
    seed: int,
    expected: str = "",
    *,
    no_known: bool = False,
    beside: bool = True,
) -> str:
    """Return the command that runs a campaign of so many operations again, ready to be pasted
    into a shell.
    """
    words = ["cachewitness fuzz", engine.arguments]
    if policy != DEFAULT_POLICY:
        words.append(f"--policy {policy}")
    words += [f"--layout {quote(name)}" for name in layouts]
    words += [f"--option {quote(text)}" for text in options]
    words += [f"--operations {operations}", f"--seed {seed}"]
    words += [f"--expected {quote(expected)}"] if expected else []
    words += ["--no-known"] * no_known
    return " ".join(words + ([] if beside else ["--no-lockstep"]))


def _print_marks(seen: Counter[str], areas: Mapping[str, Mapping[str, str]], out: Console) -> None:
    meanings = {name: meaning for area in areas.values() for name, meaning in area.items()}
    reached = sum(1 for name in meanings if seen[name])
    _print(f"marks: {reached} of {len(meanings)} reached", out, "bold")
    for area, names in areas.items():
        counted = ", ".join(f"{name} {seen[name]:,}" for name in names if seen[name])
        terminal.print_lines(wrapped(f"{area}: {counted or 'none'}", "  "), out)
    out.print()
    never = [name for name in meanings if not seen[name]]
    meant = [f"{name}: {meanings[name]}" for name in never]
    terminal.print_section(
        "never reached", meant if len(never) <= EXPLAINED_MAX else [", ".join(never)], out
    )


def reasons(campaign: Campaign, self_test: CanaryResult | None) -> list[str]:
    """Return why the verdict of a campaign is what it is."""
    code = exit_code(campaign, self_test)
    if self_test is not None and not self_test.reported:
        return [f"the self-test {self_test_line(self_test)}"]
    blind = self_test is None and code == EXIT_NOTHING_CHECKED and not campaign.report.vacuous
    unproved = [UNPROVED] if blind else []
    return terminal.reasons(campaign.report) + unproved


def _print(text: str, out: Console, style: str = "") -> None:
    out.print(Text(text, style=style), soft_wrap=True)
