"""The rows of vLLM's worker are what its scheduler's outputs tell it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.systems.vllm.worker_tables import WorkerTables


def output(
    new: dict[str, list[list[int]]] | None = None,
    cached: dict[str, list[list[int]] | None] | None = None,
    resumed: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
    further: tuple[str, ...] = (),
) -> Any:
    """Return a scheduler's output that lets all these requests compute; everybody starts at 0."""
    fresh = new or {}
    going = cached or {}
    rows = SimpleNamespace(
        req_ids=[*going],
        new_block_ids=[*going.values()],
        num_computed_tokens=[7] * len(going),
        resumed_req_ids={*resumed},
    )
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=r, block_ids=ids, num_computed_tokens=0)
            for r, ids in fresh.items()
        ],
        scheduled_cached_reqs=rows,
        finished_req_ids=finished,
        kv_cache_block_copies=None,
        num_scheduled_tokens=dict.fromkeys([*fresh, *going, *further], 1),
    )


def test_a_row_is_brought_whole_and_then_appended_to() -> None:
    tables = WorkerTables()
    assert tables.update(output(new={"r": [[1, 2], [3]]})) == {"r": 0}
    assert tables.update(output(cached={"r": [[4], []]})) == {"r": 7}
    tables.update(output(cached={"r": None}))
    assert tables.rows("r", [[1, 2, 4], [3]], null=0) == [[1, 2, 4], [3]]


def test_a_request_that_comes_back_brings_another_row() -> None:
    tables = WorkerTables()
    tables.update(output(new={"r": [[1, 2]]}))
    tables.update(output(cached={"r": [[5]]}, resumed=("r",)))
    assert tables.rows("r", [[5]], null=0) == [[5]]


def test_a_column_that_the_engine_has_cleared_is_not_used_and_one_that_it_did_not_tell_of_is_missing() -> (  # noqa: E501
    None
):
    """The worker still has page 1 where the window has moved on; of page 9 it knows nothing."""
    tables = WorkerTables()
    tables.update(output(new={"r": [[1, 2]]}))
    assert tables.rows("r", [[0, 2, 9]], null=0) == [[0, 2]]


@pytest.mark.parametrize(
    "output",
    [output(further=("r",)), output(cached={"r": None}), output(new={}, cached={"r": [[1]]})],
    ids=["nothing", "no row", "half"],
)
def test_a_request_that_computes_and_was_never_brought_is_the_scheduler_s_fault(
    output: Any,
) -> None:
    with pytest.raises(
        EngineFailure, match="had r compute, of which its scheduler had not told the worker"
    ):
        WorkerTables().update(output)


def test_a_table_fills_its_row_and_one_that_is_longer_is_the_scheduler_s_fault() -> None:
    tables = WorkerTables([2, 1])
    tables.update(output(new={"r": [[1], [2]]}))
    tables.update(output(cached={"r": [[3], []]}))
    with pytest.raises(EngineFailure, match="gave r 2 blocks, and a row of its worker has 1"):
        tables.update(output(cached={"r": [[], [4]]}))


def test_a_request_that_has_ended_is_forgotten() -> None:
    tables = WorkerTables()
    tables.update(output(new={"r": [[1]]}))
    with pytest.raises(
        EngineFailure, match="had r compute, of which its scheduler had not told the worker"
    ):
        tables.update(output(cached={"r": None}, finished=("r",)))
