"""Candidates for shrinking a trace, whether they still fail or not: shorter prompts, fewer steps,
fewer groups.

Every function yields candidates in a fixed order, the largest reduction first. Lengths are cut to
the least, by halves, by whole blocks (which leaves them where they were on the grid, as most faults
need) and by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import lcm

import msgspec

from cachewitness.core.trace_format import (
    Abort,
    Extend,
    Finish,
    Layout,
    Op,
    Preempt,
    Step,
    Submit,
    TraceHeader,
    length_of,
)


def fewer(count: int, unit: int = 0) -> Iterator[int]:
    """Yield smaller positive counts, the boldest first; with a unit, also those that lie alike
    on its grid.
    """
    tried = set()
    on_grid = (count % unit, count % unit + unit, count - unit) if unit else ()
    for less in (1, *on_grid, count // 2, count * 3 // 4, count - 1):
        if 0 < less < count and less not in tried:
            tried.add(less)
            yield less


def size(header: TraceHeader, ops: list[Op]) -> tuple[int, int, int, int]:
    """Return operations, tokens that they ask for, pool, and groups and options: what a smaller
    trace has less of.
    """
    weight = 0
    for op in ops:
        if isinstance(op, Step):
            weight += sum(tokens + 1 for _, tokens in op.run)
        elif isinstance(op, Submit | Extend):
            weight += length_of(op.prompt) + len(op.prompt.split()) + op.generate
    return len(ops), weight, header.pages, len(header.layout.groups) + len(header.options)


def unit_of(header: TraceHeader) -> int:
    """Return the grid on which all groups of a layout lie, in tokens."""
    return lcm(*(group.block_size for group in header.layout.groups))


# --- operations -----------------------------------------------------------------------------------


def without(ops: list[Op], r: str) -> Iterator[Op]:
    """Yield the operations as if a request had never come."""
    for op in ops:
        if isinstance(op, Step):
            run = [entry for entry in op.run if entry[0] != r]
            if run or not op.run:
                yield msgspec.structs.replace(op, run=run, **_naming(op, lambda name: name != r))
        elif getattr(op, "r", "") != r:
            yield op


def known(ops: list[Op]) -> Iterator[Op]:
    """Yield the operations without what they ask of requests that were not submitted before,
    which does nothing.
    """
    submitted: set[str] = set()
    for op in ops:
        if isinstance(op, Submit):
            submitted.add(op.r)
        elif isinstance(op, Step):
            run = [entry for entry in op.run if entry[0] in submitted]
            if op.run and not run:
                continue
            op = msgspec.structs.replace(op, run=run, **_naming(op, submitted.__contains__))
        elif isinstance(op, Extend | Finish | Abort | Preempt) and op.r not in submitted:
            continue
        yield op


def _naming(op: Step, who: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return whom a step takes back and whom it loses, of those who are still there."""
    return {
        "withdraw": [r for r in op.withdraw if who(r)],
        "cancel": [r for r in op.cancel if who(r)],
    }


def row(ops: list[Op], index: int) -> int:
    """Return how many steps in a row, from an index on, ask for the same requests."""
    first = ops[index]
    if not isinstance(first, Step):
        return 0
    asked = [r for r, _ in first.run]
    last = index
    while last < len(ops):
        op = ops[last]
        if (
            not isinstance(op, Step)
            or [r for r, _ in op.run] != asked
            or (last > index and _special(op))
        ):
            break
        last += 1
    return last - index


def _special(op: Step) -> bool:
    return bool(op.withdraw or op.cancel or op.fail)


def merged(steps: list[Op]) -> Step:
    """Return one step that asks for what all of them ask for."""
    run: dict[str, int] = {}
    budget = 0
    for step in steps:
        assert isinstance(step, Step)
        budget = max(budget, step.budget)
        for r, tokens in step.run:
            run[r] = run.get(r, 0) + tokens
    first = steps[0]
    assert isinstance(first, Step)
    return Step(
        run=list(run.items()),
        budget=budget,
        withdraw=first.withdraw,
        cancel=first.cancel,
        fail=first.fail,
    )


