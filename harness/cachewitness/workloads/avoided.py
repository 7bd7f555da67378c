"""Traces at answers level without one of the things that go wrong: what they do not do, they do
not fail by.

The same list serves twice. A trace that fails is run again without each of them, and what makes it
pass is the cause. And with the option `avoid` of a configuration traces are drawn without a cause
that is known, so that the next one comes to light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest
from cachewitness.core.open_findings import NOISE
from cachewitness.core.trace_format import Abort, Finish, Op, Step, Submit, Trace, segments

AVOID = "avoid"
"""The option of a configuration that names what its traces leave out, joined by `+`."""
CHUNK = "chunk"
"""The option of a trace that says how many tokens a step computes at most."""
ROOMY = 4096
UNSPLIT = 1 << 16


def without_aborts(trace: Trace) -> Trace:
    """Let clients wait that went away."""
    return trace.with_ops(Finish(op.r) if isinstance(op, Abort) else op for op in trace.ops)


def without_replays(trace: Trace) -> Trace:
    """Let prompts go on by a token that would be an earlier prompt, a part of one, or one with a
    part of its answer.
    """
    texts: list[list[tuple[str, int]]] = []
    ops: list[Op] = []
    for op in trace.ops:
        if isinstance(op, Submit):
            if any(_begins(text, op.prompt) for text in texts):
                op = replace(op, prompt=f"{op.prompt} {op.r}~:1")
            texts.append([*_spans(op.prompt), (f"@{op.r}", op.generate)])
        ops.append(op)
    return trace.with_ops(ops)


def _spans(prompt: str) -> list[tuple[str, int]]:
    """Return the texts of a prompt, each with where it starts, and how many tokens of it there
    are; neighbours joined.
    """
    return [
        (f"{name}[{start}]" if start else name, count) for name, start, count in segments(prompt)
    ]


def _begins(text: list[tuple[str, int]], prompt: str) -> bool:
    """Whether a text begins with a whole prompt."""
    for place, (name, count) in enumerate(_spans(prompt)):
        if place >= len(text) or text[place][0] != name or text[place][1] < count:
            return False
        if text[place][1] > count:
            return place == len(_spans(prompt)) - 1
    return True


def without_company(trace: Trace) -> Trace:
    """Ask one after another: every request ends, as it does, before the next one comes."""
    own: dict[str, list[Op]] = {}
    under_way: list[str] = []
    for op in trace.ops:
        if isinstance(op, Submit):
            own[op.r] = [op]
            under_way.append(op.r)
        elif isinstance(op, Step):
            for r in under_way:
                own[r].append(op)
        elif isinstance(op, Finish | Abort) and op.r in under_way:
            own[op.r].append(op)
            under_way.remove(op.r)
    for r in under_way:
        own[r].append(Finish(r))
    return trace.with_ops(op for ops in own.values() for op in ops)


def without_pressure(trace: Trace) -> Trace:
    """Run in a pool from which nothing is evicted."""
    return Trace(replace(trace.header, pages=max(trace.header.pages, ROOMY)), trace.ops)


def without_chunks(trace: Trace) -> Trace:
    """Compute every prompt in one step."""
    return Trace(replace(trace.header, options={**trace.header.options, CHUNK: UNSPLIT}), trace.ops)


def without_intervals(trace: Trace) -> Trace:
    """Keep a recurrent state at every block of the smallest size that the layout has."""
    layout = trace.header.layout
    block = min(group.block_size for group in layout.groups)
    groups = [
        replace(group, block_size=block) if group.kind == "recurrent" else group
        for group in layout.groups
    ]
    return Trace(replace(trace.header, layout=replace(layout, groups=groups)), trace.ops)


def without_continuations(trace: Trace) -> Trace:
    """Let other texts stand where prompts go on after an answer, so that nothing is found that
    decoding has computed.
    """
    ops = (
        (
            replace(op, prompt=op.prompt.replace("@~", "@").replace("@", "@~"))
            if isinstance(op, Submit)
            else op
        )
        for op in trace.ops
    )
    return trace.with_ops(ops)


PRESSURE, CONTINUATIONS, INTERVALS = "pressure", "continuations", "intervals"
AVOIDABLE: Mapping[str, tuple[str, Callable[[Trace], Trace]]] = {
    "aborts": ("if no client goes away", without_aborts),
    "replays": (
        "if no prompt is an earlier one, a part of it, or one with its answer",
        without_replays,
    ),
    "company": ("if requests come one after another", without_company),
    PRESSURE: ("in a pool from which nothing is evicted", without_pressure),
    CONTINUATIONS: ("if no prompt goes on after an answer", without_continuations),
    "chunks": ("if every prompt is computed in one step", without_chunks),
    INTERVALS: ("if a recurrent state is kept at every block", without_intervals),
}
"""By name: when a trace of that cause passes, and how a trace is made so."""


OF_CLIENTS = ("aborts", "replays", "company")
"""What clients do, and what is left out by twos as well."""
CACHE = "cache"
TOGETHER = "&"
"""Joins the names of two things of which to leave out either alone is not enough."""
MEANINGS = {
    **NOISE,
    CACHE: "passes without the cache; to leave out any other one thing is not enough",
    **{name: f"passes {when}" for name, (when, _) in AVOIDABLE.items()},
}
"""By cause: what a trace does that fails by it."""


def is_cause(text: str) -> bool:
    """Whether this is a cause of an answer: names with `+`, or two of what clients do with `&`."""
    if TOGETHER in text:
        return len(text.split(TOGETHER)) == len({*OF_CLIENTS} & {*text.split(TOGETHER)}) == 2
    return all(name in MEANINGS for name in text.split("+"))


def covers(cause: str, found: str) -> bool:
    """Whether a cause in a list is that of a finding: the same, or `cache` for what was called that
    before it had a name: two things of which to leave out either is not enough, and intervals
    between states.
    """
    return cause == found or (cause == CACHE and (TOGETHER in found or found == INTERVALS))


def describe_cause(cause: str) -> str:
    """Return what a cause, or several joined by `+`, says of the trace."""
    if TOGETHER in cause:
        both = " and ".join(AVOIDABLE[name][0] for name in cause.split(TOGETHER))
        return f"it passes {both}; to leave out either alone is not enough"
    return "it " + "; it ".join(MEANINGS[name] for name in cause.split("+"))


def as_configured(trace: Trace) -> Trace:
    """Return a trace without what its configuration has it avoid, which is no option of an
    engine.
    """
    options = dict(trace.header.options)
    asked = str(options.pop(AVOID, ""))
    return avoiding(Trace(replace(trace.header, options=options), trace.ops), asked)


def avoiding(trace: Trace, asked: str) -> Trace:
    """Return a trace without what an `avoid` option names.

    Raises UsageError for a name that is none.
    """
    for name in filter(None, asked.split("+")):
        if name not in AVOIDABLE:
            raise UsageError(
                f"--option: nothing to avoid is called {name!r}{nearest(name, AVOIDABLE)}"
            )
        trace = AVOIDABLE[name][1](trace)
    return trace
