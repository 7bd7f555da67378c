"""The device's pages, in bytes that can be recognised: what was written, for which layer, at which
place in the page.

Whenever a step writes a page it gets a number that no page had before. Each row of it (of keys or
of values, of a token's place) holds that number, the row's own place, the layer and the worker. So
the bytes in a page say what they were copied from, as a whole or not. Of several workers each has
pages of its own, and what a step writes has one number on all of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.events import StepBegin
from cachewitness.core.trace_format import GroupSpec
from cachewitness.systems.lmcache.modules import PAGE_BYTES
from cachewitness.systems.lmcache.store import Group

LAYERS = 2
"""Layers of each group."""
LEAST = 4
"""Numbers in a row: the page's number in two parts, the place, the layer."""
HALF = 1 << 15


class Pages:
    """So many pages of each group of a layout, the null page included, on each of so many
    `workers`.

    `latent`: full attention keeps one vector of a token and layer, no keys and values (MLA).
    `replicated`: every worker has the same.
    """

    def __init__(
        self,
        specs: Sequence[GroupSpec],
        pages: int,
        *,
        workers: int = 1,
        latent: bool = False,
        replicated: bool = False,
    ) -> None:
        torch = importlib.import_module("torch")
        torch.set_num_threads(
            1
        )  # pages are small: threads would wait for each other longer than they copy
        self._sizes = [spec.block_size for spec in specs]
        self.workers = range(workers)
        shapes = [_shape(spec, pages, latent=latent) for spec in specs]
        tensors = [
            [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(LAYERS)]
            for _ in self.workers
            for shape in shapes
        ]
        rows = [[self._rows_of(torch, tensor) for tensor in layers] for layers in tensors]
        self._rows = [
            rows[worker * len(specs) : (worker + 1) * len(specs)] for worker in self.workers
        ]
        """By worker and group: the layers' numbers."""
        self._marks = [0 if replicated else worker * LAYERS for worker in self.workers]
        self._fresh = [
            [self._first_numbers(torch, of, layer) for layer, of in enumerate(layers)]
            for layers in self._rows[0]
        ]
        """By group: what a page's rows begin with, but for the page's number and the worker."""
        self._count = 0
        windows = [
            {"recurrent": spec.block_size, "sliding": spec.window}.get(spec.kind, -1)
            for spec in specs
        ]
        states = [spec.kind == "recurrent" for spec in specs]
        parts = [*zip(self._sizes, windows, states, strict=True)]
        self.groups = [
            [Group(tensors[worker * len(specs) + group], *rest) for group, rest in enumerate(parts)]
            for worker in self.workers
        ]
        """By worker: its groups."""

    @staticmethod
    def _rows_of(torch: Any, tensor: Any) -> Any:
        """Return a layer's tensor as numbers, [page, row, number]."""
        return tensor.view(torch.int16).view(tensor.shape[0], -1, tensor.shape[-1])

    @staticmethod
    def _first_numbers(torch: Any, rows: Any, layer: int) -> Any:
        """Return the first numbers of each row of a page of a layer, with places and the layer
        in them, [row, number].
        """
        numbers = torch.zeros((rows.shape[1], LEAST), dtype=rows.dtype)
        numbers[:, 2] = torch.arange(rows.shape[1])
        numbers[:, 3] = layer + 1
        return numbers

    def write(self, group: int, page: int) -> None:
        """Have a step write a page, on every worker."""
        self._count += 1
        for mark, groups in zip(self._marks, self._rows, strict=True):
            for layer, (numbers, rows) in enumerate(
                zip(self._fresh[group], groups[group], strict=True)
            ):
                numbers[:, 0] = self._count % HALF
                numbers[:, 1] = self._count // HALF
                numbers[:, 3] = mark + layer + 1
                rows[page, :, :LEAST] = numbers

    def held(self, group: int, page: int, worker: int = 0) -> int:
        """Return the number of what a page of a worker holds, in all its layers and places; 0 if
        nothing, or not one thing.
        """
        mark = self._marks[worker]
        numbers = {
            self._number_in_layer(rows[page], mark + layer)
            for layer, rows in enumerate(self._rows[worker][group])
        }
        return numbers.pop() if len(numbers) == 1 else 0

    def _number_in_layer(self, rows: Any, layer: int) -> int:
        """Return the number in one layer of a page; 0 if its rows do not agree or are not in
        their places.
        """
        values = rows[:, :LEAST].tolist()
        low, high, _, _ = values[0]
        whole = all(row == [low, high, place, layer + 1] for place, row in enumerate(values))
        return low + high * HALF if whole else 0

    def copies(self) -> list[list[list[Any]]]:
        """Return everything as it is now."""
        return [[[rows.clone() for rows in layers] for layers in groups] for groups in self._rows]

    def changed(self, before: Sequence[Sequence[Sequence[Any]]]) -> list[tuple[int, int]]:
        """Return which pages of which groups hold other bytes than before on some worker, and
        say which are torn.
        """
        found = set[tuple[int, int]]()
        for worker, groups in enumerate(self._rows):
            for group, layers in enumerate(groups):
                for rows, old in zip(layers, before[worker][group], strict=True):
                    found |= {
                        (group, page)
                        for page in (rows != old).flatten(1).any(1).nonzero().flatten().tolist()
                    }
        for group, page in sorted(found):
            for worker in self.workers:
                if not self.held(group, page, worker):
                    self._tell_torn(group, page, worker)
        return sorted(found)

    def _tell_torn(self, group: int, page: int, worker: int) -> None:
        mark = self._marks[worker]
        numbers = [
            self._number_in_layer(rows[page], mark + layer)
            for layer, rows in enumerate(self._rows[worker][group])
        ]
        torn = [layer for layer, number in enumerate(numbers) if not number] or [*range(LAYERS)]
        where = f" of worker {worker}" if len(self.workers) > 1 else ""
        print(
            f"block {page} of group {group}{where}: what arrived in layers {torn} is no whole page",
            file=sys.stderr,
        )

    def execute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]
    ) -> None:
        """Carry a step out: zeros, copies on the device, runs. What LMCache moves it has moved
        itself.
        """
        self._move(
            [
                (move.src, move.dst)
                for move in begin.copies
                if (move.src_pool, move.dst_pool) == (0, 0)
            ]
        )
        for run in begin.runs:
            if run.r not in withdrawn:
                for group, page in self._written(run.tables, run.start, run.stop):
                    self.write(group, page)

    def _move(self, moves: Sequence[tuple[int, int]]) -> None:
        for layers in chain.from_iterable(self._rows) if moves else ():
            for rows in layers:
                rows[[dst for _, dst in moves]] = rows[[src for src, _ in moves]]

    def _written(
        self, tables: Sequence[Sequence[int]], start: int, stop: int
    ) -> Iterable[tuple[int, int]]:
        for group, size in enumerate(self._sizes):
            for page in tables[group][start // size : -(-stop // size)]:
                if page:
                    yield group, page


def _shape(spec: GroupSpec, pages: int, *, latent: bool) -> tuple[int, ...]:
    """Return the shape of a layer's tensor: a page of all layers is a page of LMCache's memory.

    Raises UsageError if blocks of so many tokens do not make one.
    """
    kinds = 1 if latent and spec.kind == "full" else 2
    width, left = divmod(PAGE_BYTES, spec.block_size * kinds * 2 * LAYERS)
    if left or width < LEAST:
        raise UsageError(
            f"--engine lmcache: blocks of {spec.block_size} tokens do not make pages of"
            f" {PAGE_BYTES} bytes"
        )
    return (pages, spec.block_size, width) if kinds == 1 else (pages, 2, spec.block_size, 1, width)