def prompted(ops: list[Op]) -> Iterator[list[Op]]:
    """Yield traces in which a request's prompt has what it generated, so that the steps in which
    it did can go.
    """
    for index, op in enumerate(ops):
        if isinstance(op, Submit) and not op.generate:
            text = op.stream or f"@{op.r}"
            single = sum(
                isinstance(step, Step) and _asks_for_one(step, op.r) for step in ops[index + 1 :]
            )
            for count in (single, single // 2, single // 4):
                if count:
                    longer = msgspec.structs.replace(op, prompt=f"{op.prompt} {text}:{count}")
                    yield [*ops[:index], longer, *_without_singles(ops[index + 1 :], op.r, count)]


def _asks_for_one(step: Step, r: str) -> bool:
    return (r, 1) in step.run if step.run else True


def _without_singles(ops: list[Op], r: str, count: int) -> Iterator[Op]:
    """Yield the operations without the first so many steps of one token; the request's first
    step has them instead.
    """
    given = False
    left = count
    for op in ops:
        if (
            isinstance(op, Step) and not op.run
        ):  # the engine's scheduler chooses: whole steps go, but for the first
            if given and left:
                left -= 1
                continue
            given = True
        elif isinstance(op, Step) and any(name == r for name, _ in op.run):
            if not given:
                given = True
                op = msgspec.structs.replace(
                    op, run=[(name, n + count * (name == r)) for name, n in op.run]
                )
            elif left and (r, 1) in op.run:
                left -= 1
                run = [entry for entry in op.run if entry != (r, 1)]
                if not run:
                    continue
                op = msgspec.structs.replace(op, run=run)
        yield op


def shared_texts(ops: list[Op], unit: int) -> Iterator[list[Op]]:
    """Yield traces in which a segment that several prompts have is shorter in all of them."""
    terms = [term for op in ops if isinstance(op, Submit | Extend) for term in op.prompt.split()]
    for term in dict.fromkeys(term for term in terms if terms.count(term) > 1):
        text, _, count = term.rpartition(":")
        for less in fewer(int(count), unit):
            yield [_replaced(op, term, f"{text}:{less}") for op in ops]


def _replaced(op: Op, term: str, other: str) -> Op:
    if not isinstance(op, Submit | Extend) or term not in op.prompt.split():
        return op
    return msgspec.structs.replace(
        op, prompt=" ".join(other if part == term else part for part in op.prompt.split())
    )


def simpler(op: Op, unit: int) -> Iterator[Op]:
    """Yield one operation with less in it."""
    if isinstance(op, Step):
        yield from _simpler_step(op, unit)
    elif isinstance(op, Submit | Extend):
        for field, nothing in (
            ("salt", ""),
            ("adapter", ""),
            ("media", []),
            ("kernels", ""),
            ("stream", ""),
        ):
            if getattr(op, field, nothing):
                yield msgspec.structs.replace(op, **{field: nothing})
        for less in fewer(op.generate, unit):
            yield msgspec.structs.replace(op, generate=less)
        terms = op.prompt.split()
        for index, term in enumerate(terms):
            if len(terms) > 1:
                yield msgspec.structs.replace(
                    op, prompt=" ".join(terms[:index] + terms[index + 1 :])
                )
            text, _, count = term.rpartition(":")
            for less in fewer(int(count), unit):
                yield msgspec.structs.replace(
                    op, prompt=" ".join([*terms[:index], f"{text}:{less}", *terms[index + 1 :]])
                )


def _simpler_step(op: Step, unit: int) -> Iterator[Op]:
    for index, (r, tokens) in enumerate(op.run):
        if len(op.run) > 1:
            yield msgspec.structs.replace(op, run=op.run[:index] + op.run[index + 1 :])
        for less in fewer(tokens, unit):
            yield msgspec.structs.replace(
                op, run=[*op.run[:index], (r, less), *op.run[index + 1 :]]
            )
    if op.withdraw:
        yield msgspec.structs.replace(op, withdraw=op.withdraw[1:])
    if op.cancel:
        yield msgspec.structs.replace(op, cancel=op.cancel[1:])
    for index in range(len(op.fail)):
        yield msgspec.structs.replace(op, fail=op.fail[:index] + op.fail[index + 1 :])
    if op.budget:
        yield msgspec.structs.replace(op, budget=0)


# --- configuration --------------------------------------------------------------------------------


def plainer(header: TraceHeader) -> Iterator[TraceHeader]:
    """Yield configurations with a group less, or an option."""
    layout = header.layout
    for index in range(len(layout.groups) if len(layout.groups) > 1 else 0):
        groups = layout.groups[:index] + layout.groups[index + 1 :]
        part = Layout(
            f"part-of-{layout.name.removeprefix('part-of-')}", groups, "what matters of a layout"
        )
        yield msgspec.structs.replace(header, layout=part)
    for name in header.options:
        yield msgspec.structs.replace(
            header, options={key: value for key, value in header.options.items() if key != name}
        )
