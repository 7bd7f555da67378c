"""States that a prompt has to leave behind: chunks that end where a later request can resume."""

from __future__ import annotations

import runpy
from typing import Any

import pytest

from cachewitness import Header, Rules, Step, Trace, drive, load_policy, random_trace
from cachewitness.core.checkers.checkpoints import CheckpointsTaken
from cachewitness.core.driving import check
from cachewitness.core.events import Group
from cachewitness.core.result import Result
from cachewitness.engines.driver import Driver
from cachewitness.workloads.notation import parse
from suites.support.checkout import ROOT

HYBRID = """
pool 0: 20 pages, null 0
group 0: full block 4
group 1: recurrent block 4
rules: alignment 4{more}
submit r1 a:10
hit r1 0
acquire r1 | 1 2 3 | 4 5 6
"""
IN_ONE = "step 1: r1 0..10 | 1 2 3 | 4 5 6\n"
DECLARED = ", checkpoints 4"


def judged(text: str, more: str = DECLARED) -> Result:
    result = check(parse(HYBRID.format(more=more) + text), [CheckpointsTaken()])
    assert result.tallies[0].crashed == ""
    return result


def test_the_finding_says_where_the_chunks_end() -> None:
    (finding,) = judged(IN_ONE).findings
    assert finding.anomaly == "missed-checkpoint" and finding.owed == 8
    assert finding.line == (
        "request r1 has no state behind token 8, where an exact replay of it resumes"
    )
    assert "However its chunks end at 10, and group 1 has no state behind 8" in finding.sentence


def test_an_engine_that_does_not_say_where_it_stops_owes_no_state() -> None:
    (tally,) = judged(IN_ONE, "").tallies
    assert "(`checkpoint_alignment` of its rules)" in tally.not_applicable


@pytest.mark.parametrize(
    ("more", "chunks", "owed"),
    [
        (DECLARED, "0..4 4..8 8..10", None),
        (DECLARED, "0..3 3..8 8..10", None),
        (DECLARED, "0..4 4..10", 8),
        (", checkpoints 8", "0..8 8..10", None),
        (", checkpoints 8", "0..4 4..10", 8),
        (", checkpoints 16", "0..10", None),
        (", eagle-drop 4, checkpoints 4", "0..4 4..10", None),
        (", eagle-drop 4, checkpoints 4", "0..8 8..10", 4),
    ],
)
def test_where_the_other_chunks_end_is_the_scheduler_s_affair(
    more: str, chunks: str, owed: int | None
) -> None:
    """A budget may end one anywhere; the last boundary that a replay can use is owed, lowered by
    what a speculative look-up gives back. A prompt that passes no boundary owes none.
    """
    steps = [
        f"step {step}: r1 {chunk} | 1 2 3 | 4 5 6\n" for step, chunk in enumerate(chunks.split(), 1)
    ]
    result = judged("".join(steps), more)
    assert [finding.owed for finding in result.findings] == [owed] * (owed is not None)
    assert result.tallies[0].opportunities == (more != ", checkpoints 16")


def test_who_computes_its_answer_again_stops_elsewhere() -> None:
    """A request that lost its pages is prefilled with what it had generated."""
    again = (
        "step 1: r1 0..8 | 1 2 3 | 4 5 6\nstep 2: r1 8..10 | 1 2 3 | 4 5 6\n"
        "accept r1 11 @r1:1\nrelease r1\npreempt r1\nhit r1 0\nacquire r1 | 1 2 3 | 4 5 6\n"
        "step 3: r1 0..11 | 1 2 3 | 4 5 6\n"
    )
    assert judged(again).findings == []


# --- an engine of another shape -------------------------------------------------------------------

SAMPLE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "samples" / "hybrid_adapter.py"))


class Chunked(SAMPLE["HybridAdapter"]):  # type: ignore[misc]
    """The sample, whose states exist where chunks end alone."""

    stops = True

    def compute(self, r: str, tokens: int) -> tuple[int, int] | None:
        """Stop at the last boundary that a replay can resume at, and end no chunk in a block in
        front of it.
        """
        request = self.requests[r]
        known = r in self.admitted
        start = request.computed if known else len(self.look_up(request)[0]) * self.size
        boundary = (len(request.content) - 2) // self.size * self.size
        if start + tokens < boundary:
            tokens = (start + tokens) // self.size * self.size - start
        elif self.stops and start < boundary:
            tokens = boundary - start
        computed: tuple[int, int] | None = super().compute(r, tokens) if tokens > 0 else None
        return computed

    def complete(self, scheduled: Any) -> None:
        """Publish blocks of attention, and the state behind a chunk that ends with a block."""
        for r, (start, stop) in scheduled.chunks.items():
            request = self.requests[r]
            request.computed = stop
            for group, table in zip(self.groups, request.tables, strict=True):
                state = group.kind == "recurrent"
                for column in range(start // self.size, stop // self.size):
                    if not state or (column + 1) * self.size == stop:
                        self.cache.publish(self.key(request, group.id, column + 1), table[column])
                if state:
                    self.let_go(table, len(table) - 1)
            self.diff.settle([r], served=r)


class Passing(Chunked):
    """A chunk that reaches the end of its prompt stops nowhere in front of it."""

    stops = False


def opened(trace: Trace, adapter: type[Chunked]) -> Driver:
    layout = trace.header.layout
    size = layout.groups[0].block_size
    engine: Driver = SAMPLE["open_engine"](trace.header, {})
    header: Header = engine.describe()
    groups = [Group(index, group.kind, size) for index, group in enumerate(layout.groups)]
    rules = Rules(alignment=size, unkeyed=header.rules.unkeyed, checkpoint_alignment=size)
    described = Header(
        engine="chunked",
        level=header.level,
        pools=header.pools,
        groups=groups,
        rules=rules,
        capabilities=header.capabilities,
        trace=header.trace,
    )
    limits = {name: trace.header.options.get(name, at) for name, at in SAMPLE["OPTIONS"].items()}
    return Driver(described, adapter(described, limits))


def test_an_engine_that_passes_boundaries_is_found_by_rules_alone() -> None:
    """Of every seed; and the same engine passes all rules where it stops."""
    configurations = load_policy("vllm").configurations()
    shape = next(one for one in configurations if one.layout.name == "full-mamba").shape("manager")
    for seed in range(4):
        drawn = random_trace(shape, seed, withdraw=False)
        assert any(isinstance(op, Step) for op in drawn.ops)
        clean = drive(drawn, opened(drawn, Chunked))
        assert [finding.line for finding in clean.findings] == []
        found = drive(drawn, opened(drawn, Passing)).findings
        assert {finding.anomaly for finding in found} == {"missed-checkpoint"}
