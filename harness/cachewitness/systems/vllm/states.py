"""Where vLLM's worker reads and writes recurrent states, and how it moves them, while drafts are
verified.

The state after the last known token goes to the column in which a step ends, drafts included; the
states after its drafts go to the columns behind it, and the next step begins with the state after
the last draft that stood. If that step ends in another column, the state is copied there first. If
drafts that stood passed a block boundary, the state at the boundary is copied to its own column
behind the runs: only then is the block's key true.

Sources: vLLM 0.29.0 to 0.33.0, `v1/worker/mamba_utils.py`, `preprocess_mamba`,
`postprocess_mamba_fused_kernel`; the second model runner does the same in
`v1/worker/gpu/model_states/mamba_hybrid.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Header, Move, Run
from cachewitness.engines.cache_state import Tables


class WorkerStates:
    """By request: the column in which its last step ended, and how many columns behind it the
    state lies to go on from.
    """

    def __init__(self, header: Header) -> None:
        self._groups = [group for group in header.local_groups() if group.kind == "recurrent"]
        self._size = self._groups[0].block_size if self._groups else 0
        self._column: dict[str, int] = {}
        self._behind: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether there are states."""
        return bool(self._groups)

    def admit(self, names: Iterable[str]) -> None:
        """Begin anew with requests that came, or came back."""
        for r in names:
            self._column.pop(r, None)
            self._behind.pop(r, None)

    def lay_out(self, run: Run, rows: Tables) -> None:
        """Give a run the pages of the states that it writes. `rows` are the worker's, with all
        that they were ever told.
        """
        run.tables, run.scratch = (
            [*run.tables],
            ([list[int]() for _ in run.tables] if run.drafts else []),
        )
        for group in self._groups:
            row = rows[group.id]
            last = self._place(run.stop)
            run.tables[group.id] = _with(
                run.tables[group.id], self._place(run.known), _page(run, row, last)
            )
            if run.drafts:
                run.scratch[group.id] = [
                    _page(run, row, last + 1 + index) for index in range(len(run.drafts))
                ]

    def settle(self, run: Run, rows: Tables, tokens: int) -> tuple[Run, list[Move], list[Move]]:
        """Return a run over the states that it reads and writes, and the copies before and
        behind it; `tokens` came of it.
        """
        run, before, after = replace(run), list[Move](), list[Move]()
        self.lay_out(run, rows)
        last = self._place(run.stop)
        stood = max(tokens, 1) - 1
        came_from = self._column.get(run.r, self._place(run.start)) + self._behind.get(run.r, 0)
        boundary = (run.known + stood) // self._size * self._size
        for group in self._groups:
            row = rows[group.id]
            if run.start and self._place(run.start) != self._place(run.known):
                run.tables[group.id] = _with(
                    run.tables[group.id], self._place(run.start), _page(run, row, came_from)
                )
            elif run.start:
                before += _copy(_page(run, row, came_from), _page(run, row, last))
            if boundary >= run.known:
                passed = _page(run, row, last + boundary - run.known)
                after += _copy(passed, _page(run, row, self._place(boundary)))
        self._column[run.r] = last
        self._behind[run.r] = (
            0 if boundary >= run.known and self._place(boundary) == last else stood
        )
        return run, before, after

    def _place(self, length: int) -> int:
        """Return the column of the state after so many tokens; -1 for none."""
        return -(-length // self._size) - 1


def _page(run: Run, row: list[int], column: int) -> int:
    if not 0 <= column < len(row):
        raise EngineFailure(
            "engine-crashed",
            f"told {len(row)} columns of {run.r} to its worker; a state belongs into column"
            f" {column}",
        )
    return row[column]


def _with(table: list[int], column: int, page: int) -> list[int]:
    """Return a table with another page in a column that it has."""
    return [*table[:column], page, *table[column + 1 :]]


def _copy(source: int, target: int) -> list[Move]:
    return [Move(source, target)] if source != target else []
