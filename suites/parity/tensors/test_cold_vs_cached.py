"""Cold against cached on the toy engine: clean over several seeds, told in a table, never passed
where nothing happened.
"""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from cachewitness.cli import invoke
from cachewitness.cli.suites import SUITES
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import Step, Submit, Trace
from cachewitness.engines.registry import parse
from cachewitness.parity.tensors.arms import ARMS, BY_NAME, EVERYWHERE, Happened
from cachewitness.parity.tensors.chunk_history import recompute
from cachewitness.parity.tensors.judge import judged
from cachewitness.parity.tensors.record import Recorder, RequestLifetime
from cachewitness.parity.tensors.states import by_layer, states_of
from cachewitness.parity.tensors.stories import STORIES, write
from cachewitness.report.arm_row import ArmRow, merge_rows
from cachewitness.report.compared import Compared
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.tensor_suite import streams, traces
from cachewitness.systems.vllm.reference.policy import cold_configurations
from cachewitness.toy.noise import distance, floors
from cachewitness.toy.oracle import answers
from cachewitness_reference.toy_model.paged import Chunk, step
from suites.support.sampled import sampled

SUITE = [suite for suite in SUITES if suite.tensors]
SEEDS = 5


def compared(trace: Trace, engine: str = "toy") -> Compared:
    spec = parse(engine)
    return judged(trace, spec.open(trace.header), spec, keep=False)


def trace_of(arm: str, where: str, configuration: int = 0, seed: int = 0) -> Trace:
    return write(cold_configurations()[configuration].shape("scheduler"), BY_NAME[arm], where, seed)


