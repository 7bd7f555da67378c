"""Faults of a device: block tables, keys and counts are right, and only the numbers are wrong.

They are planted into an engine that computes. They are the positive controls of the rule that
ledger and tensors must agree: the ledger finds nothing, and the logits are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec

from cachewitness.core.events import Run, StepBegin
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_faults.toy import restored

TOY = ("toy",)
NULL = 0
"""The page of the device's space that stands for one that is not there."""


@mutant(
    name="device-skips-copies",
    mirrors="vllm-project/vllm#55112",
    anomaly="silent-divergence",
    checker="tensors",
    group="K",
    engines=TOY,
)
def copies_left_out(engine: Any) -> None:
    """The device runs a step without the copies that come before it."""
    _rewrite(engine, lambda begin: msgspec.structs.replace(begin, copies=[]))


@mutant(
    name="device-rows-grow",
    mirrors="vllm-project/vllm#42273",
    anomaly="silent-divergence",
    checker="tensors",
    group="G",
    engines=TOY,
)
def device_rows_grow(engine: Any) -> None:
    """The device's row of a request is not rewritten when it comes back.

    Keep a request's rows of the block table from one step to the next, and add what is new in them.
    """
    rows: dict[str, list[list[int]]] = {}

    def grown(begin: StepBegin) -> StepBegin:
        runs = []
        for run in begin.runs:
            old = rows.get(run.r, [[] for _ in run.tables])
            rows[run.r] = [row + new[len(row) :] for row, new in zip(old, run.tables, strict=True)]
            runs.append(msgspec.structs.replace(run, tables=[list(row) for row in rows[run.r]]))
        return msgspec.structs.replace(begin, runs=runs)

    _rewrite(engine, grown)


@mutant(
    name="fresh-state-not-cleared",
    mirrors="vllm-project/tpu-inference#2431, vllm-project/vllm#56524",
    anomaly="silent-divergence",
    checker="tensors",
    group="E",
    engines=TOY,
)
def fresh_state_not_cleared(engine: Any) -> None:
    """A fresh prompt goes on from the state of the request that had its page before.

    Let a request that starts from nothing go on from whatever its first page holds.
    """

    def chunk(original: Any, run: Run, tokens: Any) -> Any:
        made = original(run, tokens)
        return replace(made, start=_Warm(0)) if run.start == 0 else made

    wrap(engine.tensors, "_chunk", chunk)


class _Warm(int):
    """A start at token 0 that does not pass for one."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return hash(0)

    def __bool__(self) -> bool:
        return True

    def __sub__(self, other: int) -> int:
        return 0


@mutant(
    name="pad-row-on-a-live-page",
    mirrors="lightseekorg/tokenspeed#700, vllm-project/vllm#33937",
    anomaly="silent-divergence",
    checker="tensors",
    group="F",
    engines=TOY,
)
def pad_row_on_a_live_page(engine: Any) -> None:
    """A row of padding writes into a page that a request has.

    Fill a batch up with a row that computes a token of padding into the last pages of the first
    request.
    """

    def execute(original: Any, begin: StepBegin, withdrawn: Any, tokens: Any) -> Any:
        logits = original(begin, withdrawn, tokens)
        live = [run for run in begin.runs if run.r not in withdrawn]
        if live:
            tables = [row[-1:] for row in live[0].tables]
            pad = msgspec.structs.replace(
                begin, runs=[Run("", 0, 1, tables)], copies=[], zeros=[], stores=[]
            )
            original(pad, (), {"": [0]})
        return logits

    wrap(engine.tensors, "execute", execute)


@mutant(
    name="rows-of-a-batch-swapped",
    mirrors="vllm-project/vllm#41841",
    anomaly="silent-divergence",
    checker="tensors",
    group="F",
    engines=TOY,
)
def rows_of_a_batch_swapped(engine: Any) -> None:
    """Two rows of a batch keep their states in one another's pages."""

    def swap(states: list[_States]) -> None:
        for one, other in pairwise(states):
            if one.run is not other.run and one.view is other.view and one.write != other.write:
                kept = one.content(one.write)
                theirs = one.content(other.write)
                one.put(one.write, theirs)
                one.put(other.write, kept)
                return

    _after(engine, lambda states, before: swap(sorted(states, key=lambda state: state.group)))


