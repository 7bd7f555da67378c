"""What vLLM's second model runner (`v1/worker/gpu`) makes of the scheduler's outputs.

Its own `execute_model` and `sample_tokens` take in what the scheduler says: which row a request
has, its block tables and the staged writes to them, positions, tokens, slots, running states. What
Triton kernels write these kernels write, on the host (`triton_words`). What a step computes from
and over is read where attention is told of it. So a row that goes wrong between the host and what a
device would read is seen, and so is a row of tokens that is another request's.

Not run: CUDA graphs (each step is padded as if it had one), the encoder, LoRA, drafters. What
depends on the order of streams, or on a buffer that is used again too early, is not shown:
everything runs in turn.

Source: vLLM 0.33.0, `v1/worker/gpu/model_runner.py`, `block_table.py`, `states.py`,
`input_batch.py`, `buffer_utils.py`, `model_states`; `v1/worker/mamba_utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cachewitness.engines.cache_state import Tables
from cachewitness.systems.vllm.second_runner import Hosted, Unsampled
from cachewitness.systems.vllm.source import Source
from cachewitness.systems.vllm.worker_copies import Copies
from cachewitness.systems.vllm.worker_slots import pages_of
from cachewitness.systems.vllm.worker_tables import WorkerTables, without_cleared


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


class SecondWorker(WorkerTables):
    """Has vLLM's second model runner follow what its scheduler says. `pages`: of the largest
    pool.
    """

    def __init__(self, source: Source, config: Any, kv_cache_config: Any, pages: int) -> None:
        import torch

        super().__init__()
        self._copies = Copies(pages)
        self._unsampled = Unsampled()
        hosted = Hosted(source, config, kv_cache_config, [*self._copies.caches], self._unsampled)
        self._runner = hosted.runner
        self._metadata = hosted.metadata
        self._states = hosted.states
        self._numbers = torch.arange(pages)[:, None]
        self._computed: dict[str, Computed] = {}

    def update(self, output: Any) -> dict[str, int]:
        """Take in what a step tells the worker; return the position from which each request
        computes. See `WorkerTables`.
        """
        super().update(output)
        for state in self._states.values():
            state.copy_(self._numbers)
        with self._copies.of(output.kv_cache_block_copies) as self.copies:
            self._runner.execute_model(output)
        self._computed = {}
        if (done := self._runner.execute_model_state) is not None:
            self._computed = self._read(done.input_batch)
            self._runner.sample_tokens(None)
        return {r: computed.positions[0] for r, computed in self._computed.items()}

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
            read[r] = Computed(
                tokens[first:behind],
                own,
                lengths[row],
                bounds[row],
                [
                    self._row(group, row, first, own, lengths[row])
                    for group in range(len(self._metadata))
                ],
            )
        return read

    def _row(
        self, group: int, row: int, first: int, positions: list[int], length: int
    ) -> list[int]:
        """Return what a request of a batch reads and writes of a group, by column: its row, with
        the pages that its tokens are put into, or that its state comes from and goes to. Its tokens
        begin with the `first` of the batch.
        """
        metadata = self._metadata[group]
        size = metadata.block_size
        columns = -(-max(length, positions[-1] + 1) // size)
        pages: list[int] = metadata.common.block_table_tensor[row, :columns].tolist()
        placed = {}
        if metadata.mamba_aligned_state_indices is not None:
            page = int(metadata.mamba_aligned_state_indices[row, 0])
            placed[positions[-1] // size] = page
            if positions[0]:
                placed[(positions[0] - 1) // size] = int(self._states[group][page, 0])
        elif metadata.has_slots:
            slots = metadata.common.slot_mapping[first : first + len(positions)].tolist()
            placed = pages_of(positions, slots, size)
        for column, page in placed.items():
            if column < len(pages):
                pages[column] = page
        return pages

    def fed(
        self, drafts: Mapping[str, list[int]], requests: Mapping[str, Any]
    ) -> dict[str, list[int]]:
        """Return, by request of the last step whose tokens, places or lengths are not its own, what
        is fed of it but its drafts; 0 for a token that is not at its place.
        """
        wrong = dict[str, list[int]]()
        for r, computed in self._computed.items():
            start = computed.positions[0]
            known = len(computed.tokens) - len(drafts.get(r, ()))
            sound = computed.length == start + len(computed.tokens) <= computed.bound
            own = requests[r].all_token_ids
            places = range(start, start + known)
            fed = [*zip(computed.tokens, computed.positions, places, strict=False)]
            right = [sound and position == place for _, position, place in fed]
            if not all(
                at_its_place and self._is(number, r, place, own)
                for at_its_place, (number, _, place) in zip(right, fed, strict=True)
            ):
                wrong[r] = [
                    self._unsampled.token(number, requests) if at_its_place else 0
                    for at_its_place, (number, _, _) in zip(right, fed, strict=True)
                ]
        return wrong

    def _is(self, number: int, r: str, place: int, own: Any) -> bool:
        """Whether a number is a request's token at a place, or stands for it."""
        return self._unsampled.stands_for(number, r, place) or (
            place < len(own) and number == own[place]
        )

    def rows(self, r: str, held: Tables, null: int) -> Tables:
        """Return a request's rows of the block tables as far as the last step reads them. `held`
        is the engine's own table.
        """
        computed = self._computed.get(r)
        return without_cleared(computed.rows, held, null) if computed else held