@pytest.mark.parametrize("seed", sampled(range(SEEDS), 2))
def test_clean_engine_passes_every_arm_at_both_places(seed: int) -> None:
    """Where some are taken of many, three configurations share the arms and places among them."""
    configuration = cold_configurations()[seed % len(cold_configurations())]
    for trace in sampled([*traces(configuration, seed, places=EVERYWHERE)], 3, seed // 2):
        if (
            trace.header.options.get("tier_pages")
            and configuration.layout.name == "full-mamba-unequal"
        ):
            continue
        row = compared(trace).row
        assert row.verdict == "pass", (trace.header.name, row)
        assert row.largest <= 1e-12 and row.hard == row.beyond == 0
        assert row.bits_held == row.bits


@cache
def in_float64() -> Compared:
    return compared(trace_of("preempted", "replay"))


@pytest.mark.parametrize("dtype", ["float32", "bf16-state"])
def test_precisions_have_floors_of_their_own_and_repeat_every_bit(dtype: str) -> None:
    result = compared(trace_of("preempted", "replay"), f"toy:dtype={dtype}")
    exact = in_float64()
    assert result.row.verdict == exact.row.verdict == "pass"
    noise = result.tallies[0].measured[0]
    fixed = exact.tallies[0].measured[0]
    assert noise.dtype == dtype and noise.tolerance == 4 * noise.floor > 1000 * fixed.tolerance
    assert result.row.bits == result.row.bits_held > 0


def test_every_arm_is_told_at_both_places_and_every_story_by_some_arm() -> None:
    assert all(set(EVERYWHERE) <= set(arm.places) for arm in ARMS)
    assert {where for arm in ARMS for where in arm.places} == set(STORIES)


def test_seeds_vary_prompts_and_repeat_themselves() -> None:
    texts = [
        tuple(
            op.prompt for op in trace_of("hit", "replay", seed=seed).ops if isinstance(op, Submit)
        )
        for seed in range(20)
    ]
    assert len(set(texts)) == 20
    assert trace_of("hit", "replay", seed=7) == trace_of("hit", "replay", seed=7)


@pytest.mark.parametrize(
    ("arm", "why"), [("hit", "nobody hit"), ("tier", "nobody hit"), ("preempted", "nobody hit")]
)
def test_arm_without_its_mechanism_has_checked_nothing(arm: str, why: str) -> None:
    trace = trace_of(arm, "replay")
    once = trace.with_ops([op for op in trace.ops if not getattr(op, "r", "").startswith("c")][:1])
    row = compared(once).row
    assert row.verdict == "nothing checked" and why in row.missing[0]


@pytest.mark.parametrize(
    ("arm", "happened", "why"),
    [
        ("off", Happened(hits=1), "although nothing may be"),
        ("miss", Happened(), "nobody looked"),
        ("miss", Happened(lookups=1, hits=1), "in spite of salts"),
        ("hit", Happened(hits=1, restored={"full": 16, "sliding": 0}), "in the sliding group"),
        ("hit", Happened(hits=1, restored={"full": 16}), "no row"),
        ("tier", Happened(hits=1, restored={"full": 16}, restored_rows=1), "second tier"),
        ("preempted", Happened(hits=1, restored_rows=1, mid_decode=1), "in its prefill"),
        ("preempted", Happened(hits=1, restored_rows=1, mid_prefill=1), "in its decode"),
        ("drafts", Happened(hits=1, restored_rows=1, stood=1), "no draft fell"),
        ("async", Happened(hits=1, restored_rows=1), "in flight"),
    ],
)
def test_each_arm_says_what_did_not_happen(arm: str, happened: Happened, why: str) -> None:
    assert why in BY_NAME[arm].missing(happened)


def test_states_of_the_definition_are_those_of_one_paged_chunk() -> None:
    model = parse("toy").open(trace_of("hit", "replay").header).tensors.model  # type: ignore[attr-defined]
    tokens = tuple(range(40))
    logits, kept = answers(model, {(tokens, 0): 40})[tokens, 0]
    pools, (tables,) = model.fresh(len(tokens))
    paged = step(pools, [Chunk(tokens, 0, tables, outputs=len(tokens))], model.weights)
    assert distance(paged, logits) < 1e-12
    states = by_layer(pools, states_of(pools, tables, len(tokens)))
    assert set(states) == {(0, "conv"), (0, "memory")}
    assert all(distance(part, kept[layer][name]) < 1e-12 for (layer, name), part in states.items())
    earlier = answers(model, {(tokens, 0): 39})[tokens, 0].kept
    assert all(
        distance(part, earlier[layer][name]) > 1e-3 for (layer, name), part in states.items()
    )


def test_bits_depend_on_the_chunks_in_which_a_text_was_computed() -> None:
    trace = trace_of("hit", "replay")
    engine = parse("toy:dtype=float32").open(trace.header)
    recorder = Recorder(engine)
    drive(trace, engine, (), beside=recorder, keep=False)
    life: RequestLifetime = max(
        (life for life in recorder.lives if not life.resume), key=lambda life: life.pieces[-1].stop
    )
    kernels = engine.tensors.kernels  # type: ignore[attr-defined]
    own = tuple((piece.start, piece.stop) for piece in life.pieces)
    last = life.pieces[-1]
    tensors = engine.tensors  # type: ignore[attr-defined]
    same = recompute(tensors.model, kernels, tensors.pad_rows, life.pieces, own)[0]
    pieces = ((0, 7), (7, last.start), (last.start, last.stop))
    other = recompute(tensors.model, kernels, tensors.pad_rows, [last], pieces)[0]
    assert all(
        torch.equal(piece.logits, logits) for piece, logits in zip(life.pieces, same, strict=True)
    )
    assert not torch.equal(last.logits, other[-1])


def test_step_that_names_a_request_long_gone_is_compared_like_any_other() -> None:
    """What is left of such an operation is no longer the object that stands in the trace."""
    trace = trace_of("hit", "replay")
    ops = [
        msgspec.structs.replace(op, withdraw=["gone"]) if isinstance(op, Step) else op
        for op in trace.ops
    ]
    assert compared(trace.with_ops(ops)).row == compared(trace).row


def test_floor_is_above_nothing_and_far_below_a_fault() -> None:
    noise = floors(parse("toy").open(trace_of("hit", "replay").header).tensors.model)  # type: ignore[attr-defined]
    assert 0 < noise.logits.floor < 1e-12 and all(
        0 < state.floor < 1e-12 for _, state in noise.states()
    )
    fault = compared(trace_of("hit", "prefix-end"), "toy:mutant=conv-state-lost").row
    assert fault.verdict == "FAIL" and fault.share > 1e6 and fault.beyond > 0


def test_rows_add_counts_and_keep_the_largest_difference() -> None:
    one = ArmRow(
        arm="hit",
        where="replay",
        precision="float64",
        rows=2,
        largest=1.0,
        restored={"full": 1},
        missing=["a"],
    )
    two = ArmRow(
        arm="hit",
        where="replay",
        precision="float64",
        rows=3,
        largest=0.5,
        restored={"sliding": 2},
        missing=["b"],
    )
    (row,) = merge_rows([one, two])
    assert (row.rows, row.largest, row.restored, row.missing) == (
        5,
        1.0,
        {"full": 1, "sliding": 2},
        ["a", "b"],
    )


def test_default_run_covers_three_layouts_two_block_sizes_and_three_precisions() -> None:
    every = streams(parse("toy"), cold_configurations(), 0)
    assert {stream.engine.options["dtype"] for stream in every} == {
        "float64",
        "float32",
        "bf16-state",
    }
    kinds = {
        frozenset(group.kind for group in stream.configuration.layout.groups) for stream in every
    }
    assert {
        frozenset(["full", "recurrent"]),
        frozenset(["full", "sliding"]),
        frozenset(["full", "sliding", "recurrent"]),
    } <= kinds
    assert {stream.configuration.options["retention_interval"] for stream in every} == {None, 0, 64}
    assert {
        stream.engine.text
        for stream in streams(parse("toy:dtype=float32"), cold_configurations(), 0)
    } == {"toy:dtype=float32"}


def test_engine_without_tensors_is_told_as_not_run() -> None:
    report = Runner(parse("reference"), cold_configurations()).run(SUITE)
    assert [(entry.what, entry.why) for entry in report.not_run] == [
        ("suite cold-vs-cached", "engine reference computes no tensors")
    ]
    assert report.suites == []


def test_command_line_tells_a_fault_and_a_command_that_shows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        "--suite",
        "cold-vs-cached",
        "--layout",
        "full-mamba",
        "--option",
        "retention_interval=none",
        "--fail-fast",
    ]
    assert invoke(["run", "--engine", "toy:mutant=conv-state-lost,dtype=float32", *arguments]) == 1
    output = capsys.readouterr().out
    assert "cold against cached, float32:" in output and "FAIL" in output
    command = next(line for line in output.splitlines() if line.startswith("replay: cachewitness "))
    assert command.endswith("--cold")
    assert invoke(shlex.split(command)[2:]) == 1
    assert "cached-divergence" in capsys.readouterr().out


def test_json_report_carries_the_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        "--suite",
        "cold-vs-cached",
        "--layout",
        "full",
        "--fail-fast",
        "--report",
        "out",
        "--quiet",
    ]
    assert (
        invoke(["run", "--engine", "toy:mutant=hash-without-parent,dtype=float64", *arguments]) == 1
    )
    arms = json.loads((tmp_path / "out" / "report.json").read_text())["suites"][0]["arms"]
    assert {"off", "off-again", "miss", "hit"} <= {row["arm"] for row in arms}
    assert any(row["failed"] for row in arms)


def test_replay_cold_needs_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cachewitness.core.trace_format import save

    save(trace_of("hit", "replay"), tmp_path / "t.jsonl")
    assert invoke(["replay", str(tmp_path / "t.jsonl"), "--engine", "reference", "--cold"]) == 4
    assert "--cold: engine reference computes no tensors" in capsys.readouterr().err
