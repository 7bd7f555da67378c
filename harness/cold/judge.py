"""Judges one trace of an arm: every position against a cold, unsplit run, and bit by bit where chunks are alike.

Tokens are compared as the choices that logits make: the likeliest token at every position that is sampled from. What a request
generates is scripted, so one wrong choice does not hide later ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from harness._util.errors import UsageError
from harness.checkers.finding import Finding, Measured, Tally
from harness.cold.arms import arm_of
from harness.cold.chunk_history import ChunkHistory, again
from harness.cold.noise import Floors, State, cold, floors, furthest
from harness.cold.record import ComputedChunk, Recorder, RequestLifetime
from harness.engines.protocol import Engine
from harness.engines.registry import EngineSpec
from harness.engines.toy.engine import ToyEngine
from harness.engines.toy.model import Model
from harness.run.execute import drive
from harness.trace.format import Trace
from harness.verdict.arm_row import ArmRow
from harness.verdict.compared import NAME, Compared
from harness.verdict.result import Result

DIVERGED, UNEQUAL = "cached-divergence", "unequal-bits"


def judged(trace: Trace, engine: Engine, spec: EngineSpec, *, keep: bool = True) -> Compared:
    """Run a trace on a fresh engine and, if its arm says so, on another that is opened as `spec`; return the judged result.

    Raises UsageError if the engine computes nothing.
    """
    recorder, result = _run(trace, engine, keep=keep)
    arm = arm_of(trace.header.name)
    judge = _Judge(trace, recorder)
    judge.against_cold()
    if arm is not None and arm.again:
        judge.against_itself(_run(trace, spec.open(trace.header), keep=False)[0])
    else:
        judge.against_alike()
    row = judge.row
    row.failed = bool(judge.findings or result.findings)
    why = arm.missing(recorder.happened) if arm is not None else ""
    unanswered = recorder.happened.unanswered
    why = why or (f"{', '.join(unanswered)} never computed the whole prompt" if unanswered else "")
    row.missing = [f"{trace.header.name}@{trace.header.layout.name}, {row.precision}: {why}"] if why else []
    tally = Tally(checker=NAME, opportunities=row.rows, findings=len(judge.findings), measured=_measured(row))
    return Compared(
        trace=trace,
        history=result.history,
        findings=sorted([*judge.findings, *result.findings], key=lambda finding: finding.op),
        tallies=[tally],
        activity=result.activity,
        row=row,
    )


def _run(trace: Trace, engine: Engine, *, keep: bool) -> tuple[Recorder, Result]:
    if not isinstance(engine, ToyEngine):
        raise UsageError(
            f"--engine {engine.describe().engine}: computes no logits; cold against cached needs an engine that does"
        )
    recorder = Recorder(engine)
    result = drive(trace, engine, (), beside=recorder, keep=keep)
    recorder.close()
    return recorder, result


class _Judge:
    def __init__(self, trace: Trace, recorder: Recorder) -> None:
        name, _, where = trace.header.name.partition("/")
        self.model: Model = recorder.engine.tensors.model
        self.lives, self.happened = recorder.lives, recorder.happened
        self.floors: Floors = floors(self.model)
        logits, states = self.floors
        self.row = ArmRow(
            arm=name,
            where=where,
            precision=self.model.precision,
            traces=1,
            floor=logits.floor,
            tolerance=logits.tolerance,
            state_floor=states.floor,
            state_tolerance=states.tolerance,
            asked=dict.fromkeys(self.happened.restored, self.happened.asked),
            restored=dict(self.happened.restored),
        )
        self.findings: list[Finding] = []
        self._held: dict[tuple[tuple[int, ...], int], tuple[Tensor, State]] = {}

    # --- an unsplit run -----------------------------------------------------------------------------------------------

    def against_cold(self) -> None:
        """Compare every row and every life's last state with the dense model."""
        for life in self.lives:
            for piece in life.pieces:
                self._piece(life, piece)
            self._state(life)
        self.happened.restored_rows = self.row.restored_rows

    def _piece(self, life: RequestLifetime, piece: ComputedChunk) -> None:
        row, tolerance = self.row, self.floors.logits.tolerance
        right = self._cold(life, piece)[piece.start : piece.stop]
        differences = (piece.logits - right).abs().amax(-1)
        numbers = differences.tolist()
        beyond = sum(not x <= tolerance for x in numbers)
        largest = max((x for x in numbers if math.isfinite(x)), default=0.0)
        near, hard = self._flips(life, piece, right)
        row.rows += len(numbers)
        row.restored_rows += len(numbers) if life.resume else 0
        row.beyond += beyond
        row.largest = max(row.largest, largest)
        row.near, row.hard = row.near + near, row.hard + hard
        if beyond:
            self._find(
                DIVERGED,
                life,
                piece,
                f"its logits must be those of a cold, unsplit run within {tolerance:.1e} (noise floor {row.floor:.1e}); "
                f"however {beyond} of {len(numbers)} rows differ by more (largest finite difference {largest:.1e}), "
                f"{near + hard} sampled tokens change, {hard} of them by more than a near-tie",
            )

    def _flips(self, life: RequestLifetime, piece: ComputedChunk, right: Tensor) -> tuple[int, int]:
        """Return how many tokens are chosen otherwise: near-ties of the cold run, and others."""
        first = max(life.prompt - 1 - piece.start, 0)
        ours, cold_rows = piece.logits[first:], right[first:]
        self.row.sampled += len(ours)
        changed = ours.argmax(-1) != cold_rows.argmax(-1)
        if not bool(changed.any()):
            return 0, 0
        best = cold_rows[changed].topk(2).values
        near = int(((best[:, 0] - best[:, 1]) <= 2 * self.floors.logits.tolerance).sum())
        return near, int(changed.sum()) - near

    def _cold(self, life: RequestLifetime, piece: ComputedChunk) -> Tensor:
        """Return the dense logits of what a piece was given; one run serves all pieces without wrong drafts."""
        whole = life.pieces[-1]
        same = whole.version == piece.version and whole.tokens[: piece.stop] == piece.tokens
        return self._right(whole.tokens if same else piece.tokens, piece.version)[0]

    def _right(self, tokens: tuple[int, ...], version: int) -> tuple[Tensor, State]:
        if (tokens, version) not in self._held:
            self._held[tokens, version] = cold(self.model, list(tokens), version)
        return self._held[tokens, version]

    def _state(self, life: RequestLifetime) -> None:
        piece, (floor, tolerance) = life.pieces[-1], self.floors.states
        if not piece.states:
            return
        _, right = self._right(piece.tokens[: piece.known], piece.version)
        distance = furthest(piece.states, right)
        self.row.states += 1
        self.row.state_largest = max(self.row.state_largest, distance if math.isfinite(distance) else 0.0)
        if not distance <= tolerance:
            self.row.states_beyond += 1
            self._find(
                DIVERGED,
                life,
                piece,
                f"its recurrent state must be that of a cold, unsplit run within {tolerance:.1e} (noise floor {floor:.1e}); "
                f"however it differs by {distance:.1e}",
            )

    # --- the same chunks ----------------------------------------------------------------------------------------------

    def against_alike(self) -> None:
        """Compare what was computed after a hit, bit by bit, with a cold run in the same chunks, where they are known."""
        chunk_history = ChunkHistory()
        for life in self.lives:
            chain = chunk_history.chain(life)
            if chain is not None and life.resume:
                logits, states = again(self.model, life.pieces, chain)
                self._bits(life, logits, states, "a cold run in the same chunks")

    def against_itself(self, other: Recorder) -> None:
        """Compare every bit with another run of the same trace."""
        for life, its in zip(self.lives, other.lives, strict=True):
            self._bits(life, [piece.logits for piece in its.pieces], its.pieces[-1].states, "another run of the same trace")

    def _bits(self, life: RequestLifetime, logits: list[Tensor], states: list[list[Tensor]], of: str) -> None:
        row = self.row
        for piece, its in zip(life.pieces, logits, strict=True):
            same = torch.equal(piece.logits, its)
            row.bits += len(piece.logits)
            row.bits_held += len(piece.logits) if same else 0
            if not same:
                apart = float((piece.logits - its).abs().max())
                self._find(
                    UNEQUAL,
                    life,
                    piece,
                    f"its logits must be those of {of}, bit by bit; however they differ by up to {apart:.1e}",
                )
        last = life.pieces[-1]
        pairs = [(a, b) for one, two in zip(last.states, states, strict=True) for a, b in zip(one, two, strict=True)]
        if not all(torch.equal(a, b) for a, b in pairs):
            self._find(UNEQUAL, life, last, f"its recurrent state must be that of {of}, bit by bit; however it is not")

    def _find(self, anomaly: str, life: RequestLifetime, piece: ComputedChunk, says: str) -> None:
        """Report a request's first difference of a kind."""
        if any(finding.r == life.r and finding.anomaly == anomaly for finding in self.findings):
            return
        resumed = f", which resumed at {life.resume}," if life.resume else ""
        sentence = (
            f"Let {life.r}{resumed} compute tokens [{piece.start}, {piece.stop}) in step {piece.step}: {says}: a contradiction."
        )
        self.findings.append(Finding(anomaly=anomaly, checker=NAME, r=life.r, sentence=sentence, op=piece.op))


def _measured(row: ArmRow) -> Measured:
    return Measured(
        floor=row.floor,
        tolerance=row.tolerance,
        largest=row.largest,
        rows=row.rows,
        restored_rows=row.restored_rows,
        beyond=row.beyond,
        asked=max(row.asked.values(), default=0),
        restored=min(row.restored.values(), default=0),
    )
