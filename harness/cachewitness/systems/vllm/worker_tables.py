"""The block tables that a worker of vLLM's has: what the scheduler's outputs have told it, and
nothing else.

A request that comes, or comes back, brings its whole row; from then on new blocks alone are told,
and are appended. So a row goes wrong if the scheduler leaves something out, although its own table
is right.

Sources: vLLM 0.29.0 to 0.33.0, `v1/core/sched/output.py`; `v1/worker/gpu_model_runner.py`,
`_update_states`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Move, Settled
from cachewitness.engines.cache_state import Tables


class WorkerTables:
    """The rows of every request, by group and column. `admitted` are those who came, or came
    back, with the last step. `widths`, by group: how many columns a row has; () for any number.
    """

    late = False
    """Whether a step is taken in when it runs (`settle`), and what is told of it before is what
    the scheduler said."""

    def __init__(self, widths: Sequence[int] = ()) -> None:
        self._widths = widths
        self._rows: dict[str, Tables] = {}
        self.admitted: set[str] = set()
        self.copies: list[Move] = []
        """The copies of blocks that the last step begins with."""
        self.padded: list[int] = []
        """The pages that padding of the last step is written into."""

    def update(self, output: Any) -> dict[str, int]:
        """Take in what a step tells the worker; return the position from which each request
        computes.

        Raises EngineFailure for a request that is to compute and of which the worker is told
        nothing, or that it does not know, and for a table that is longer than its row.
        """
        self.copies = [
            Move(copy.src_block_id, copy.dst_block_id)
            for copy in output.kv_cache_block_copies or ()
        ]
        for r in output.finished_req_ids:
            self._rows.pop(r, None)
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            self._rows[new.req_id] = [[*ids] for ids in new.block_ids]
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        self.admitted = {*starts, *cached.resumed_req_ids}
        for r, blocks, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            # A request that resumes gets its whole table anew, any other one only what was added to
            # it.
            if r in cached.resumed_req_ids:
                self._rows[r] = [[*ids] for ids in blocks]
            elif blocks is not None and r in self._rows:
                for row, ids in zip(self._rows[r], blocks, strict=True):
                    row += ids
            starts[r] = start
        for r in output.num_scheduled_tokens:
            if r not in starts or r not in self._rows:
                raise EngineFailure(
                    "engine-crashed",
                    f"had {r} compute, of which its scheduler had not told the worker",
                )
            for row, width in zip(self._rows[r], self._widths, strict=False):
                if len(row) > width:
                    raise EngineFailure(
                        "engine-crashed",
                        f"gave {r} {len(row)} blocks, and a row of its worker has {width}",
                    )
        return starts

    def fed(
        self, drafts: Mapping[str, list[int]], requests: Mapping[str, Any]
    ) -> dict[str, list[int]]:
        """Return, by request, what the last step feeds that is not its own tokens: nothing, for
        all that tables show.
        """
        return {}

    def sampled(self, tokens: Mapping[str, list[int]]) -> None:
        """Take note of what a step has sampled."""

    def settle(
        self, settled: Settled, counts: Mapping[str, int], requests: Mapping[str, Any], null: int
    ) -> None:
        """Take in the oldest step that has not run, in which requests sample so many tokens, and
        let its runs be those that the worker has. Only of a worker that is `late`.
        """
        raise NotImplementedError

    def whole(self, r: str) -> Tables:
        """Return a request's rows with all that was told of them. They only ever grow, until the
        request comes back.
        """
        return self._rows[r]

    def rows(self, r: str, held: Tables, null: int) -> Tables:
        """Return a request's rows as far as they are used. `held` is the engine's own table.

        What that has cleared (its page is `null`) still lies in the worker's row, which never looks
        there again.
        """
        return without_cleared(self._rows.get(r, held), held, null)


def without_cleared(rows: Tables, held: Tables, null: int) -> Tables:
    """Return a worker's rows with null where the engine's own table, `held`, has been cleared."""
    cleared = [{column for column, page in enumerate(row) if page == null} for row in held]
    return [
        [null if column in gone else page for column, page in enumerate(row)]
        for row, gone in zip(rows, cleared, strict=True)
    ]
