"""What one stage of vLLM's second model runner makes of a step: what it computes of each request,
and what it copies.

Source: vLLM 0.33.0, `v1/worker/gpu/model_runner.py`, `pp_utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cachewitness.core.events import Move
from cachewitness.engines.cache_state import Tables
from cachewitness.systems.vllm.second_runner import Hosted
from cachewitness.systems.vllm.worker_copies import Copies
from cachewitness.systems.vllm.worker_slots import pages_of


class State(NamedTuple):
    """The page whose state a request goes on from, before anything was copied in front of the step,
    and the pages that it writes: after its known tokens, and after each draft.
    """

    origin: int
    targets: list[int]


class Computed(NamedTuple):
    """What a step computes of a request: its tokens and their `positions`, over so many (`length`),
    and what it reads and writes, by group and column.
    """

    tokens: list[int]
    positions: list[int]
    length: int
    bound: int
    """What the host takes for the most that `length` can be."""
    rows: Tables
    states: dict[int, State]


class Stage:
    """A runner that is all of a worker, or one of several stages; `copies` are its caches."""

    def __init__(self, hosted: Hosted, copies: Copies) -> None:
        self._hosted = hosted
        self._runner = hosted.runner
        self._metadata = hosted.metadata
        self._states = hosted.states
        self._copies = copies
        self.computed: dict[str, Computed] = {}
        """What the last step computes of each request."""
        self.copies: list[Move] = []
        """The copies of blocks in front of it."""
        self.padded: list[int] = []
        """The pages that its padding is written into."""

    def execute(self, output: Any) -> None:
        """Have the runner prepare a step and compute it."""
        self._number_states()
        with self._copies.of(output.kv_cache_block_copies) as self.copies:
            self._runner.execute_model(output, self._hosted.received)
        done = self._runner.execute_model_state
        self.computed = {} if done is None else self._read(done.input_batch)
        self.padded = [] if done is None else self._padded(done.input_batch)

    def sample(self, counts: Mapping[str, int]) -> list[Move]:
        """Have the runner sample so many tokens, or hear of them; return the copies of states
        behind the step.
        """
        if self._runner.execute_model_state is None:
            return []
        self._number_states()
        if self._runner.sampler is not None:
            self._runner.sampler.counts = counts
        self._runner.sample_tokens(None)
        return [
            Move(held, page)
            for state in self._states.values()
            for page, parts in enumerate(state[:, :, 0].T.tolist())
            if (held := _held(page, parts)) != page
        ]

    def _number_states(self) -> None:
        import torch

        for state in self._states.values():
            state.copy_(torch.arange(state.shape[1])[:, None])

    def _read(self, batch: Any) -> dict[str, Computed]:
        """Return what attention is told of each request."""
        common = self._metadata[0].common
        lengths = common.seq_lens.tolist()
        bounds = common.seq_lens_cpu_upper_bound.tolist()
        ends = common.query_start_loc.tolist()
        tokens = batch.input_ids.tolist()
        positions = batch.positions.tolist()
        read = {}
        for row, r in enumerate(batch.req_ids):
            first = ends[row]
            behind = ends[row + 1]
            own = positions[first:behind]
            states = {
                group: self._state(group, row, int(batch.idx_mapping[row]))
                for group in self._states
                if self._metadata[group].mamba_aligned_state_indices is not None
            }
            rows = [
                self._row(group, row, first, own, lengths[row])
                for group in range(len(self._metadata))
            ]
            read[r] = Computed(tokens[first:behind], own, lengths[row], bounds[row], rows, states)
        return read

    def _padded(self, batch: Any) -> list[int]:
        """Return the pages that what pads a step is written into: a token that has a slot, and the
        state of a request whose row is not null.
        """
        pages = set[int]()
        for group, metadata in enumerate(self._metadata):
            states = metadata.mamba_aligned_state_indices
            if states is not None:
                pages.update(states[batch.num_reqs : batch.num_reqs_after_padding, 0].tolist())
            elif group not in self._states and metadata.has_slots:
                slots = metadata.common.slot_mapping[batch.num_tokens :].tolist()
                pages.update(slot // metadata.block_size for slot in slots if slot >= 0)
        return sorted(pages - {0})  # page 0 is vLLM's null block

    def _state(self, group: int, row: int, index: int) -> State:
        """Return where the state of a request comes from and goes to: `row` of the batch, `index`
        of the runner's requests.
        """
        pages: list[int] = self._metadata[group].mamba_aligned_state_indices[row].tolist()
        stood = int(self._runner.model_state.num_accepted_tokens_gpu[index])
        page = pages[stood - 1]
        return State(_held(page, self._states[group][:, page, 0].tolist()), pages)

    def _row(
        self, group: int, row: int, first: int, positions: list[int], length: int
    ) -> list[int]:
        """Return what a request of a batch reads and writes of a group, by column: its row, with
        the pages that its tokens are put into, which begin with the `first` of the batch.
        """
        metadata = self._metadata[group]
        size = metadata.block_size
        columns = -(-max(length, positions[-1] + 1) // size)
        pages: list[int] = metadata.common.block_table_tensor[row, :columns].tolist()
        if group not in self._states and metadata.has_slots:
            slots = metadata.common.slot_mapping[first : first + len(positions)].tolist()
            put(pages, pages_of(positions, slots, size))
        return pages


def put(row: list[int], pages: Mapping[int, int]) -> None:
    """Put pages into those columns that a row has."""
    for column, page in pages.items():
        if 0 <= column < len(row):
            row[column] = page


def _held(page: int, parts: Sequence[int]) -> int:
    """Return whose state a page holds, by the numbers of pages in its parts; its own where they
    disagree: what was copied in part goes on as what nobody copied.
    """
    return parts[0] if len(set(parts)) == 1 else page
