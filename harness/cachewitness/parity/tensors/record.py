"""Records what an engine with tensors computes: for each run of a request its logits, and the
states that it left.

A request has one lifetime for each time that it is admitted; a lifetime ends when the request
finishes or loses its pages. The record keeps the chunks of each lifetime and the position that it
resumed from, to be compared when the trace has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.events import (
    Aborted,
    Compare,
    Event,
    Hit,
    Preempted,
    StepBegin,
    StepEnd,
    Submitted,
)
from cachewitness.core.restored import restored
from cachewitness.core.trace_format import Op
from cachewitness.engines.fault_tools import wrap
from cachewitness.parity.tensors.arms import Happened
from cachewitness.parity.tensors.states import State, states_of
from cachewitness.toy.culprit import Place


@dataclass
class ComputedChunk:
    """Tokens [start, stop) of a request, the last `drafts` of them guesses, computed in one step.

    `tokens` are the model's from 0 to `stop`; `logits` [stop - start, vocab]. `states` are those
    after the known tokens, `place` is where the step kept what it computed on its way, `alone` says
    that nobody else ran in the step, `op` is the operation of the trace that it ran in.
    """

    step: int
    start: int
    stop: int
    drafts: int
    alone: bool
    tokens: tuple[int, ...]
    version: int
    logits: Tensor
    states: State
    place: Place
    op: int = -1

    @property
    def known(self) -> int:
        """Where the known tokens end."""
        return self.stop - self.drafts


@dataclass
class RequestLifetime:
    """A request from its admission on: it resumed at `resume`, and computed `pieces`."""

    r: str
    prompt: int
    resume: int
    pieces: list[ComputedChunk] = field(default_factory=list)


class Recorder:
    """Stands beside an engine `toy` while a trace runs; `lives` and `happened` are what came of it.

    The engine's own comparison is left out: the same numbers are judged here, and it would compute
    the same cold runs again.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.lives: list[RequestLifetime] = []
        self.happened = Happened(restored={group.kind: 0 for group in engine.header.local_groups()})
        self._prompts: dict[str, int] = {}
        self._aborted: set[str] = set()
        self._living: dict[str, RequestLifetime] = {}
        self._pieces: dict[int, list[tuple[str, ComputedChunk]]] = {}
        self._outstanding, self._op = 0, -1
        wrap(engine.tensors, "execute", self._execute)
        wrap(engine.oracle, "prepare", _left_out)
        wrap(engine.oracle, "compare", _not_compared)

    def __call__(self, index: int, op: Op, events: Sequence[Event]) -> Finding | None:
        """Take in what one operation made happen; nothing is judged yet."""
        self._op = index
        for event in events:
            if isinstance(event, Submitted):
                self._prompts[event.r] = len(event.tokens)
            elif isinstance(event, Hit):
                self._living[event.r] = self._life(event.r, event.resume)
                self._looked_up(event)
            elif isinstance(event, Preempted):
                self._preempted(event.r)
            elif isinstance(event, Aborted):
                self._aborted.add(event.r)
            elif isinstance(event, StepBegin):
                self._outstanding += 1
                self.happened.in_flight += self._outstanding > 1
                self.happened.from_tier += sum(
                    move.src_pool != move.dst_pool for move in event.copies
                )
            elif isinstance(event, StepEnd):
                self._outstanding -= 1
                for r, piece in self._pieces.pop(event.step, []):
                    self._computed(r, piece)
        return None

    def close(self) -> None:
        """Name the requests that were not aborted and whose prompts were never computed to their
        end.
        """
        reached = {
            life.r for life in self.lives if life.pieces and life.pieces[-1].known >= life.prompt
        }
        self.happened.unanswered = sorted(set(self._prompts) - reached - self._aborted)

    def _life(self, r: str, resume: int) -> RequestLifetime:
        return RequestLifetime(r, self._prompts[r], resume)

    def _looked_up(self, event: Hit) -> None:
        h = self.happened
        h.lookups += 1
        h.hits += event.resume > 0
        h.asked += self._prompts[event.r]
        for kind, tokens in restored(self.engine.header, event).items():
            h.restored[kind] += tokens

    def _preempted(self, r: str) -> None:
        life = self._living.pop(r, None)
        if life is not None and life.pieces:
            done = life.pieces[-1].known
            self.happened.mid_prefill += done < life.prompt
            self.happened.mid_decode += done >= life.prompt

    def _computed(self, r: str, piece: ComputedChunk) -> None:
        life = self._living.setdefault(r, self._life(r, 0))
        if not life.pieces:
            self.lives.append(life)
        else:
            last = life.pieces[-1]
            self.happened.fell += last.stop > piece.start
            self.happened.stood += last.drafts > 0 and piece.start > last.known
        piece.op = self._op
        life.pieces.append(piece)

    def _execute(
        self,
        original: Any,
        begin: StepBegin,
        withdrawn: Collection[str],
        tokens: Mapping[str, list[int]],
    ) -> dict[str, Tensor]:
        logits: dict[str, Tensor] = original(begin, withdrawn, tokens)
        tensors = self.engine.tensors
        for run in begin.runs:
            if run.r in logits and not tensors.orphaned(begin.step, run.r):
                piece = ComputedChunk(
                    step=begin.step,
                    start=run.start,
                    stop=run.stop,
                    drafts=len(run.drafts),
                    alone=len(logits) == 1,
                    tokens=tuple(tokens[run.r][: run.stop]),
                    version=tensors.version,
                    logits=logits[run.r],
                    states=states_of(tensors.pools, tensors.tables(run), run.known),
                    place=tensors.places[run.r],
                )
                self._pieces.setdefault(begin.step, []).append((run.r, piece))
        return logits


def _left_out(*_: Any) -> None:
    """Do nothing."""


def _not_compared(
    original: Any,
    r: str,
    start: int,
    tokens: Sequence[int],
    logits: Tensor,
    version: int,
    step: int,
    place: Place | None,
) -> Compare:
    return Compare(step=step, r=r, start=start, stop=start)
