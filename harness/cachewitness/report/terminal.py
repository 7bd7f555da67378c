"""Prints a run, a replay or a checked history on a terminal, or as plain text into a file.

Columns are aligned with blanks alone, so that a file reads like the screen; rich adds colours on a
terminal only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import Segment
from rich.text import Text

from cachewitness._util import output
from cachewitness._util.lines import printable
from cachewitness.core.checkers.anomalies import gravest_first
from cachewitness.core.checkers.finding import Measured, Tally, denials, excused, idle, reused
from cachewitness.core.result import (
    COUNTS,
    EXIT_FAIL,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    Activity,
    Largest,
)
from cachewitness.report.cold import print_arms
from cachewitness.report.counterexample import witness_of, wrapped
from cachewitness.report.summary import DIED, Failure, Report, Stored, shown
from cachewitness.report.tables import new_table, print_table

PIPE_WIDTH = 100
LISTED_MAX = 10
"""How many further failures are listed by their id."""
LISTED_REASONS_MAX = 3
"""How many reasons, or things that were not run, stand in one line; of more, the number is told."""
ALIKE_MIN = 8
"""So many checkers that do not apply for one reason are told in one line."""
MEANINGS = {
    EXIT_PASS: (
        "pass",
        "green",
        "nothing found, and every rule that applies had something to judge",
    ),
    EXIT_FAIL: ("FAIL", "red", "the engine contradicts a rule"),
    EXIT_INTERNAL: (
        "HARNESS FAILS",
        "red",
        "its own detectors disagree, or missed a fault that was planted",
    ),
    EXIT_UNKNOWN: ("unknown", "yellow", "what a checker would have judged is open"),
    EXIT_USAGE: ("does not fit", "yellow", "something that was given does not fit"),
    EXIT_NOTHING_CHECKED: (
        "nothing checked",
        "yellow",
        "something that was asked for was not judged",
    ),
    EXIT_INTERRUPTED: (
        "interrupted",
        "yellow",
        "stopped before its end, which is no verdict on what was not run",
    ),
}


class _Printable:
    """Something to print, whose control characters are spelt out: names come from files and
    engines of others.
    """

    def __init__(self, content: ConsoleRenderable) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._content, options):
            text = "\n".join(map(printable, segment.text.split("\n")))
            yield segment if text == segment.text else Segment(text, segment.style, segment.control)


class _SpeltOut(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [one if isinstance(one, Control) else _Printable(one) for one in renderables]


class _Output(Console):
    """A console that leaves a broken pipe to the command line instead of ending the process with
    the code of a failure.
    """

    def __init__(self, **how: Any) -> None:
        colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        super().__init__(
            file=output.stdout(),
            highlight=False,
            markup=False,
            emoji=False,
            color_system=colours,
            **how,
        )
        self.push_render_hook(_SpeltOut())

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        """Print; on a terminal lines end between words, but for commands, which a user copies."""
        whole = not self.is_terminal or any(
            isinstance(one, Text) and is_copied(one.plain) for one in objects
        )
        super().print(*objects, soft_wrap=soft_wrap and whole, **how)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def is_copied(line: str) -> bool:
    """Whether a command stands in a line, which a user copies: a terminal may break it, and it
    stays one line.
    """
    return "cachewitness " in line or line.startswith("test: ")


def console(pipe_width: int = PIPE_WIDTH) -> Console:
    """Return a console on standard output: as wide as the terminal, and so many columns in a
    pipe.
    """
    out = _Output()
    return out if out.is_terminal else _Output(width=pipe_width)


def print_report(
    report: Report,
    stored: Mapping[str, Stored],
    out: Console,
    *,
    configurations: int = 0,
    quiet: bool = False,
) -> None:
    """Print the tables of a run, the witnesses and the verdict; `quiet` leaves the tables out.

    What failed comes in front of what was judged and what was not, which is then in few lines.
    """
    if not quiet:
        _heading(report, configurations, out)
        _print_suites(report, out)
    failures = shown(report)
    if failures:
        _print_failures(report, failures, stored, out)
    if not quiet:
        print_tallies(report.tallies(), out, folded=bool(failures))
        print_arms([row for suite in report.suites for row in suite.arms], out)
        _print_rest(report, out, folded=bool(failures))
    if not failures:
        _print_failures(report, failures, stored, out)
    if not quiet:
        print_known(report, out)
        out.print(Text(speed(report)), soft_wrap=True)
    if report.baseline:
        print_lines([*report.baseline.losses, report.baseline.line], out)
    if report.change:
        print_section(f"changed since {report.change.base}", list(report.change.lines), out)
    out.print(Text(covered(report)), soft_wrap=True)
    print_verdict(report.exit_code, out, reasons=reasons(report))


def _print_failures(
    report: Report, failures: list[Failure], stored: Mapping[str, Stored], out: Console
) -> None:
    print_bad_events(report.bad_events, out)
    for failure in failures:
        print_witness(failure, stored.get(failure.id), out)
    _print_further(report, out)


def print_witness(failure: Failure, stored: Stored | None, out: Console) -> None:
    """Print the witness of a failure, and a blank line."""
    print_lines([*witness_of(failure, stored), ""], out)


def print_lines(lines: Iterable[str], out: Console) -> None:
    """Print lines as they are, the marked one and the headline in colour on a terminal."""
    for line in lines:
        style = (
            "bold red"
            if line.startswith(("FAIL", "> "))
            else "bold"
            if line.startswith("replay: ")
            else ""
        )
        out.print(Text(line, style=style), soft_wrap=True)


def print_wrapped(lines: Iterable[str], out: Console, indent: str = "") -> None:
    """Print lines, wrapped."""
    for line in lines:
        print_lines(wrapped(line, indent), out)


def print_bad_events(lines: list[str], out: Console) -> None:
    """Print what the engine reported wrongly: of several traces the first."""
    if lines:
        more = f" (and in {len(lines) - 1} further traces)" if len(lines) > 1 else ""
        out.print(Text(f"bad events: {lines[0]}{more}\n", style="bold"), soft_wrap=True)


def print_tallies(tallies: list[Tally], out: Console, *, folded: bool = False) -> None:
    """Print what each checker had to judge and what it found; `folded`: those that judged nothing
    in one line.
    """
    everything = tallies
    silent = [tally for tally in tallies if folded and _silent(tally)]
    tallies = [tally for tally in tallies if tally not in silent]
    table = new_table(out, ["checker", "opportunities", "findings", ""])
    alike = Counter(tally.not_applicable for tally in tallies if tally.not_applicable)
    for why, count in alike.items():
        if count >= ALIKE_MIN:
            table.add_row(f"{count} checkers", "-", "-", f"not applicable: {why}")
    for tally in tallies:
        # These stand in one line above, so that the rules that apply are not lost among them.
        if alike[tally.not_applicable] >= ALIKE_MIN:
            continue
        note = f"not applicable: {tally.not_applicable}" if tally.not_applicable else ""
        note = note or tally.unjudged
        note = note or (idle(tally) if not tally.opportunities else "")
        note = note or (f"{tally.acceptable:,} acceptable" if tally.acceptable else "")
        note = note or "\n".join(map(_measured_line, tally.measured))
        numbers = (
            ("-", "-")
            if tally.not_applicable
            else (f"{tally.opportunities:,}", f"{tally.findings:,}")
        )
        table.add_row(tally.checker, *numbers, note)
    print_table(table, out)
    out.print()
    lines = [_silent_line(silent), reused(everything), excused(everything), denials(everything)]
    for line in filter(None, lines):
        print_lines([*wrapped(line, ""), ""], out)


def _silent(tally: Tally) -> bool:
    """Whether a checker neither judged anything nor says that it could not."""
    return bool(tally.not_applicable) or not (tally.opportunities or tally.unjudged)


def _silent_line(silent: list[Tally]) -> str:
    """Count the checkers that judged nothing; empty if there are none."""
    if not silent:
        return ""
    idle_ones = sum(not tally.not_applicable for tally in silent)
    return (
        f"{_counted(len(silent), 'further checker')}: {idle_ones} had nothing to judge,"
        f" {len(silent) - idle_ones} not applicable (--json, or report.json of --report, says why)"
    )


def _measured_line(measured: Measured) -> str:
    """Return what comparing one quantity in one dtype came to, in one line."""
    m = measured
    tolerance = (
        f"{m.tolerance:.1e}" if m.least == m.tolerance else f"{m.least:.1e} to {m.tolerance:.1e}"
    )
    bad = [
        f"{count:,} of them {name}"
        for name, count in (("NaN", m.nan), ("infinity", m.infinite))
        if count
    ]
    line = (
        f"{m.dtype} {m.what}: noise floor {m.floor:.1e}, tolerance {tolerance}, largest difference"
        f" {m.largest:.1e} ({m.share:.1g} of its tolerance); {m.beyond:,} of {m.rows:,}"
        f" beyond{', ' * bool(bad)}{', '.join(bad)}"
    )
    hits = (
        f", {m.restored_rows:,} after a hit; {m.restored / m.asked:.0%} of tokens restored, as the"
        " engine counts them (that it did not compute them is beyond proof)"
        if m.asked
        else ""
    )
    repeats = (
        f"; {m.repeats_restored:,} of {_counted(m.repeats, 'prompt')} asked again at once had"
        " something restored"
        if m.repeats
        else ""
    )
    return line + hits + repeats


def print_activity(activity: Activity, out: Console) -> None:
    """Print in one line what happened, so that an idle run is not mistaken for a clean one."""
    counted = {name.replace("_", " "): getattr(activity, name) for name in COUNTS}
    out.print(
        Text(", ".join(f"{name} {count:,}" for name, count in counted.items())), soft_wrap=True
    )
    out.print()


def print_verdict(code: int, out: Console, reasons: Iterable[str] = (), passed: str = "") -> None:
    """Print the verdict with its exit code; `passed` says what a pass means here."""
    name, colour, meaning = MEANINGS[code]
    explanation = "; ".join(reasons) or (passed if code == EXIT_PASS else "") or meaning
    text = (
        Text("verdict: ")
        .append(name, style=f"bold {colour}")
        .append(f" (exit code {code}): {explanation}")
    )
    out.print(text, soft_wrap=True)


def print_objects(
    rows: list[dict[str, Any]], columns: Mapping[str, str], out: Console, *, justify: str = "left"
) -> None:
    """Print a list of objects; `columns` maps a key to its heading."""
    table = new_table(out, [*columns.values()], numbers=justify == "right")
    for row in rows:
        table.add_row(*(_format(row.get(key, "")) for key in columns))
    print_table(table, out)


def covered(report: Report) -> str:
    """Return in one line what a run covered, so that a narrow one is seen as one."""
    total = report.activity
    names = list(dict.fromkeys(entry.what for entry in report.not_run))
    more = f" and {len(names) - LISTED_REASONS_MAX} more" if len(names) > LISTED_REASONS_MAX else ""
    left_out = f"not run: {', '.join(names[:LISTED_REASONS_MAX]) or 'nothing'}{more}"
    gone = (
        f"; {total.aborted_by_engine:,} of {_counted(total.requests, 'request')} aborted by the engine"  # noqa: E501
        if total.aborted_by_engine
        else ""
    )
    tallies = report.tallies()
    lines = (*unasked(total), excused(tallies), denials(tallies))
    more = "".join(f"; {line}" for line in lines if line)
    return f"covered: {_done(report)}; {reached(total.largest)}; {left_out}{gone}{more}"


def in_short(report: Report) -> str:
    """Return how much a run covered, and how many things it left out."""
    left_out = len({entry.what for entry in report.not_run})
    return f"{_done(report)}; not run: {_counted(left_out, 'thing') if left_out else 'nothing'}"


def _done(report: Report) -> str:
    total = report.activity
    suites = sum(bool(suite.traces) for suite in report.suites)
    traces = sum(suite.traces for suite in report.suites)
    return (
        f"{_counted(suites, 'suite')}, {_counted(traces, 'trace')},"
        f" {_counted(total.operations, 'operation')},"
        f" {_counted(total.hits, 'hit')} in {_counted(total.lookups, 'look-up')}"
    )


def reached(largest: Largest) -> str:
    """Return the largest values that a trace reached."""
    images = f", {_counted(largest.images, 'image')}" if largest.images else ""
    pages = f", a page reused {_counted(largest.reuses, 'time')}" if largest.reuses else ""
    return (
        f"at most a prompt of {largest.prompt:,}, an answer of {_counted(largest.answer, 'token')},"
        f" {_counted(largest.requests, 'request')} of one engine{images}{pages}"
    )


def unasked(activity: Activity) -> list[str]:
    """Say, in a line each, what was asked otherwise than a trace has it; nothing if all was
    asked as it stands there.
    """
    again = activity.sent_again
    sent = (
        f"requests were sent again {_counted(again, 'time')}, as the server was not there or had no"
        " time"
    )
    to_go_on = _counted(activity.continued + activity.left_out, "request")
    left_out = (
        f"{activity.left_out:,} of {to_go_on} that go on after an earlier answer left out, as that"
        " answer was too short"
    )
    return [sent] * bool(again) + [left_out] * bool(activity.left_out)


def listed(failures: Iterable[Failure]) -> str:
    """Return in one sentence which failures the user's list has, by anomaly and reason; empty
    without any.
    """
    known = [failure for failure in failures if failure.expected and not failure.known]
    kinds = list(
        dict.fromkeys(f"{failure.finding.anomaly} ({failure.expected})" for failure in known)
    )
    more = f" and {len(kinds) - LISTED_REASONS_MAX} more" if len(kinds) > LISTED_REASONS_MAX else ""
    if not known:
        return ""
    return (
        f"{_counted(len(known), 'expected finding')}, listed as"
        f" {', '.join(kinds[:LISTED_REASONS_MAX])}{more}"
    )


def speed(report: Report) -> str:
    """Return how fast a run was, and, where the engine's own processor time is known, what the
    harness took beside it.
    """
    operations = report.activity.operations
    rate = operations / report.seconds if report.seconds else 0.0
    text = f"{operations:,} operations in {report.seconds:.1f} s: {rate:,.0f} operations/s"
    if report.engine_seconds is None:
        return text
    harness = report.harness_seconds
    times = (
        f" ({harness / report.engine_seconds:.1f} times the engine's)"
        if harness is not None and report.engine_seconds
        else ""
    )
    beside = "" if harness is None else f", in the harness {harness:.2f} s{times}"
    inside = f"processor time: inside the engine {report.engine_seconds:.2f} s{beside}"
    return f"{text}\n{inside}; start-up {report.startup_seconds:.2f} s"


def _heading(report: Report, configurations: int, out: Console) -> None:
    version = f" ({report.engine_version})" if report.engine_version else ""
    on = f"{configurations} configurations" if configurations > 1 else "1 configuration"
    out.print(
        Text(f"engine {report.engine}{version}, {on}, seed {report.seed}", style="bold"),
        soft_wrap=True,
    )
    print_environment(report, out)
    if report.held:
        out.print(Text(report.held), soft_wrap=True)
    out.print()


def print_environment(report: Report, out: Console) -> None:
    """Print the settings that came from the environment, and those that a run replaces, a line
    each.
    """
    for origin in [*report.environment, *report.settings]:
        out.print(Text(origin), soft_wrap=True)


def _print_suites(report: Report, out: Console) -> None:
    names = (
        "suite",
        "traces",
        "operations",
        "hits",
        "tier",
        "restored",
        "evicted",
        "preempted",
        "seconds",
        "verdict",
    )
    table = new_table(out, names)
    for suite in report.suites:
        a = suite.activity
        counts = (
            suite.traces,
            a.operations,
            a.hits,
            a.from_tier,
            a.restored,
            a.evictions,
            a.preemptions,
        )
        colour = {"pass": "green", "fail": "bold red", "bad events": "red", "unknown": "yellow"}[
            suite.outcome
        ]
        verdict = suite.outcome if suite.traces else "not run"
        table.add_row(
            suite.name,
            *(f"{n:,}" for n in counts),
            f"{suite.seconds:.1f}",
            Text(verdict, style=colour if suite.traces else ""),
        )
    print_table(table, out)
    if more := besides(report.activity):
        out.print(Text(more), soft_wrap=True)
    out.print()


def besides(activity: Activity) -> str:
    """Return in one line what only some configurations have: drafts, steps in flight, loads from
    another tier.
    """
    drafts = (
        f"{activity.drafts_accepted:,} of {_counted(activity.drafts, 'draft')} accepted"
        if activity.drafts
        else ""
    )
    steps = f"{_counted(activity.overlapped_steps, 'step')} scheduled while another was in flight"
    loads = f"{_counted(activity.loaded_tokens, 'token')} loaded from another tier"
    parts = [
        drafts,
        steps if activity.overlapped_steps else "",
        loads if activity.loaded_tokens else "",
    ]
    return ", ".join(filter(None, parts))


def _print_rest(report: Report, out: Console, *, folded: bool = False) -> None:
    """Print what the controls came to, what was not run, what was not judged, and what was
    expected to fail; `folded`: without the checkers that judged nothing, which were counted.
    """
    print_section(
        "controls",
        [f"{suite.name}: {row.line}" for suite in report.suites for row in suite.controls],
        out,
    )
    grouped: dict[str, list[str]] = {}
    for entry in report.not_run:
        times = f" ({entry.count} traces)" if entry.count > 1 else ""
        grouped.setdefault(entry.why, []).append(entry.what + times)
    print_section("not run", [f"{', '.join(what)}: {why}" for why, what in grouped.items()], out)
    vacuous = report.vacuous
    if folded:
        idle_ones = {f"checker {t.checker} {idle(t)}" for t in report.tallies() if _silent(t)}
        vacuous = [line for line in vacuous if line not in idle_ones]
    print_section("nothing to judge", vacuous, out)
    print_expected(report, out)


def print_expected(report: Report, out: Console) -> None:
    """Print which failures the user's list has, and what it says in vain."""
    expected = [failure for failure in report.failures if failure.expected and not failure.known]
    lines = [f"{f.id}: {f.finding.anomaly} ({f.expected})" for f in expected[:LISTED_MAX]]
    more = [f"… and {len(expected) - LISTED_MAX} more"] if len(expected) > LISTED_MAX else []
    print_section("expected failures", lines + more, out)
    print_section("expected to fail, but passed", report.unexpected_passes, out)
    print_section("expected failures that fit no trace of this run", report.unmatched, out)
    print_section("expected failures whose day is over, which excuse nothing", report.expired, out)


