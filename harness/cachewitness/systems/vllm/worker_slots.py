"""Where vLLM's worker puts each token: its own slot mapping, of its own block tables, run without a
device.

The kernel that maps positions to slots is Python for Triton, and runs on tensors of the CPU
(`triton_words`). It is slow, so it runs for every eighth step. A page that a row has and that the
slots do not lead to is not written, and the other is.

Source: vLLM 0.29.0 to 0.33.0, `v1/worker/block_table.py`.
"""

from __future__ import annotations

import importlib
from typing import Any

from cachewitness.engines.cache_state import Tables

EVERY = 8
LANES = 256
"""How many tokens a program takes at once. vLLM's own 1024 are of no use here; with few, most of
the time goes into the padding behind the tokens of a step."""
NOWHERE = -1
"""The page of a token whose slot is not its place in any page."""


class SlotMapping:
    """Maps the tokens of a step to slots, and says which pages they are in."""

    def __init__(self, batch: Any) -> None:
        from cachewitness.systems.vllm.triton_words import Kernel

        module: Any = importlib.import_module("vllm.v1.worker.block_table")
        kernel = module._COMPUTE_SLOT_MAPPING_KERNEL
        vars(kernel).update(triton_block_size=LANES, kernel=Kernel(type(kernel).kernel, [module]))
        self._tables = [
            (group, table)
            for group, table in enumerate(batch.block_table.block_tables)
            if table.slot_mapping_mode is module.SlotMappingMode.TOKEN_TO_KV_SLOT
        ]
        self._steps = 0
        self._pages: dict[tuple[str, int], dict[int, int]] = {}

    def update(self, counts: dict[str, int], batch: Any) -> None:
        """Map the tokens that each request computes in a step, unless this step is left out."""
        import torch

        self._pages.clear()
        self._steps += 1
        if self._steps % EVERY != 1 or not counts:
            return
        names = batch.req_ids
        starts = [int(batch.num_computed_tokens_cpu[index]) for index in range(len(names))]
        positions = [
            position
            for r, start in zip(names, starts, strict=True)
            for position in range(start, start + counts[r])
        ]
        ends = [0]
        for r in names:
            ends.append(ends[-1] + counts[r])
        batch.block_table.commit_block_table(len(names))
        batch.block_table.compute_slot_mapping(
            len(names), torch.tensor(ends, dtype=torch.int32), torch.tensor(positions)
        )
        for group, table in self._tables:
            slots = table.slot_mapping.gpu[: len(positions)].tolist()
            for index, r in enumerate(names):
                first = ends[index]
                stop = ends[index + 1]
                self._pages[r, group] = pages_of(
                    positions[first:stop], slots[first:stop], table.block_size
                )

    def shown(self, r: str, rows: Tables) -> Tables:
        """Return a request's rows with the pages that its tokens are put into."""
        for group, _ in self._tables:
            for column, page in self._pages.get((r, group), {}).items():
                if column < len(rows[group]):
                    rows[group][column] = page
        return rows


def pages_of(positions: list[int], slots: list[int], size: int) -> dict[int, int]:
    """Return the page of each column that is written, as the slots say."""
    pages: dict[int, int] = {}
    for position, slot in zip(positions, slots, strict=True):
        page = slot // size if slot % size == position % size else NOWHERE
        pages[position // size] = page if pages.get(position // size, page) == page else NOWHERE
    return pages
