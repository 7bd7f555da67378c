"""The witness of a failure, as lines of plain text.

A reader must be able to follow it by hand: the anomaly and what it implies, the smallest trace that
shows it with the offending operation marked, what the ledger says against what the engine did, and
one command that replays it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby, islice
from textwrap import wrap

import msgspec

from cachewitness._util.lines import beginning, printable
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.checkers.finding import (
    BEYOND_ANSWER,
    EARLY_COPY,
    FAILED_LOAD,
    HELD_BY_WAITING,
    INSIDE_BLOCK,
    KEPT_HASH,
    OPEN_CHUNK,
    ROUNDED_UP,
    Finding,
)
from cachewitness.core.events import Event
from cachewitness.core.ledger.records import GIVEN_BACK, NOT_RUN, OFFERED_AGAIN, RUN_PAST
from cachewitness.core.trace_format import (
    Extend,
    Layout,
    Op,
    Reset,
    Step,
    Submit,
    Trace,
    UpdateWeights,
)
from cachewitness.report.summary import Failure, Stored
from cachewitness.workloads.avoided import describe_cause, is_cause

WIDTH = 100
SHOWN_BEFORE = 36
"""How many operations are shown in front of the offending one; the first ones of a longer trace are
left out."""
EVENTS_BEFORE, EVENTS_AFTER = 8, 2
OUTPUT_LINES = 12
"""How many lines of what an engine printed before it failed are shown."""
_INDENT = "  "


def witness_of(failure: Failure, stored: Stored | None) -> list[str]:
    """Return the witness of a failure of a run."""
    replay = stored.replay if stored else ""
    whole = len(failure.trace.ops)
    notes = {"why_long": failure.why_long, "other_cause": failure.shrunk_cause}
    return witness(
        failure.finding, failure.shrunk, name=failure.id, whole=whole, replay=replay, **notes
    )


def witness(
    finding: Finding,
    trace: Trace,
    *,
    name: str = "",
    whole: int = 0,
    replay: str = "",
    why_long: str = "",
    other_cause: str = "",
) -> list[str]:
    """Return the witness of a trace that failed; `whole` is how many operations the trace had
    before it was shrunk.

    `other_cause` is this trace's, if it is not that of the whole one, which `finding` has.
    `finding.op` is the index of the offending operation; nothing is marked if it is outside the
    trace.
    """
    operations = len(trace.ops)
    length = (
        f"shrunk from {whole} operations to {operations}"
        if whole > operations
        else f"{operations} operations"
    )
    lines = [
        *headline(finding, name),
        f"trace {trace.header.name}, {length}" + (f" ({why_long})" if why_long else ""),
    ]
    lines += [_INDENT + line for line in wrapped(describe(trace))]
    if cause := caused(other_cause):
        lines += wrapped(f"the cause of this trace: {cause}", _INDENT)
    lines += [
        "",
        *marked([compact(op) for op in trace.ops], finding.op),
        "",
        *wrapped(finding.sentence),
    ]
    if finding.output:
        lines += ["", "the last lines that the engine printed:"]
        lines += [
            _INDENT + printable(line)[:WIDTH]
            for line in finding.output.splitlines()[-OUTPUT_LINES:]
        ]
    if replay:
        lines += ["", f"replay: {replay}"]
    return lines


def witness_of_history(
    finding: Finding, events: Iterable[tuple[int, Event]], name: str
) -> list[str]:
    """Return the witness of a recorded history: the events up to the offending one, by their line
    in the file.

    `events` are all of it, each with its line; no more are kept than are shown.
    """
    shown = _around(finding.seq, events)
    lines = headline(finding, name)
    if shown:
        at, line, event = next((entry for entry in shown if entry[0] == finding.seq), shown[-1])
        where = "at" if finding.seq >= 0 else "when everything had happened, after"
        lines.append(f"{where} line {line} (event {at}, step {event.step})")
        width = len(str(shown[-1][1]))
        for index, line, event in shown:
            lines.append(f"{'>' if index == at else ' '} {line:>{width}}  {_short(event)}")
    return [*lines, "", *wrapped(finding.sentence)]


def _around(seq: int, events: Iterable[tuple[int, Event]]) -> list[tuple[int, int, Event]]:
    """Return some events before and after number `seq` (the last ones if it is negative), each
    with its number and its line.
    """
    counted = ((index, line, event) for index, (line, event) in enumerate(events))
    if seq < 0:
        return list(deque(counted, maxlen=EVENTS_BEFORE + 1))
    return list(islice(counted, max(0, seq - EVENTS_BEFORE), seq + EVENTS_AFTER + 1))


def message(finding: Finding) -> str:
    """Return the one line of a finding with its sentence below; the sentence alone if there is
    none.
    """
    return f"{finding.line}\n{finding.sentence}" if finding.line else finding.sentence


def headline(finding: Finding, name: str) -> list[str]:
    """Return the anomaly by name, what happened in one line, the rule that it contradicts and
    what follows from it.
    """
    anomaly = BY_NAME.get(finding.anomaly)
    lines = [
        f"FAIL  {finding.anomaly}  found by {finding.checker}" + (f" in {name}" if name else "")
    ]
    lines += wrapped(finding.line, _INDENT)
    if anomaly:
        lines += wrapped(f"the rule: {anomaly.invariant}", _INDENT)
        lines += wrapped(f"what it implies: {anomaly.implies}", _INDENT)
    if cause := caused(finding.cause):
        lines += wrapped(f"the cause: {cause}", _INDENT)
    return [*lines, ""]


_SHOWN = {
    KEPT_HASH: (
        "the page has the key of a block that the last token of a session's answer had completed,"
        " and the session went on without that token"
    ),
    BEYOND_ANSWER: (
        "a step in flight computed the last token of a session's answer when that was over, and the"
        " session goes on without the token"
    ),
    INSIDE_BLOCK: "the request that computed it had been resumed inside a block of attention",
    NOT_RUN: "its request did not run in the step that was to write it",
    RUN_PAST: (
        "the page holds the state that a chunk began with inside the key's block; the chunk ran"
        " past the key and saved a later state on its way"
    ),
    FAILED_LOAD: "a load from another tier had failed",
    HELD_BY_WAITING: (
        "what others hold who wait as well leaves one of those who wait no room, and a queue in"
        " order stands still behind it"
    ),
    EARLY_COPY: (
        "the page was copied from one that had a key for what the same step was yet to write"
    ),
    OPEN_CHUNK: (
        "the hit ends inside a chunk of which it brings nothing, and the request computes that"
        " chunk from there on alone"
    ),
    ROUNDED_UP: (
        "another tier's hit ends inside a block of states, and what was loaded is the state of"
        " that block's end"
    ),
    GIVEN_BACK: (
        "the page was stored for a request that had given its block back while it went on, and"
        " others had it by then"
    ),
    OFFERED_AGAIN: (
        "the tier was reset, and the page was stored anew for a request that had given its block"
        " back before that, and others had it by then"
    ),
}


def caused(cause: str) -> str:
    """Return a cause and what shows it; empty where it was not looked for."""
    if shown := _SHOWN.get(cause):
        return f"{cause}, as {shown}"
    return f"{cause}, as {describe_cause(cause)}" if is_cause(cause) else ""


def describe(trace: Trace) -> str:
    """Return the header of a trace in one line: groups, pool, options."""
    header = trace.header
    options = "".join(f", {key}={_plain(value)}" for key, value in header.options.items())
    level = "" if header.level == "manager" else f", {header.level} level"
    return (
        f"layout {header.layout.name} ({describe_layout(header.layout)}), {header.pages}"
        f" pages{options}{level}"
    )


def describe_layout(layout: Layout) -> str:
    """Return the groups of a layout, `full 16 + 2 × sliding 16 window 32`; sizes in tokens,
    equal neighbours counted.
    """
    words = [
        f"{group.kind} {group.block_size}"
        + (f" window {group.window}" if group.window else "")
        + (f" chunk {group.chunk}" if group.chunk else "")
        for group in layout.groups
    ]
    runs = [(word, len(list(run))) for word, run in groupby(words)]
    return " + ".join(f"{count} × {word}" if count > 1 else word for word, count in runs)


def compact(op: Op) -> str:
    """Return an operation as people write it: `step r1+16 r2+1`."""
    word = op.__struct_config__.tag
    if isinstance(op, Step):
        return _compact_step(op, str(word))
    if isinstance(op, Extend):
        return f"{word} {op.r}  {op.prompt}  generate {op.generate}"
    if isinstance(op, Submit):
        return _compact_submit(op, str(word))
    if isinstance(op, Reset):
        return f"{word} running" if op.running else str(word)
    if isinstance(op, UpdateWeights):
        return f"{word} {op.version}{f' of {op.adapter}' if op.adapter else ''}"
    return f"{word} {op.r}"


def _compact_step(op: Step, word: str) -> str:
    run = " ".join(f"{r}+{tokens}" for r, tokens in op.run)
    budget = f"budget {op.budget or 'default'}" if not op.run else ""
    withdraw = f"withdraw {' '.join(op.withdraw)}" if op.withdraw else ""
    cancel = f"cancel {' '.join(op.cancel)}" if op.cancel else ""
    fail = f"fail {' '.join(map(str, op.fail))}" if op.fail else ""
    return "  ".join(filter(None, (f"{word} {run}{budget}", withdraw, cancel, fail)))


def _compact_submit(op: Submit, word: str) -> str:
    extras = [name for name in ("session", "prompt_logprobs") if getattr(op, name)]
    extras += [f"generate {op.generate}"] if op.generate else []
    extras += [
        f"{field}={getattr(op, field)}"
        for field in ("salt", "adapter", "kernels", "stream")
        if getattr(op, field)
    ]
    extras += [f"media={item.hash}@{item.at}+{item.length}" for item in op.media]
    return "  ".join([f"{word} {op.r}  {op.prompt}", *extras])


def marked(operations: list[str], at: int) -> list[str]:
    """Return the operations numbered from 1, one of them marked; far in front of it and behind
    it they are left out.
    """
    last = at if 0 <= at < len(operations) else len(operations) - 1
    first = max(0, last - SHOWN_BEFORE)
    width = len(str(len(operations)))
    lines = [f"  … {first} operations before"] if first else []
    lines += [
        f"{'>' if index == at else ' '} {index + 1:>{width}}  {operations[index]}"
        for index in range(first, last + 1)
    ]
    behind = len(operations) - last - 1
    return [*lines, f"  … {behind} operations after"] if behind else lines


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return a text in lines of 100 columns; words, paths among them, stay whole."""
    hang = indent + _INDENT if indent else ""
    return wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=hang,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _short(event: Event) -> str:
    return beginning(msgspec.json.encode(event).decode(), WIDTH)


def _plain(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def shrinking(failure: Failure) -> str:
    """Say that a smaller trace is looked for, which may take a minute."""
    length = len(failure.trace.ops)
    return (
        f"{failure.id} fails ({failure.finding.anomaly}); looking for a smaller trace than its"
        f" {length:,} operations"
    )