def print_known(report: Report, out: Console) -> None:
    """Print what the release is known for and the run met again, a line each."""
    if report.known_list is None:
        return
    out.print(Text(report.known_list.line, style="bold"), soft_wrap=True)
    known = [failure for failure in report.failures if failure.known]
    for failure in known[:LISTED_MAX]:
        line = f"  {failure.finding.anomaly}  {failure.id}  ({failure.expected})"
        out.print(Text(line), soft_wrap=True)
    if len(known) > LISTED_MAX:
        out.print(Text(f"  … and {len(known) - LISTED_MAX} more"))
    out.print()


def print_section(title: str, lines: Collection[str], out: Console) -> None:
    """Print lines under a title, wrapped; nothing if there are none."""
    if lines:
        out.print(Text(f"{title}:", style="bold"))
        print_wrapped(lines, out, "  ")
        out.print()


def _print_further(report: Report, out: Console) -> None:
    printed = {failure.id for failure in shown(report)}
    failures = [
        failure for failure in report.failures if not failure.expected and failure.id not in printed
    ]
    lines = [f"{f.finding.anomaly}  {f.id}" for f in failures[:LISTED_MAX]]
    if len(failures) > LISTED_MAX:
        lines.append(f"… and {len(failures) - LISTED_MAX} more (all of them with --report DIR)")
    if report.not_kept:
        lines.append(f"{report.not_kept} are named alone, and were not kept (--max-failures)")
    print_section(
        f"{len(failures)} further failures" if len(failures) > 1 else "one further failure",
        lines,
        out,
    )


