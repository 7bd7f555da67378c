"""The rows of vLLM's worker are what its scheduler's outputs tell it, and a fault in a source is planted where it says."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness._util.errors import UsageError
from harness.engines.real_vllm.patch import Patches
from harness.engines.real_vllm.worker_tables import WorkerTables


def output(
    new: dict[str, list[list[int]]] | None = None,
    cached: dict[str, list[list[int]] | None] | None = None,
    resumed: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
    further: tuple[str, ...] = (),
) -> Any:
    """Return a scheduler's output that lets all these requests compute; everybody starts at 0."""
    fresh, going = new or {}, cached or {}
    rows = SimpleNamespace(
        req_ids=[*going], new_block_ids=[*going.values()], num_computed_tokens=[7] * len(going), resumed_req_ids={*resumed}
    )
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=r, block_ids=ids, num_computed_tokens=0) for r, ids in fresh.items()],
        scheduled_cached_reqs=rows,
        finished_req_ids=finished,
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


def test_a_column_that_the_engine_has_cleared_is_not_used_and_one_that_it_did_not_tell_of_is_missing() -> None:
    """The worker still has page 1 where the window has moved on; of page 9 it knows nothing."""
    tables = WorkerTables()
    tables.update(output(new={"r": [[1, 2]]}))
    assert tables.rows("r", [[0, 2, 9]], null=0) == [[0, 2]]


@pytest.mark.parametrize(
    "told",
    [output(further=("r",)), output(cached={"r": None}), output(new={}, cached={"r": [[1]]})],
    ids=["nothing", "no row", "half"],
)
def test_a_request_that_computes_and_was_never_brought_is_the_scheduler_s_fault(told: Any) -> None:
    with pytest.raises(RuntimeError, match="lets r compute, and the worker was not told of it"):
        WorkerTables().update(told)


def test_a_request_that_has_ended_is_forgotten() -> None:
    tables = WorkerTables()
    tables.update(output(new={"r": [[1]]}))
    with pytest.raises(RuntimeError, match="lets r compute, and the worker was not told of it"):
        tables.update(output(cached={"r": None}, finished=("r",)))


class Scheduler:
    """Stands in for vLLM's."""

    def schedule(self, tokens: int) -> int:
        """Return a third of the tokens, and one more."""
        tokens = max(
            tokens // 3,
            0,
        )
        return tokens + 1


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> Patches:
    module = ModuleType("vllm.v1.core.sched.scheduler")
    module.Scheduler = Scheduler  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Patches()


def test_a_piece_of_source_is_replaced_and_put_back(patches: Patches) -> None:
    """Blanks and line ends need not agree."""
    patches.text("sched.scheduler", "Scheduler", "schedule", "max( tokens // 3, 0, )", "tokens")
    assert Scheduler().schedule(9) == 10
    patches.undo()
    assert Scheduler().schedule(9) == 4


@pytest.mark.parametrize(
    ("name", "old", "times"), [("schedule", "tokens // 4", 0), ("schedule", "tokens", 5), ("nothing", "tokens", 0)]
)
def test_a_piece_that_is_not_there_once_is_refused(patches: Patches, name: str, old: str, times: int) -> None:
    """So a release that was changed there is not said to have the fault."""
    with pytest.raises(UsageError, match=rf"Scheduler\.{name} of this vLLM has {times} times '{old}'"):
        patches.text("sched.scheduler", "Scheduler", name, old, "0")
