"""Metamorphic relations: what must be the same, or not less, when a trace is changed in a way that
means nothing to a cache.

There is no oracle for the right answer; two runs of one engine are compared:

* however a prompt is split into chunks, the same keys are published at the boundaries that both
  splits have;
* a larger pool never makes a hit shorter;
* the names of requests change nothing, and neither does the order of requests that share nothing;
* the same trace has the same history again;
* a larger retention interval never adds a key.

Each function runs both and returns the differences as sentences, none if the relation holds. Each
function names what it requires of the traces: in a pool under pressure, for example, requests wait,
and a waiting request may find more than before.

Prefixes are compared by content, tokens and whatever else is part of their identity, so that it
does not matter who published.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.engine import Engine
from cachewitness.core.events import (
    Accept,
    Event,
    Group,
    Header,
    History,
    Hit,
    Publish,
    StepBegin,
    Submitted,
)
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Media,
    Op,
    Preempt,
    Step,
    Submit,
    Trace,
    TraceHeader,
    length_of,
)

Open = Callable[[TraceHeader], Engine]
"""Builds the engine of a trace; `EngineSpec.open` is one."""
Key = tuple[int, tuple[int, ...], tuple[Any, ...]]
"""A published prefix: its group, its tokens, and the other parts of its identity."""


def run(open_engine: Open, trace: Trace) -> History:
    """Run a trace and return its history. Raises UsageError if the engine refuses it or
    contradicts a rule on the way.
    """
    result = drive(trace, open_engine(trace.header))
    if result.findings:
        raise UsageError(
            f"{trace.header.name}: relations are asked of runs without findings;"
            f" {result.findings[0].sentence}"
        )
    return result.history


# --- splits ---------------------------------------------------------------------------------------


def split(trace: Trace, submit: Submit, chunks: Iterable[int]) -> Trace:
    """Return the trace that computes one prompt in chunks of so many tokens, then ends, what it
    stores slowly included.
    """
    manager = trace.header.level == "manager"
    options = trace.header.options
    steps = [Step(run=[(submit.r, count)]) if manager else Step(budget=count) for count in chunks]
    delay = options.get("tier_delay", 0)
    return trace.with_ops(
        [
            submit,
            *steps,
            Finish(submit.r),
            *[Step()] * (delay and delay + options.get("async_depth", 0)),
        ]
    )


def splits_agree(
    open_engine: Open, trace: Trace, submit: Submit, one: Sequence[int], other: Sequence[int]
) -> list[str]:
    """Whether two splits of a prompt publish the same keys at the boundaries that both have.

    Boundaries are those of a group's blocks; where a state is written at the end of a chunk alone,
    and inside of blocks, they are the ends of chunks. A tier that stores all groups of a chunk as
    one object has them only where all groups do. The prompt is alone and starts cold, in a pool
    that has room for it; only what is computed in both is compared.
    """
    (mine, my_ends), (theirs, their_ends) = (
        _prefilled(run(open_engine, split(trace, submit, c))) for c in (one, other)
    )
    described = open_engine(trace.header).describe()
    computed = min(max(my_ends), max(their_ends), length_of(submit.prompt))
    common = my_ends & their_ends

    def compared(key: tuple[int, int]) -> bool:
        group, length = key
        return length <= computed and (
            length in common or _everywhere(described, described.groups[group], length)
        )

    different = sorted(filter(compared, mine ^ theirs))
    return [
        f"group {group} publishes the first {length} tokens only if they are computed in chunks"
        f" that end at {sorted(my_ends if (group, length) in mine else their_ends)}"
        for group, length in different
    ]


def _everywhere(header: Header, group: Group, length: int) -> bool:
    """Whether a group has a key at a length wherever chunks end."""
    states = [
        other
        for other in header.groups
        if other.kind == "recurrent" and other.snapshots == "chunk-end"
    ]
    together = (
        group.source_group >= 0 and header.rules.tier is not None and header.rules.tier.together
    )
    return length % group.block_size == 0 and group not in states and not (together and states)


def _prefilled(history: History) -> tuple[set[tuple[int, int]], set[int]]:
    """Return what was published, as (group, length), and where chunks ended."""
    published = {
        (event.group, event.length) for event in history.events if isinstance(event, Publish)
    }
    ends = {
        begun.stop
        for event in history.events
        if isinstance(event, StepBegin)
        for begun in event.runs
    }
    return published, ends or {0}


# --- capacity -------------------------------------------------------------------------------------


def served_in_turn(trace: Trace, pages: int, chunk: int) -> Trace:
    """Return the requests of a trace one after the other, each computed in chunks that end at
    multiples of `chunk`, then over.

    Nobody waits for anybody, so what is found depends on what is cached alone.
    """
    ops: list[Op] = []
    manager = trace.header.level == "manager"
    for submit in [op for op in trace.ops if isinstance(op, Submit)]:
        steps = -(-length_of(submit.prompt) // chunk) + 2
        ops += [
            submit,
            *[Step(run=[(submit.r, chunk)]) if manager else Step(budget=chunk)] * steps,
            Finish(submit.r),
        ]
    return Trace(msgspec.structs.replace(trace.header, pages=pages, needs=[]), ops)


def capacity_never_lowers_a_hit(open_engine: Open, trace: Trace, pages: int) -> list[str]:
    """Whether every request finds as much when the pool has so many pages as when it has the
    trace's own, which are fewer.

    Requests are served in turn. It holds for attention alone, whatever the capacities: what is over
    is used from its first page on, so pages go in the order of their last use. With windows and
    states it does not have to: a longer hit computes less, and what was not computed again is not
    used, nor kept at boundaries that only another request makes reachable.
    """
    assert pages > trace.header.pages
    roomy = Trace(msgspec.structs.replace(trace.header, pages=pages), trace.ops)
    less, more = (_hits(run(open_engine, asked)) for asked in (trace, roomy))
    return [
        f"{r} resumes at {less[r]} with {trace.header.pages} pages, at {more.get(r, 0)} with"
        f" {pages}"
        for r in less
        if less[r] > more.get(r, 0)
    ]


def _hits(history: History) -> dict[str, int]:
    """Return where each request resumed when it was first looked up."""
    found: dict[str, int] = {}
    for event in history.events:
        if isinstance(event, Hit):
            found.setdefault(event.r, event.resume)
    return found


# --- names and order ------------------------------------------------------------------------------


def renamed(trace: Trace, names: Mapping[str, str]) -> Trace:
    """Return the trace with other names for its requests; what they say and generate stays."""

    def one(op: Op) -> Op:
        if isinstance(op, Submit):
            return msgspec.structs.replace(op, r=names[op.r], stream=op.stream or f"@{op.r}")
        if isinstance(op, Step):
            run_ = [(names[r], count) for r, count in op.run]
            who = {
                "withdraw": [names[r] for r in op.withdraw],
                "cancel": [names[r] for r in op.cancel],
            }
            return msgspec.structs.replace(op, run=run_, **who)
        return (
            msgspec.structs.replace(op, r=names[op.r])
            if isinstance(op, Finish | Abort | Preempt)
            else op
        )

    return trace.with_ops(map(one, trace.ops))


def names_do_not_matter(open_engine: Open, trace: Trace, names: Mapping[str, str]) -> list[str]:
    """Whether the whole history is the same when requests have other names; their order by name
    may be any.
    """
    theirs = {new: old for old, new in names.items()}
    expected = _lines(run(open_engine, trace).events, {})
    return _first_difference(
        expected, _lines(run(open_engine, renamed(trace, names)).events, theirs)
    )


def repeats(open_engine: Open, trace: Trace) -> list[str]:
    """Whether a trace has the same history twice."""
    return _first_difference(*(_lines(run(open_engine, trace).events, {}) for _ in range(2)))


def _lines(events: Iterable[Event], names: Mapping[str, str]) -> list[str]:
    """Return events as text, requests called as in `names`."""
    return [repr(_called(msgspec.to_builtins(event), names)) for event in events]


def _called(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _called(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_called(item, names) for item in value]
    if not isinstance(value, str):
        return value
    what, colon, r = value.rpartition(":")  # a holder may be `copy:r1`
    return what + colon + names.get(r, r)


def _first_difference(expected: list[str], happened: list[str]) -> list[str]:
    if expected == happened:
        return []
    pairs = zip(expected, happened, strict=False)
    at = next(
        (index for index, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(happened))
    )
    a, b = ("".join(lines[at : at + 1]) or "nothing" for lines in (expected, happened))
    return [f"event {at} is {a} in one run, {b} in the other"]


def interleaved(trace: Trace, lives: Sequence[Sequence[Op]], seed: int) -> Trace:
    """Return several lives as one trace, each in its own order, in an order among them that the
    seed chooses.

    At scheduler level a step is everybody's: lives are submitted and end in any order, and the
    steps are in between.
    """
    order = random.Random(seed)
    if trace.header.level == "manager":
        turns = [index for index, life in enumerate(lives) for _ in life]
        order.shuffle(turns)
        rest = [list(life) for life in lives]
        return trace.with_ops(rest[turn].pop(0) for turn in turns)
    mixed = order.sample(lives, len(lives))
    steps = max(sum(isinstance(op, Step) for op in life) for life in lives)
    begun = [op for life in mixed for op in life if isinstance(op, Submit)]
    ended = [
        op for life in order.sample(mixed, len(mixed)) for op in life if isinstance(op, Finish)
    ]
    return trace.with_ops([*begun, *[Step()] * steps, *ended])


def order_does_not_matter(open_engine: Open, one: Trace, other: Trace) -> list[str]:
    """Whether every request finds, computes, publishes and generates the same in both traces.

    They have the same requests in another order. Requests that follow each other in both may share;
    all others share nothing, and the pool has room for all of them.
    """
    mine, theirs = (_lives(run(open_engine, trace)) for trace in (one, other))
    return [
        f"{r} did {mine.get(r)} in one order, {theirs.get(r)} in the other"
        for r in mine
        if mine[r] != theirs.get(r)
    ]


def _lives(history: History) -> dict[str, list[tuple[Any, ...]]]:
    """Return what became of each request, in its own order, without the pages and steps in which
    it did; keys last.
    """
    lives: dict[str, list[tuple[Any, ...]]] = {}
    keys: dict[str, list[tuple[Any, ...]]] = {}
    for event in history.events:
        if isinstance(event, Hit):
            lives.setdefault(event.r, []).append(("hit", event.reported, event.resume))
        elif isinstance(event, StepBegin):
            for begun in event.runs:
                lives.setdefault(begun.r, []).append(("ran", begun.start, begun.stop))
        elif isinstance(event, Accept):
            lives.setdefault(event.r, []).append(("has", event.upto))
        elif isinstance(event, Publish):
            keys.setdefault(event.r, []).append(("published", event.group, event.length))
    return {r: [*life, *sorted(keys.get(r, []))] for r, life in lives.items()}


# --- retention ------------------------------------------------------------------------------------


def sparser_adds_nothing(
    open_engine: Open, trace: Trace, option: str, dense: Any, sparse: Any
) -> list[str]:
    """Whether all that is published with the sparser of two retention intervals is published with
    the denser one, too.

    The boundaries of the sparser one are among those of the denser one, and the pool is never full,
    so nothing is computed because it was evicted. It does not hold of an engine that keeps
    shared-prefix boundaries, unless requests are asked one by one: it learns of a shared-prefix
    boundary where a hit is shorter than what is shared, and with the sparser interval hits are
    shorter.
    """
    kept, allowed = (
        _published(run(open_engine, _with(trace, option, value))) for value in (sparse, dense)
    )
    return [
        f"group {group} has a key for {len(tokens)} tokens with {option} = {sparse}, and none with"
        f" {dense}"
        for group, tokens, _ in sorted(kept - allowed, key=repr)
    ]


def _with(trace: Trace, option: str, value: Any) -> Trace:
    return Trace(
        msgspec.structs.replace(trace.header, options=trace.header.options | {option: value}),
        trace.ops,
    )


def _published(history: History) -> set[Key]:
    tokens: dict[str, list[int]] = {}
    identity: dict[str, Submitted] = {}
    keys: set[Key] = set()
    for event in history.events:
        if isinstance(event, Submitted):
            tokens[event.r] = list(event.tokens)
            identity[event.r] = event
        elif isinstance(event, Accept):
            tokens[event.r] += event.tokens
        elif isinstance(event, Publish):
            whose = identity[event.r]
            media = tuple(
                (item.at, item.length, item.hash)
                for item in whose.media
                if _before(item, event.length)
            )
            keys.add(
                (
                    event.group,
                    tuple(tokens[event.r][: event.length]),
                    (whose.salt, whose.adapter, whose.kernels, media),
                )
            )
    return keys


def _before(item: Media, length: int) -> bool:
    return item.at < length
