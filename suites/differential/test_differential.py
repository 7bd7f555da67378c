"""The differential: whoever follows the reference's rules is equal to it in lock-step, whatever it freely chooses."""

from __future__ import annotations

from harness.cells import Cell, default_cells
from harness.engines.protocol import Engine
from harness.engines.reference_vllm import open_engine
from harness.generate import random_trace
from harness.lockstep import NAME, lockstep
from harness.mutants.tools import core, wrap
from harness.trace import Trace
from harness.verdict import Result


def compared(trace: Trace, engine: Engine) -> Result:
    result = lockstep(trace, engine, keep=False)
    tally = next(tally for tally in result.tallies if tally.checker == NAME)
    assert tally.opportunities > 0
    return result


def traces(cell: Cell) -> list[Trace]:
    return [random_trace(cell.shape("manager"), seed, withdraw=seed == 1) for seed in range(3)]


def test_the_reference_equals_itself() -> None:
    for cell in default_cells():
        for trace in traces(cell):
            assert compared(trace, open_engine(trace.header, {})).findings == []


def test_an_engine_that_hands_out_other_blocks_is_followed() -> None:
    """Take blocks from the other end of the free queue: other ids, other victims, the same policy."""
    for cell in default_cells():
        for trace in traces(cell):
            engine = open_engine(trace.header, {})
            pool = core(engine).block_pool  # type: ignore[arg-type]

            def newest_first(original: object, num_blocks: int, pool: object = pool) -> object:
                queue = pool.free_block_queue  # type: ignore[attr-defined]
                for slot in list(queue)[::-1][:num_blocks]:
                    queue.move_to_end(slot, last=False)
                return original(num_blocks)  # type: ignore[operator]

            wrap(pool, "get_new_blocks", newest_first)
            result = compared(trace, engine)
            assert [f.sentence for f in result.findings if f.anomaly == "divergence"] == [], cell.name


def test_an_engine_that_keeps_less_than_the_policy_says_diverges() -> None:
    cell = next(cell for cell in default_cells() if cell.name == "full-mamba[retention_interval=64]")
    found = []
    for trace in traces(cell):
        found += compared(trace, open_engine(trace.header, {"mutant": "junction-forgotten"})).findings
    assert {finding.anomaly for finding in found} == {"divergence"}
