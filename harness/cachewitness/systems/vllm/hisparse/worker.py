"""What vLLM's worker does for HiSparse in a step, told from the connector's metadata: which rows
lie where, and what is copied.

vLLM's `HiSparseConnectorWorker` needs CUDA from its constructor on (`torch.cuda.Stream`, pinned
memory, `swap_blocks_batch`). What it decides without a device is run as it is: the residency of
blocks on the device (`update_hisparse_residency`, on a tensor of the CPU) and which of the rows
that a step writes are mirrored to the host (`_flatten_row_mirrors`, `_select_written_row_mirrors`).
The rest is played: the order of copies, and when they are over.

Attention reads a token's row where the residency of its block says, on the device, and on the host
if it says nothing. Rows of the host are read by way of the request's hot region. What it keeps of
them is not played: it holds what the host holds. Where the request has no such region, or a block
of the host is the request's anew and was not told to be invalid there (`source_block_ids`), a
column of the host has no place.

Sources: vLLM 0.33.0, `distributed/kv_transfer/kv_connector/v1/hisparse/worker.py`;
`v1/hisparse/runtime.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Move
from cachewitness.engines.cache_state import ABSENT, Tables
from cachewitness.systems.vllm.hisparse.places import Places
from cachewitness.systems.vllm.source import Source
from cachewitness.systems.vllm.worker import unpinned
from cachewitness.systems.vllm.worker_tables import WorkerTables

WORKER = "distributed.kv_transfer.kv_connector.v1.hisparse.worker"
CONNECTOR = "distributed.kv_transfer.kv_connector.v1.hisparse.connector"


class Mirror(NamedTuple):
    """Tokens [start, stop) of a request that are also written into a page of a part on the host."""

    part: int
    page: int
    start: int
    stop: int


class HiSparseWorker(WorkerTables):
    """The rows of every request and where they lie. `delay`: a block is copied to the host in so
    many steps.
    """

    def __init__(
        self, source: Source, places: Places, longest: int, most: int, *, eager: bool, delay: int
    ) -> None:
        import torch

        super().__init__()
        self._places = places
        self._eager = eager
        self._delay = delay
        self._flatten = source.part(WORKER, "_flatten_row_mirrors")
        self._select = source.part(WORKER, "_select_written_row_mirrors")
        self._update_residency = source.part("v1.hisparse.runtime", "update_hisparse_residency")
        unpinned()
        self._metadata_type = source.part(CONNECTOR, "HiSparseConnectorWorkerMetadata")
        columns = -(-longest // places.block_size) + 1
        self.residency = torch.zeros((len(places.resident), most, columns), dtype=torch.int32)
        self._free_states = [*range(most - 1, -1, -1)]
        self._states: dict[str, int] = {}
        self._known: dict[str, set[int]] = {}
        """By request: the blocks of the host whose rows in its hot region are known to be invalid
        or its own."""
        self._ran: dict[str, tuple[int, int]] = {}
        self._post_forward: list[Any] = []
        self._transfers: deque[tuple[int, list[int]]] = deque()
        """Transfers under way, with the steps that they take yet."""
        self.stores: list[Move] = []
        """Blocks that the last step copies to the host behind its runs."""
        self.mirrors: dict[str, list[Mirror]] = {}
        """By request of the last step: the rows on the host that it writes beside those on the
        device."""
        self.counts = {"mirrored": 0, "transfers": 0, "host_copies": 0, "host_reads": 0}

    def update(self, output: Any) -> dict[str, int]:
        """Take in what a step tells the worker; return the position from which each request
        computes. See `WorkerTables`.
        """
        for r in {*output.finished_req_ids, *(output.preempted_req_ids or ())}:
            self._leave(r)
        starts = super().update(output)
        meta = output.kv_connector_metadata
        counts = output.num_scheduled_tokens
        for r in self.admitted:
            self._leave(r)
            self._states[r] = self._free_states.pop()
        self._ran = {r: (starts[r], starts[r] + count) for r, count in counts.items()}
        self._learn(meta)
        self._reside(meta)
        self.mirrors = self._mirrored(meta)
        return starts

    def _leave(self, r: str) -> None:
        if (state := self._states.pop(r, None)) is not None:
            self._free_states.append(state)
            self._known.pop(r, None)

    def _learn(self, meta: Any) -> None:
        """Note which blocks of the host were told with this step, and are invalid in hot
        regions.
        """
        invalid = {*meta.source_block_ids}
        for r in self._ran:
            self._known.setdefault(r, set()).update(
                invalid.intersection(self.whole(r)[self._places.source])
            )

    def _reside(self, meta: Any) -> None:
        """Have vLLM note where blocks are read on the device."""
        import torch

        names = [*self._ran]
        indices = torch.tensor([self._states[r] for r in names], dtype=torch.int32)
        self._update_residency(self.residency, meta.residency_updates, names, indices)

    # --- where rows lie ---------------------------------------------------------------------------

    def composed(self, r: str) -> Tables:
        """Return where the attention of a request of the last step reads and writes, by group of
        the ledger and column.

        A block that the step writes into one place, and reads from another, has no place.
        """
        places = self._places
        rows = self.whole(r)
        (start, stop) = self._ran[r]
        host = rows[places.source]
        size = places.block_size
        tables: Tables = []
        for part, group in enumerate(places.resident):
            resident = self.residency[part, self._states[r]].tolist()
            row = []
            for column in range(-(-stop // size)):
                page = resident[column] or (
                    self._read_on_host(r, part, host, column) if rows[places.hot[part]] else ABSENT
                )
                written = rows[group][column] if column < len(rows[group]) else ABSENT
                row.append(page if column < start // size or page == written else ABSENT)
            tables.append(row)
        return [*tables, rows[places.indexer]]

    def reads(self) -> set[tuple[str, int, int]]:
        """Return who reads which blocks of the device in the last step, of each part: (request,
        part, block).
        """
        found: set[tuple[str, int, int]] = set()
        for r, (_, stop) in self._ran.items():
            columns = -(-stop // self._places.block_size)
            for part, row in enumerate(self.residency[:, self._states[r], :columns].tolist()):
                found |= {(r, part, block) for block in row if block}
        return found

    def _read_on_host(self, r: str, part: int, host: list[int], column: int) -> int:
        if column >= len(host) or host[column] not in self._known[r]:
            return ABSENT
        self.counts["host_reads"] += 1
        return self._places.on_host(part, host[column])

    # --- rows and blocks that go to the host ------------------------------------------------------

    def _slots(self) -> Iterator[tuple[str, int, list[int]]]:
        """Yield for each token of the step, in the order of the batch, whose it is, its
        position, and its slot by part.
        """
        size = self._places.block_size
        for r, (start, stop) in self._ran.items():
            rows = [self.whole(r)[group] for group in self._places.resident]
            for position in range(start, stop):
                column, place = divmod(position, size)
                yield (
                    r,
                    position,
                    [row[column] * size + place if column < len(row) else ABSENT for row in rows],
                )

    def _mirrored(self, meta: Any) -> dict[str, list[Mirror]]:
        """Return the rows that vLLM mirrors, each where it lands.

        A row that is taken from another place than it was written to, or that lands at another
        place of its block, is none.
        """
        import numpy

        mirrors: dict[str, list[Mirror]] = {}
        decodes = all(stop - start == 1 for start, stop in self._ran.values())
        if not self._ran or (decodes and not self._eager):
            return mirrors
        written = [*self._slots()]
        slots = numpy.array([slots[0] for _, _, slots in written], dtype=numpy.int64)
        whose = {slots[0]: (r, position, slots) for r, position, slots in written}
        size = self._places.block_size
        for chosen in self._select(self._flatten(meta.row_mirrors, [*self._ran]), slots, 0):
            for index in range(chosen.num_rows):
                r, position, sources = whose[chosen.source_starts[0] + index]
                block, place = divmod(chosen.destination_start + index, size)
                if place == position % size and sources == [
                    first + index for first in chosen.source_starts
                ]:
                    mirrors.setdefault(r, []).extend(self._rows_of(block, position))
        return {r: _joined(found, size) for r, found in mirrors.items()}

    def _rows_of(self, block: int, position: int) -> Iterator[Mirror]:
        self.counts["mirrored"] += 1
        for part in self._places.parts:
            yield Mirror(part, self._places.on_host(part, block), position, position + 1)

    def work(self, meta: Any) -> Any:
        """Do the copies of a step; return what the scheduler is told of them
        (`HiSparseConnectorWorkerMetadata`), or None.

        What is to be copied behind the runs is asked for when the next step begins, and is over so
        many steps later. Raises EngineFailure for a load from elsewhere into the host, which nobody
        can have asked for.
        """
        asked = [transfer.transfer_id for transfer in self._post_forward]
        transfers = meta.command.page_transfers if meta.command is not None else []
        if any(transfer.restore or not transfer.after_forward for transfer in transfers):
            raise EngineFailure(
                "engine-crashed", "had its worker restore a block that was never loaded"
            )
        # Kept until the next step begins, because these copies run behind the runs of this one.
        self._post_forward = [*transfers]
        self.counts["transfers"] += len(transfers)
        self.stores = (
            []
            if self._eager
            else [move for transfer in transfers for move in self._moves(transfer)]
        )
        copies = [(copy.src_block_id, copy.dst_block_id) for copy in meta.host_block_copies]
        on_host = self._places.on_host
        self.copies += [
            Move(on_host(part, src), on_host(part, dst))
            for src, dst in copies
            for part in self._places.parts
        ]
        self.counts["host_copies"] += len(copies)
        self._transfers.append((self._delay, asked))
        over = self._pass()
        if not asked and not over and not copies:
            return None
        return self._metadata_type(
            dict.fromkeys(asked, 1), dict.fromkeys(over, 1), tuple(dst for _, dst in copies)
        )

    def _moves(self, transfer: Any) -> Iterator[Move]:
        for part, block in enumerate(transfer.resident_block_ids):
            yield Move(block, self._places.on_host(part, transfer.host_block_id))

    def _pass(self) -> list[int]:
        """Let the step pass; return the transfers that are over."""
        left = [(steps - 1, numbers) for steps, numbers in self._transfers]
        self._transfers = deque(
            (steps, numbers) for steps, numbers in left if steps > 0 and numbers
        )
        return [number for steps, numbers in left if steps <= 0 for number in numbers]


def _joined(mirrors: list[Mirror], size: int) -> list[Mirror]:
    """Return the rows of one block that follow each other as one."""
    joined: dict[tuple[int, int], list[Mirror]] = {}
    for mirror in mirrors:
        rows = joined.setdefault((mirror.part, mirror.page), [])
        last = rows[-1] if rows else None
        if last is not None and last.stop == mirror.start and mirror.start % size:
            rows[-1] = Mirror(mirror.part, mirror.page, last.start, mirror.stop)
        else:
            rows.append(mirror)
    return [mirror for rows in joined.values() for mirror in rows]
