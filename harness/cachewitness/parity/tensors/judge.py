"""Judges one trace of an arm: every position against the model's definition, and bit by bit where
chunks are alike.

Tokens are compared as the choices that logits make: the likeliest token at every position that is
sampled from. What a request generates is scripted, so one wrong choice does not hide later ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.divergence import divergence
from cachewitness.core.checkers.finding import Finding, Measured, Tally, merge_measured
from cachewitness.core.checkers.tensors import measured
from cachewitness.core.driving import drive
from cachewitness.core.engine import Engine
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.tensors.arms import arm_of
from cachewitness.parity.tensors.chunk_history import ChunkHistory, recompute
from cachewitness.parity.tensors.record import ComputedChunk, Recorder, RequestLifetime
from cachewitness.parity.tensors.states import by_layer
from cachewitness.report.arm_row import ArmRow
from cachewitness.report.compared import NAME, Compared
from cachewitness.toy.culprit import first_wrong
from cachewitness.toy.engine import ToyEngine
from cachewitness.toy.model import Model
from cachewitness.toy.noise import Floors, distance, floors
from cachewitness.toy.oracle import Answer, Text, answers, compared

DIVERGED, UNEQUAL = "cached-divergence", "unequal-bits"


def judged(trace: Trace, engine: Engine, spec: EngineSpec, *, keep: bool = True) -> Compared:
    """Run a trace on a fresh engine and, if its arm says so, on another that is opened as `spec`;
    return the judged result.

    Raises UsageError if the engine computes nothing.
    """
    recorder, result = _run(trace, engine, keep=keep)
    arm = arm_of(trace.header.name)
    judge = _Judge(trace, recorder)
    judge.against_definition()
    if arm is not None and arm.again:
        judge.against_itself(_run(trace, spec.open(trace.header), keep=False)[0])
    else:
        judge.against_alike()
    row = judge.row
    row.failed = bool(judge.findings or result.findings)
    why = arm.missing(recorder.happened) if arm is not None else ""
    unanswered = recorder.happened.unanswered
    why = why or (f"{', '.join(unanswered)} never computed the whole prompt" if unanswered else "")
    row.missing = (
        [f"{trace.header.name}@{trace.header.layout.name}, {row.precision}: {why}"] if why else []
    )
    tally = Tally(
        checker=NAME,
        opportunities=row.rows,
        findings=len(judge.findings),
        measured=judge.measured,
        open=judge.floors.blind,
    )
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
            f"--engine {engine.describe().engine}: computes no logits; cold against cached needs an"
            " engine that does"
        )
    recorder = Recorder(engine)
    result = drive(trace, engine, (), beside=recorder, keep=keep)
    recorder.close()
    return recorder, result


class _Judge:
    def __init__(self, trace: Trace, recorder: Recorder) -> None:
        name, _, where = trace.header.name.partition("/")
        tensors = recorder.engine.tensors
        self.model: Model = tensors.model
        self.pools = tensors.pools
        self.kernels = tensors.kernels
        self.pad_rows = tensors.pad_rows
        self.lives = recorder.lives
        self.happened = recorder.happened
        self.floors: Floors = floors(self.model)
        self.row = ArmRow(
            arm=name,
            where=where,
            precision=self.model.precision,
            traces=1,
            asked=dict.fromkeys(self.happened.restored, self.happened.asked),
            restored=dict(self.happened.restored),
        )
        self.findings: list[Finding] = []
        self.measured: list[Measured] = []

    # --- the definition ---------------------------------------------------------------------------

    def against_definition(self) -> None:
        """Compare every row and every life's last state with what the definition says of the
        same tokens.
        """
        after: dict[Text, int] = {}
        for life in self.lives:
            after |= {
                _text(piece): piece.stop
                for piece in life.pieces
                if _text(piece) not in after and not _is_whole(life, piece)
            }
        ends = {_text(life.pieces[-1]): life.pieces[-1].known for life in self.lives}
        defined = answers(self.model, after | ends)
        for life in self.lives:
            for piece in life.pieces:
                self._piece(
                    life,
                    piece,
                    defined[_text(life.pieces[-1] if _is_whole(life, piece) else piece)],
                )
            self._state(life, defined)
        self.happened.restored_rows = self.row.restored_rows
        for entry in self.measured[:1]:
            entry.asked = max(self.row.asked.values(), default=0)
            entry.restored = min(self.row.restored.values(), default=0)

    def _piece(self, life: RequestLifetime, piece: ComputedChunk, answer: Answer) -> None:
        row = self.row
        right = answer.logits[piece.start : piece.stop]
        event = compared(piece.logits, right, self.model.precision, self.floors.logits)
        entry = measured(event, event.stop if life.resume else 0)
        self.measured = merge_measured([*self.measured, entry])
        near, hard = self._flips(life, piece, right)
        row.rows += entry.rows
        row.restored_rows += entry.restored_rows
        row.beyond += entry.beyond
        row.no_number += entry.nan + entry.infinite
        row.largest, row.share = max(row.largest, entry.largest), max(row.share, entry.share)
        row.near, row.hard = row.near + near, row.hard + hard
        if event.beyond:
            event.at += piece.start
            event.first = first_wrong(
                self.model, self.floors, piece.place, piece.tokens, piece.start, piece.version
            )
            self._find(
                DIVERGED,
                life,
                piece,
                f"{divergence(event)}; {near + hard} sampled tokens change, {hard} of them by more"
                " than a near-tie",
                f"{event.beyond} of {event.stop - event.start} rows of its logits are wrong, first"
                f" at {event.at}",
            )

    def _flips(self, life: RequestLifetime, piece: ComputedChunk, right: Tensor) -> tuple[int, int]:
        """Return how many tokens are chosen otherwise: near-ties of the definition's logits, and
        others.
        """
        first = max(life.prompt - 1 - piece.start, 0)
        ours = piece.logits[first:].cpu()
        exact = right[first:]
        self.row.sampled += len(ours)
        changed = ours.argmax(-1) != exact.argmax(-1)
        if not bool(changed.any()):
            return 0, 0
        best = exact[changed].topk(2).values
        near = int(((best[:, 0] - best[:, 1]) <= 2 * self.floors.logits.tolerance).sum())
        return near, int(changed.sum()) - near

    def _state(self, life: RequestLifetime, defined: dict[Text, Answer]) -> None:
        """Compare the state after a life's last known token, layer by layer; the first that is
        wrong is told.
        """
        piece = life.pieces[-1]
        parts = by_layer(self.pools, piece.states)
        self.row.states += bool(parts)
        wrong = [
            part
            for part in sorted(parts)
            if self._part(piece, *part, parts[part], defined[_text(piece)])
        ]
        self.row.states_beyond += bool(wrong)
        if wrong:
            layer, part = wrong[0]
            noise = self.floors.layers[layer][part]
            off = distance(parts[wrong[0]], defined[_text(piece)].kept[layer][part])
            how = f"is off by {off:.1e}" if math.isfinite(off) else "holds NaN or infinity"
            self._find(
                DIVERGED,
                life,
                piece,
                f"after {piece.known} tokens the {part} of layer {layer}"
                f" ({self.model.config.layer_types[layer]}) must be that of the definition within"
                f" {noise.tolerance:.1e} (noise floor {noise.floor:.1e}); however it {how}",
                f"the {part} of layer {layer} after {piece.known} tokens {how}",
            )

    def _part(
        self, piece: ComputedChunk, layer: int, part: str, ours: Tensor, answer: Answer
    ) -> bool:
        """Compare one part of one layer's state; return whether it is wrong."""
        noise = self.floors.layers[layer][part]
        off = distance(ours, answer.kept[layer][part])
        finite, share = (off, off / noise.tolerance) if math.isfinite(off) else (0.0, 0.0)
        entry = Measured(
            dtype=self.model.precision,
            what=f"{part} of {self.model.config.layer_types[layer]}",
            **noise._asdict(),
            least=noise.tolerance,
            largest=finite,
            share=share,
            rows=1,
            beyond=int(not off <= noise.tolerance),
        )
        self.measured = merge_measured([*self.measured, entry])
        row = self.row
        row.state_largest, row.state_share = (
            max(row.state_largest, finite),
            max(row.state_share, share),
        )
        row.no_number += not math.isfinite(off)
        return entry.beyond > 0

    # --- the same chunks --------------------------------------------------------------------------

    def against_alike(self) -> None:
        """Compare what was computed after a hit, bit by bit, with a cold run in the same chunks,
        where they are known.
        """
        chunk_history = ChunkHistory()
        for life in self.lives:
            chain = chunk_history.chain(life)
            if chain is not None and life.resume:
                logits, states = recompute(
                    self.model, self.kernels, self.pad_rows, life.pieces, chain
                )
                self._bits(life, logits, states, "a cold run in the same chunks")

    def against_itself(self, other: Recorder) -> None:
        """Compare every bit with another run of the same trace."""
        for life, its in zip(self.lives, other.lives, strict=True):
            self._bits(
                life,
                [piece.logits for piece in its.pieces],
                its.pieces[-1].states,
                "another run of the same trace",
            )

    def _bits(
        self, life: RequestLifetime, logits: list[Tensor], states: list[list[Tensor]], of: str
    ) -> None:
        row = self.row
        for piece, its in zip(life.pieces, logits, strict=True):
            same = torch.equal(piece.logits, its)
            row.bits += len(piece.logits)
            row.bits_held += len(piece.logits) if same else 0
            if not same:
                apart = float((piece.logits - its).abs().max())
                how = (
                    "one holds NaN or infinity"
                    if not math.isfinite(apart)
                    else f"they differ by up to {apart:.1e}"
                )
                self._find(
                    UNEQUAL,
                    life,
                    piece,
                    f"its logits must be those of {of}, bit by bit; however {how}",
                    f"its logits are not those of {of}",
                )
        last = life.pieces[-1]
        pairs = [
            (a, b)
            for one, two in zip(last.states, states, strict=True)
            for a, b in zip(one, two, strict=True)
        ]
        if not all(torch.equal(a, b) for a, b in pairs):
            self._find(
                UNEQUAL,
                life,
                last,
                f"its recurrent state must be that of {of}, bit by bit; however it is not",
                f"its recurrent state is not that of {of}",
            )

    def _find(
        self, anomaly: str, life: RequestLifetime, piece: ComputedChunk, says: str, brief: str
    ) -> None:
        """Report a request's first difference of a kind; `brief` is it in a few words."""
        if any(finding.r == life.r and finding.anomaly == anomaly for finding in self.findings):
            return
        resumed = f", which resumed at {life.resume}," if life.resume else ""
        sentence = (
            f"Let {life.r}{resumed} compute tokens [{piece.start}, {piece.stop}) in step"
            f" {piece.step}: {says}: a contradiction."
        )
        self.findings.append(
            Finding(
                anomaly=anomaly,
                checker=NAME,
                r=life.r,
                sentence=sentence,
                line=f"request {life.r} in step {piece.step}: {brief}",
                op=piece.op,
            )
        )


def _text(piece: ComputedChunk) -> Text:
    return piece.tokens, piece.version


def _is_whole(life: RequestLifetime, piece: ComputedChunk) -> bool:
    """Whether a piece's tokens are those that its life ended with, so that one run of the
    definition serves both.
    """
    last = life.pieces[-1]
    return last.version == piece.version and last.tokens[: piece.stop] == piece.tokens