@mutant(
    name="short-chunk-stores-where-it-read",
    mirrors="vllm-project/vllm#56196",
    anomaly="silent-divergence",
    checker="tensors",
    group="J",
    engines=TOY,
)
def short_chunk_stores_where_it_read(engine: Any) -> None:
    """A chunk shorter than the convolution overwrites the state that it began with.

    Store the convolution's state of a chunk shorter than its history in the page that it was read
    from.
    """

    def put_back(states: list[_States], before: dict[int, list[Any]]) -> None:
        for state in states:
            conv = state.view[0]
            if (
                0 < state.run.stop - state.run.start < conv.shape[2]
                and state.run.start
                and state.read != state.write
            ):
                conv[:, state.read] = conv[:, state.write]
                conv[:, state.write] = before[id(state)][0]

    _after(engine, put_back)


@mutant(
    name="short-chunk-keeps-no-state",
    mirrors="vllm-project/vllm#35447",
    anomaly="silent-divergence",
    checker="tensors",
    group="D",
    engines=TOY,
)
def short_chunk_keeps_no_state(engine: Any) -> None:
    """A short chunk of a prompt is taken for drafts, and its state is not kept."""

    def put_back(states: list[_States], before: dict[int, list[Any]]) -> None:
        for state in states:
            if (
                state.run.start
                and state.run.stop - state.run.start in (2, 3)
                and not state.run.drafts
            ):
                state.put(state.write, before[id(state)])

    _after(engine, put_back)


@mutant(
    name="continuation-from-nothing",
    mirrors="huggingface/transformers#46741, kekzl/imp#156",
    anomaly="silent-divergence",
    checker="tensors",
    group="J",
    engines=TOY,
)
def continuation_from_nothing(engine: Any) -> None:
    """A chunk of several tokens starts from nothing although something came before.

    Start every chunk of more than one token from an empty state.
    """

    def execute(original: Any, begin: StepBegin, withdrawn: Any, tokens: Any) -> Any:
        kept = []
        for state in _states(engine, begin, withdrawn):
            if state.run.start and state.run.stop - state.run.start > 1:
                kept.append((state, state.content(state.read)))
                state.put(state.read, [0.0] * len(state.view))
        logits = original(begin, withdrawn, tokens)
        for state, content in kept:
            if state.read != state.write:
                state.put(state.read, content)
        return logits

    wrap(engine.tensors, "execute", execute)


@dataclass(eq=False)
class _States:
    """Where a run's state of one recurrent group is: `view` has its tensors by page, `read` and
    `write` are pages.
    """

    run: Run
    group: int
    view: list[Any]
    read: int
    write: int

    def content(self, page: int) -> list[Any]:
        return [tensor[:, page].clone() for tensor in self.view]

    def put(self, page: int, content: list[Any]) -> None:
        for tensor, value in zip(self.view, content, strict=True):
            tensor[:, page] = value


def _states(engine: Any, begin: StepBegin, withdrawn: Any) -> list[_States]:
    pools = engine.tensors.pools
    found = []
    for run in begin.runs:
        tables = engine.tensors.tables(run)
        for g, (group, view) in enumerate(zip(pools.groups, pools.views, strict=True)):
            if len(view) == 2 and run.r not in withdrawn:
                read, write = (
                    -(-position // group.block_size) - 1 for position in (run.start, run.known)
                )
                read, write = (
                    tables[g][column] if 0 <= column < len(tables[g]) else NULL
                    for column in (read, write)
                )
                if pools.writable(write) and (not run.start or pools.writable(read)):
                    found.append(_States(run, g, view, read, write))
    return found


def _after(engine: Any, change: Callable[[list[_States], dict[int, list[Any]]], None]) -> None:
    """Change the states that a step leaves behind, knowing what was in their pages before."""

    def execute(original: Any, begin: StepBegin, withdrawn: Any, tokens: Any) -> Any:
        states = _states(engine, begin, withdrawn)
        before = {id(state): state.content(state.write) for state in states}
        logits = original(begin, withdrawn, tokens)
        change(states, before)
        return logits

    wrap(engine.tensors, "execute", execute)


def _rewrite(engine: Any, change: Callable[[StepBegin], StepBegin]) -> None:
    wrap(engine.tensors, "execute", lambda original, begin, *args: original(change(begin), *args))


MUTANTS = declared(globals()) + restored.MUTANTS
