"""Stands in for the device: executes the block tables that an engine hands out.

The worker alone emits `zero`, `copy`, `read` and `write`. It runs a step when the step ends, so a
step that is withdrawn never touches a page, and steps in flight execute in the order in which they
were scheduled. Within a step the order is that of a real forward pass:

1. copies that somebody waits for end; pages are zeroed, then copied (one simultaneous permutation);
   copies from another tier that last several steps begin (where they are `unordered`, when the step
   is scheduled); the copies are made that were not known before the step ran (one more
   permutation);
2. every recurrent group reads the state that its chunk continues from, before any group writes one:
   a state written in the same step is not there yet;
3. all groups write the tokens of the chunk, some of them to a second place as well;
4. attention groups read what their queries need, the chunk included: keys and values of the same
   step, another request's among them, are there;
5. pages are copied that were not known before, then pages to another tier; copies to a tier that
   last several steps begin, and those that are due end or fail.

A recurrent group's state lies in its block table by position: the state after n tokens is in column
⌈n / block⌉ − 1. States after drafts are not in the table, and checkpoints, which a chunk leaves on
its way, need not be: the run says where they go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from cachewitness.core.attention_span import columns, spans_read
from cachewitness.core.events import (
    Copy,
    Event,
    Extended,
    Group,
    Header,
    Move,
    Read,
    Run,
    Settled,
    StepBegin,
    StepEnd,
    Submitted,
    Write,
    Zero,
)

NO_COLUMN = -1
"""The page that the worker names when the table is too short to have one."""
_NOTHING_SETTLED = Settled()


class Worker:
    """Adds the device's events to an engine's."""

    def __init__(self, header: Header) -> None:
        local = header.local_groups()
        self._groups = header.groups
        self._recurrent = [g for g in local if g.kind == "recurrent"]
        self._attention = [g for g in local if g.kind != "recurrent"]
        self._begun: dict[int, StepBegin] = {}
        self._settled: dict[int, Settled] = {}
        self._copies = 0
        self._prompts: dict[str, int] | None = (
            {} if any(group.answer_window for group in local) else None
        )
        """How long prompts are, if that decides what is read."""
        self._local = {pool.id for pool in header.pools if pool.tier == "local"}
        self._under_way: dict[int, Copy] = {}
        self._unordered = header.rules.tier is not None and header.rules.tier.unordered

    def extend(self, events: Iterable[Event]) -> list[Event]:
        """Return the engine's events with each step's execution before the end of the step.

        Loads that wait for no step in flight begin where their own step is scheduled.
        """
        out: list[Event] = []
        for event in events:
            if type(event) is StepBegin:
                self._begun[event.step] = event
                if self._unordered and event.begun:
                    out.append(event)
                    self._begin(_loads(event.begun, self._local), event.step, out)
                    continue
            elif type(event) is Submitted:
                self._is_prompt(event.r, len(event.tokens))
            elif type(event) is Extended:
                self._is_prompt(event.r, event.keep + len(event.tokens))
            elif type(event) is Settled:
                self._settled[event.step] = event
            elif type(event) is StepEnd:
                begun = self._begun.pop(event.step, None)
                if begun is not None:
                    self._execute(begun, event.withdrawn, out)
            out.append(event)
        return out

    def _execute(self, begun: StepBegin, withdrawn: list[str], out: list[Event]) -> None:
        step = begun.step
        settled = self._settled.pop(step, _NOTHING_SETTLED)
        runs = settled.runs_of(begun)
        if withdrawn:
            runs = [run for run in runs if run.r not in withdrawn]
        # The order is that of a device: pages are cleared and copied, states are read before any
        # run of the step overwrites them, all tokens are written before any is read (a token
        # attends to itself), and stores leave when the step is done.
        later = self._move_before(begun, settled, out)
        for run in runs if self._recurrent else ():
            if run.start > 0:
                out += [_read_state(group, run, step) for group in self._recurrent]
        for run in runs:
            for group in self._recurrent:
                _write_states(group, run, step, out)
            out += [_write_tokens(group, run, step) for group in self._attention]
            if run.mirrors:
                out.extend(self._write_mirrors(run, step))
        for run in runs:
            prompt = self._prompts.get(run.r, 0) if self._prompts else 0
            for group in self._attention:
                _read_tokens(group, run, step, prompt, out)
        self._copy(settled.after, step, out)
        self._copy(begun.stores, step, out)
        if later:
            self._begin([entry for entry in later if entry[1].src_pool in self._local], step, out)
        for number in begun.ended:
            self._end(number, "end", step, out)
        for number in begun.failed:
            self._end(number, "fail", step, out)

    def _move_before(
        self, begun: StepBegin, settled: Settled, out: list[Event]
    ) -> list[tuple[int, Move]]:
        """Clear and copy what the runs of a step rely on; return the copies that begin with the
        step and were not flushed.
        """
        step = begun.step
        later = begun.begun
        if begun.flushed:
            self._begin([entry for entry in begun.begun if entry[0] in begun.flushed], step, out)
            later = [entry for entry in begun.begun if entry[0] not in begun.flushed]
        for number in begun.flushed:
            self._end(number, "end", step, out)
        for pool, pages in begun.zeros:
            out.append(Zero(pool=pool, pages=pages, step=step))
        self._copy(begun.copies, step, out)
        if later:
            self._begin(_loads(later, self._local), step, out)
        self._copy(settled.before, step, out)
        return later

    def _is_prompt(self, r: str, tokens: int) -> None:
        if self._prompts is not None:
            self._prompts[r] = tokens

    def _write_mirrors(self, run: Run, step: int) -> Iterable[Write]:
        for index, page, start, stop in run.mirrors:
            pool = self._groups[index].pool
            yield Write(
                pool=pool, group=index, pages=[page], r=run.r, start=start, stop=stop, step=step
            )

    def _begin(self, entries: list[tuple[int, Move]], step: int, out: list[Event]) -> None:
        for number, move in entries:
            if number in self._under_way:
                continue
            self._copies += 1
            self._under_way[number] = Copy(id=self._copies, moves=[move], phase="begin", step=step)
            out.append(self._under_way[number])

    def _end(self, number: int, phase: Literal["end", "fail"], step: int, out: list[Event]) -> None:
        begun = self._under_way.pop(number, None)
        if begun is not None:
            out.append(Copy(id=begun.id, moves=begun.moves, phase=phase, step=step))

    def _copy(self, moves: list[Move], step: int, out: list[Event]) -> None:
        if moves:
            self._copies += 1
            out.append(Copy(id=self._copies, moves=moves, step=step))


def _loads(begun: list[tuple[int, Move]], local: set[int]) -> list[tuple[int, Move]]:
    """Return those of the copies that begin with a step which are from another tier."""
    return [entry for entry in begun if entry[1].src_pool not in local]


def _pages(table: list[int], first: int, last: int) -> list[int]:
    if first == 0 and last == len(table):
        return table  # long ones are told apart by this: the same list holds the same pages
    pages = table[first:last]
    return (
        pages if len(pages) == last - first else pages + [NO_COLUMN] * (last - first - len(pages))
    )


def _read_state(group: Group, run: Run, step: int) -> Read:
    column = (run.start - 1) // group.block_size
    pages = _pages(run.tables[group.id], column, column + 1)
    return Read(
        pool=group.pool, group=group.id, pages=pages, r=run.r, start=0, stop=run.start, step=step
    )


def _write_states(group: Group, run: Run, step: int, out: list[Event]) -> None:
    """Let a recurrent group write its checkpoints, the state after the chunk, and those after
    drafts.
    """
    for index, page, stop in run.checkpoints:
        if index == group.id:
            out.append(
                Write(
                    pool=group.pool,
                    group=index,
                    pages=[page],
                    r=run.r,
                    start=run.start,
                    stop=stop,
                    step=step,
                )
            )
    known = run.known
    size = group.block_size
    table = run.tables[group.id]
    stops = [known]
    if group.snapshots == "every-block":
        stops = [*range((run.start // size + 1) * size, known, size), known]
    for stop in stops:
        column = -(-stop // size) - 1
        pages = _pages(table, column, column + 1)
        out.append(
            Write(
                pool=group.pool,
                group=group.id,
                pages=pages,
                r=run.r,
                start=run.start,
                stop=stop,
                step=step,
            )
        )
    for index in range(len(run.drafts)):
        pages = _pages(run.scratch[group.id], index, index + 1)
        stop = known + index + 1
        out.append(
            Write(
                pool=group.pool,
                group=group.id,
                pages=pages,
                r=run.r,
                start=run.start,
                stop=stop,
                step=step,
            )
        )


def _read_tokens(group: Group, run: Run, step: int, prompt: int, out: list[Event]) -> None:
    """Let an attention group read what the queries of a chunk need, behind a prompt of so many
    tokens.
    """
    table = run.tables[group.id]
    for start, stop in spans_read(group, run.start, run.stop, prompt):
        pages = _pages(table, *columns(group, start, stop))
        out.append(
            Read(
                pool=group.pool,
                group=group.id,
                pages=pages,
                r=run.r,
                start=start,
                stop=stop,
                step=step,
            )
        )


def _write_tokens(group: Group, run: Run, step: int) -> Write:
    pages = _pages(run.tables[group.id], *columns(group, run.start, run.stop))
    return Write(
        pool=group.pool,
        group=group.id,
        pages=pages,
        r=run.r,
        start=run.start,
        stop=run.stop,
        step=step,
    )
