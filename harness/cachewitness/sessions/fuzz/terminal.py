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
from cachewitness.report.summary import Report, Stored, shown
from cachewitness.report.tables import new_table, print_table
from cachewitness.sessions.fuzz import marks
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.canary import CanaryResult
from cachewitness.sessions.fuzz.exhaustive import Coverage
from cachewitness.sessions.fuzz.scope import BLOCK

UNPROVED = "no fault could be planted, so it is not proved that one would have been seen"
EXPLAINED_MAX = 12
"""So many marks that were never reached are explained; of more, the names are listed."""


def print_campaign(
    campaign: Campaign,
    canary: CanaryResult | None,
    stored: Mapping[str, Stored],
    again: str,
    out: Console,
) -> None:
    """Print what a campaign did and reached, the witness if something failed, the verdict, and
    the line that runs it again.
    """
    report = campaign.report
    version = f" ({report.engine_version})" if report.engine_version else ""
    _say(
        f"engine {report.engine}{version}, policy {campaign.plan.policy}, seed"
        f" {campaign.plan.seed}",
        out,
        "bold",
    )
    terminal.print_environment(report, out)
    if report.held:
        _say(report.held, out)
    _say(f"canary: {canary_line(canary)}", out)
    _say(
        f"{campaign.traces:,} traces, each on a configuration of its own; {terminal.speed(report)}",
        out,
    )
    terminal.print_activity(report.activity, out)
    terminal.print_tallies(report.tallies(), out)
    _print_marks(campaign.marks, out)
    _print_list(
        "not run",
        [f"{entry.what}: {entry.why} ({entry.count} times)" for entry in report.not_run],
        out,
    )
    terminal.print_bad_events(report.bad_events, out)
    terminal.print_expected(report, out)
    for failure in shown(report):
        terminal.print_witness(failure, stored.get(failure.id), out)
    _say(terminal.covered(report), out)
    terminal.print_verdict(
        exit_code(campaign, canary), out, reasons=reasons(campaign, canary), passed="nothing found"
    )
    _say(f"again: {again}  (digest {campaign.digest})", out)


def print_coverage(
    coverage: Coverage,
    canary: CanaryResult,
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
    _say(
        f"engine {engine.text}, every trace of {limits}; blocks of {BLOCK} tokens unless said"
        " otherwise",
        out,
        "bold",
    )
    _say(f"canary: {canary_line(canary)}", out)
    table = new_table(out, ["configuration", "states", "transitions", "depth", ""])
    for one in coverage.covered:
        counts = (f"{len(one.states):,}", f"{one.transitions:,}", str(one.depth))
        table.add_row(Text(one.scope.name), *counts, "complete" if one.complete else "not complete")
    print_table(table, out)
    states = sum(len(one.states) for one in coverage.covered)
    transitions = sum(one.transitions for one in coverage.covered)
    _say("", out)
    _say(f"{states:,} states, {transitions:,} transitions in {coverage.seconds:.1f} s", out)
    _print_list("not run", [f"{one.what}: {one.why}" for one in coverage.not_run], out)
    if coverage.failure:
        terminal.print_witness(coverage.failure, stored.get(coverage.failure.id), out)
    code, reasons = judged(coverage, canary)
    passed = "complete: nothing within the bound contradicts a rule"
    if left_out := coverage.left_out:
        passed += (
            f"; {left_out} of {left_out + len(coverage.covered)} configurations were left out,"
            " --full searches them"
        )
    terminal.print_verdict(code, out, reasons=reasons, passed=passed)


def judged(coverage: Coverage, canary: CanaryResult) -> tuple[int, list[str]]:
    """Return the exit code of an exhaustive search, that of a crash if the canary was missed,
    and the reasons.
    """
    if not canary.reported:
        return EXIT_INTERNAL, [f"the canary {canary_line(canary)}"]
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


def exit_code(campaign: Campaign, canary: CanaryResult | None) -> int:
    """Return the exit code of a campaign: that of a crash if the canary was missed, since then
    nothing that was said counts.

    Without a canary there is no pass.
    """
    if canary is not None:
        return campaign.report.exit_code if canary.reported else EXIT_INTERNAL
    return (
        EXIT_NOTHING_CHECKED
        if campaign.report.exit_code == EXIT_PASS
        else campaign.report.exit_code
    )


def proved(campaign: Campaign, canary: CanaryResult | None) -> Report:
    """Return the report of a campaign with what became of the canary in it, and so with the exit
    code of the campaign.
    """
    report = replace(campaign.report, vacuous=[*campaign.report.vacuous])
    if canary is None:
        report.vacuous.append(UNPROVED)
    elif not canary.reported:
        report.blind = f"the canary {canary_line(canary)}"
        report.vacuous.append(report.blind)
    return report


def canary_line(canary: CanaryResult | None) -> str:
    """Return in one sentence what became of the canary."""
    if canary is None:
        return "none; the chosen configurations express no fault that could be planted"
    planted = f"{canary.mutant}, planted in the reference, "
    if not canary.reported:
        return (
            f"{planted}was NOT reported as {canary.anomaly} in {canary.operations:,} operations:"
            " the harness is blind"
        )
    return (
        f"{planted}was reported as {canary.anomaly} by {canary.checker} after {canary.operations:,}"
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
    return " ".join(words + ([] if beside else ["--no-lockstep"]))


def _print_marks(seen: Counter[str], out: Console) -> None:
    reached = sum(1 for name in marks.ALL if seen[name])
    _say(f"marks: {reached} of {len(marks.ALL)} reached", out, "bold")
    for area, names in marks.AREAS.items():
        counted = ", ".join(f"{name} {seen[name]:,}" for name in names if seen[name])
        terminal.print_lines(wrapped(f"{area}: {counted or 'none'}", "  "), out)
    out.print()
    never = [name for name in marks.ALL if not seen[name]]
    meant = [f"{name}: {marks.ALL[name]}" for name in never]
    _print_list("never reached", meant if len(never) <= EXPLAINED_MAX else [", ".join(never)], out)


def _print_list(title: str, lines: Sequence[str], out: Console) -> None:
    if lines:
        _say(f"{title}:", out, "bold")
        for line in lines:
            terminal.print_lines(wrapped(line, "  "), out)
        out.print()


def reasons(campaign: Campaign, canary: CanaryResult | None) -> list[str]:
    """Return why the verdict of a campaign is what it is."""
    code = exit_code(campaign, canary)
    if canary is not None and not canary.reported:
        return [f"the canary {canary_line(canary)}"]
    blind = canary is None and code == EXIT_NOTHING_CHECKED and not campaign.report.vacuous
    unproved = [UNPROVED] if blind else []
    return terminal.reasons(campaign.report) + unproved


def _say(text: str, out: Console, style: str = "") -> None:
    out.print(Text(text, style=style), soft_wrap=True)
