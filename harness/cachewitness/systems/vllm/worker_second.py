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

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Move, Run, Settled
from cachewitness.engines.cache_state import Tables
from cachewitness.systems.vllm.second_runner import Hosted, Unsampled
from cachewitness.systems.vllm.source import Source
from cachewitness.systems.vllm.worker_copies import Copies
from cachewitness.systems.vllm.worker_slots import pages_of
from cachewitness.systems.vllm.worker_tables import WorkerTables, without_cleared


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


class SecondWorker(WorkerTables):
    """Has vLLM's second model runner follow what its scheduler says. `pages`: of the largest
    pool. `late`: only when a step runs is it known how many drafts of the one before stood.
    """

    def __init__(
        self, source: Source, config: Any, kv_cache_config: Any, pages: int, *, late: bool
    ) -> None:
        import torch

        super().__init__()
        self.late = late
        self._copies = Copies(pages)
        self._unsampled = Unsampled()
        hosted = Hosted(source, config, kv_cache_config, [*self._copies.caches], self._unsampled)
        self._runner = hosted.runner
        self._metadata = hosted.metadata
        self._states = hosted.states
        self._numbers = torch.arange(pages)[:, None]
        self._computed: dict[str, Computed] = {}
        self._outputs: deque[Any] = deque()

    def update(self, output: Any) -> dict[str, int]:
        """Take in what a step tells the worker; return the position from which each request
        computes. See `WorkerTables`.
        """
        starts = super().update(output)
        if self.late:
            self._outputs.append(output)
            self.copies = []
            return starts
        self.copies = self._execute(output)
        self._sample({})
        return {r: computed.positions[0] for r, computed in self._computed.items()}

    def settle(
        self, settled: Settled, counts: Mapping[str, int], requests: Mapping[str, Any], null: int
    ) -> None:
        """Take in the oldest step; see `WorkerTables`."""
        settled.before += self._execute(self._outputs.popleft())
        drafts = {run.r: run.drafts for run in settled.runs}
        wrong = self._fed(drafts, requests)
        for index, run in enumerate(settled.runs):
            became = settled.runs[index] = self._became(run, null, settled.before)
            if run.r in requests:
                _check(became, requests[run.r].num_tokens)
                became.fed = wrong.get(run.r, [])
        settled.after += self._sample(counts)

    def _execute(self, output: Any) -> list[Move]:
        """Have the runner prepare a step and compute it; return the copies of blocks in front of
        it.
        """
        self._number_states()
        with self._copies.of(output.kv_cache_block_copies) as copies:
            self._runner.execute_model(output)
        done = self._runner.execute_model_state
        self._computed = {} if done is None else self._read(done.input_batch)
        self.spoiled = [] if done is None else self._padded(done.input_batch)
        return copies

    def _sample(self, counts: Mapping[str, int]) -> list[Move]:
        """Have the runner sample so many tokens; return the copies of states behind the step."""
        if self._runner.execute_model_state is None:
            return []
        self._number_states()
        self._runner.sampler.counts = counts
        self._runner.sample_tokens(None)
        return [
            Move(int(held), page)
            for state in self._states.values()
            for page, held in enumerate(state[:, 0].tolist())
            if held != page
        ]

    def _number_states(self) -> None:
        for state in self._states.values():
            state.copy_(self._numbers)

    def _became(self, run: Run, null: int, before: list[Move]) -> Run:
        """Return a run as the runner has it; what it goes on from is copied `before` if that is not
        in a column of its own.
        """
        computed = self._computed[run.r]
        tables = without_cleared(computed.rows, run.tables, null)
        start = computed.positions[0]
        stop = start + len(computed.tokens)
        known = stop - len(run.drafts)
        scratch = [list[int]() for _ in tables] if run.drafts else []
        for group, state in computed.states.items():
            size = self._metadata[group].block_size
            column = (known - 1) // size
            _put(tables[group], {column: state.targets[0]})
            if run.drafts:
                scratch[group] = state.targets[1 : 1 + len(run.drafts)]
            if start and (start - 1) // size != column:
                _put(tables[group], {(start - 1) // size: state.origin})
            elif start and state.origin != state.targets[0]:
                before.append(Move(state.origin, state.targets[0]))
        return replace(run, start=start, stop=stop, tables=tables, scratch=scratch)

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
        return sorted(pages - {0})

    def _state(self, group: int, row: int, index: int) -> State:
        """Return where the state of a request comes from and goes to: `row` of the batch, `index`
        of the runner's requests.
        """
        pages: list[int] = self._metadata[group].mamba_aligned_state_indices[row].tolist()
        stood = int(self._runner.model_state.num_accepted_tokens_gpu[index])
        return State(int(self._states[group][pages[stood - 1], 0]), pages)

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
            _put(pages, pages_of(positions, slots, size))
        return pages

    def fed(
        self, drafts: Mapping[str, list[int]], requests: Mapping[str, Any]
    ) -> dict[str, list[int]]:
        """Return, by request of the last step whose tokens, places or lengths are not its own, what
        is fed of it but its drafts; 0 for a token that is not at its place.
        """
        return {} if self.late else self._fed(drafts, requests)

    def _fed(
        self, drafts: Mapping[str, list[int]], requests: Mapping[str, Any]
    ) -> dict[str, list[int]]:
        wrong = dict[str, list[int]]()
        for r, computed in self._computed.items():
            start = computed.positions[0]
            known = len(computed.tokens) - len(drafts.get(r, ()))
            sound = computed.length == start + len(computed.tokens) <= computed.bound
            own = requests[r].all_token_ids if r in requests else ()
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
        if self.late or r not in self._computed:
            return super().rows(r, held, null)
        computed = self._computed[r]
        rows = without_cleared(computed.rows, held, null)
        for group, state in computed.states.items():
            size = self._metadata[group].block_size
            _put(rows[group], {computed.positions[-1] // size: state.targets[0]})
            if computed.positions[0]:
                _put(rows[group], {(computed.positions[0] - 1) // size: state.origin})
        return rows


def _check(run: Run, tokens: int) -> None:
    """Raise EngineFailure for a run over more known tokens than there are."""
    if run.known > tokens:
        raise EngineFailure(
            "engine-crashed",
            f"had tokens [{run.start}, {run.stop}) of {run.r} computed in its worker, the last"
            f" {len(run.drafts)} of them drafts; it has {tokens}",
        )


def _put(row: list[int], pages: Mapping[int, int]) -> None:
    """Put pages into those columns that a row has."""
    for column, page in pages.items():
        if column < len(row):
            row[column] = page