def reasons(report: Report) -> list[str]:
    """Return why the verdict is what it is; nothing where there is nothing to add to what its
    code means.
    """
    release = report.known_list
    met = [release.line] if release is not None and release.findings else []
    known = [*filter(None, [listed(report.failures)]), *met]
    # In the order of the codes: an interrupted run says so before what it found, as its findings
    # may not be all.
    if report.exit_code == EXIT_INTERRUPTED:
        return [
            "stopped before its end",
            "until then " + "; ".join(_found(report) or known or ["nothing found"]),
        ]
    changed = [report.change.verdict] if report.change else []
    nothing = f"nothing {'else ' * bool(known)}found"
    if report.exit_code == EXIT_PASS and report.only:
        chosen = f"{nothing} by {', '.join(report.only)}, which is no verdict on the other traces"
        return [chosen, *changed, *known]
    if report.exit_code == EXIT_PASS:
        return [nothing, *changed, *known] if known or changed else []
    if report.exit_code == EXIT_FAIL:
        return [*_found(report), *known, *_if_unchanged(report)]
    if report.bad_events and report.exit_code == EXIT_USAGE:
        traces = sum(suite.traces for suite in report.suites)
        return [
            f"the engine reports events that cannot be followed, in {len(report.bad_events)} of"
            f" {traces} traces"
        ]
    if report.exit_code == EXIT_USAGE:
        return ["the list of expected failures is out of date", *report.broken_list]
    if report.exit_code == EXIT_NOTHING_CHECKED:
        return report.vacuous + known
    if report.exit_code == EXIT_UNKNOWN:
        crashed = [tally.checker for tally in report.tallies() if tally.crashed]
        open_ = (
            [f"checker {', '.join(crashed)} crashed; what it would have judged is open"]
            if crashed
            else []
        )
        open_ += sorted({line for suite in report.suites for line in suite.open})
        died = [line for suite in report.suites for line in suite.crashed if line.startswith(DIED)]
        return [*open_, *died, *known]
    return []


def _if_unchanged(report: Report) -> list[str]:
    line = report.known_list.if_unchanged if report.known_list else ""
    return [line] * bool(line)


def _found(report: Report) -> list[str]:
    """Return how many traces failed that were not expected to, by anomaly; nothing if none did."""
    found = gravest_first(one.finding for one in report.failures if not one.expected)
    failed = Counter(finding.anomaly for finding in found)
    losses = len(report.baseline.losses) if report.baseline else 0
    lost = [
        f"less is restored than in the baseline, on {_counted(losses, 'configuration')} of suites"
    ] * bool(losses)
    if not failed:
        return lost
    controls = sum(row.traces for suite in report.suites for row in suite.controls)
    traces = sum(suite.traces for suite in report.suites) + controls
    kinds = ", ".join(f"{name} in {count}" for name, count in failed.items())
    of = f"{traces} traces, {controls} of them of controls," if controls else f"{traces} traces"
    return [f"{failed.total()} of {of} contradict a rule ({kinds})", *lost]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _format(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return "\n".join(f"{key}: {text}" for key, text in value.items())
    return str(value)
