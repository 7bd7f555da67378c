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
from typing import Any

from msgspec.structs import replace

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Move, Run, Settled
from cachewitness.engines.cache_state import Tables
from cachewitness.systems.vllm.second_runner import Unsampled, stages
from cachewitness.systems.vllm.second_stage import Computed, Stage, put
from cachewitness.systems.vllm.source import Source
from cachewitness.systems.vllm.worker_tables import WorkerTables, without_cleared


class SecondWorker(WorkerTables):
    """Has vLLM's second model runner follow what its scheduler says. `pages`: of the largest
    pool. `late`: only when a step runs is it known how many drafts of the one before stood.
    """

    def __init__(
        self, source: Source, config: Any, kv_cache_config: Any, pages: int, *, late: bool
    ) -> None:
        super().__init__()
        self.late = late
        self._unsampled = Unsampled()
        self._stages = [
            Stage(hosted, copies)
            for hosted, copies in stages(source, config, kv_cache_config, pages, self._unsampled)
        ]
        """The last one first, and where there are two the first one: of those between nothing else
        is to be seen."""
        self._sizes = [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups]
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
        """Have every stage compute a step; return the copies of blocks in front of it, which all
        of them make.
        """
        for stage in self._stages:
            stage.execute(output)
        self._computed = self._stages[0].computed
        self.padded = sorted({page for stage in self._stages for page in stage.padded})
        for stage in self._stages[1:]:
            self._computed = {
                r: self._deviating(r, computed, stage.computed[r])
                for r, computed in self._computed.items()
            }
        return _by_all([stage.copies for stage in self._stages])

    def _deviating(self, r: str, last: Computed, first: Computed) -> Computed:
        """Return what two stages compute of a request, with the tokens that the first is fed: that
        of the one whose row is not what was told, if they are not the same.

        Behind drafts the first stage moves states only when it hears of them, which is in front of
        whoever may read them; those of the last stage are taken.
        """
        rows = self._rows.get(r, [])
        right = all(
            pages == row[: len(pages)] for pages, row in zip(first.rows, rows, strict=False)
        )
        if right and first.rows != last.rows:
            return last._replace(tokens=first.tokens)
        return first._replace(states=last.states) if self.late else first

    def _sample(self, counts: Mapping[str, int]) -> list[Move]:
        """Have the last stage sample so many tokens, and tell the first; return the copies of
        states behind the step.
        """
        last, *others = self._stages
        moves = last.sample(counts)
        for stage in others:
            stage.sample(counts)
        return moves

    def _became(self, run: Run, null: int, before: list[Move]) -> Run:
        """Return a run as the runner has it; what it goes on from is copied `before` if that is not
        in a column of its own. A connector's memory has no rows in the runner.
        """
        computed = self._computed[run.r]
        local = len(computed.rows)
        tables = without_cleared(computed.rows, run.tables[:local], null) + run.tables[local:]
        start = computed.positions[0]
        stop = start + len(computed.tokens)
        known = stop - len(run.drafts)
        scratch = [list[int]() for _ in tables] if run.drafts else []
        for group, state in computed.states.items():
            size = self._sizes[group]
            column = (known - 1) // size
            put(tables[group], {column: state.targets[0]})
            if run.drafts:
                scratch[group] = state.targets[1 : 1 + len(run.drafts)]
            if start and (start - 1) // size != column:
                put(tables[group], {(start - 1) // size: state.origin})
            elif start and state.origin != state.targets[0]:
                before.append(Move(state.origin, state.targets[0]))
        return replace(run, start=start, stop=stop, tables=tables, scratch=scratch)

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
            size = self._sizes[group]
            put(rows[group], {computed.positions[-1] // size: state.targets[0]})
            if computed.positions[0]:
                put(rows[group], {(computed.positions[0] - 1) // size: state.origin})
        return rows


def _by_all(made: list[list[Move]]) -> list[Move]:
    """Return the copies that every stage has made: what one has not copied is not copied."""
    return [move for move in made[0] if all(move in others for others in made[1:])]


def _check(run: Run, tokens: int) -> None:
    """Raise EngineFailure for a run over more known tokens than there are."""
    if run.known > tokens:
        raise EngineFailure(
            "engine-crashed",
            f"had tokens [{run.start}, {run.stop}) of {run.r} computed in its worker, the last"
            f" {len(run.drafts)} of them drafts; it has {tokens}",
        )
