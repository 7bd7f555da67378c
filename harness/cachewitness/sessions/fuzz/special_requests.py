"""Which marks requests of special kinds reach: priorities, grammars, adapters, sessions,
log-probabilities of prompts, images that wait for the encoder.

What a client asks that no event repeats, a priority and a grammar, is read from the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from cachewitness.core.checkers.lookup import has_usable_key
from cachewitness.core.events import Extended, Hit, Preempted, Run, StepBegin
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.requests import RequestRecord
from cachewitness.core.trace_format import Op, Submit


class SpecialRequests:
    """What the requests of a trace were submitted with."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self._asked = {op.r: op for op in ops if isinstance(op, Submit)}

    def admitted(self, ledger: Ledger, event: Hit) -> Iterator[str]:
        """Yield the marks of an admission; whoever came earlier and waits was overtaken."""
        request = ledger.requests[event.r]
        asked = self._asked.get(event.r)
        if event.tier != "local" and asked is not None and asked.session:
            yield "session fetched from tier"
        if request.prompt_logprobs:
            yield "log-probabilities of a prompt"
            if not event.resume and any(_has_first_block(ledger, request)):
                yield "log-probabilities of what is cached"
        if any(group.kind == "chunked" for group in ledger.local) and event.resume:
            yield "hit over chunked attention"
        earlier = takewhile(lambda other: other.r != event.r, ledger.requests.live.values())
        for other in earlier:
            if other.hit is None and not other.paused and event.r in self._asked:
                yield from self._overtaken(event.r, other)

    def _overtaken(self, r: str, other: RequestRecord) -> Iterator[str]:
        ours = self._asked[r]
        theirs = self._asked.get(other.r)
        if theirs is None:
            return
        if ours.priority < theirs.priority:
            yield "overtaken by priority"
        if theirs.grammar:
            yield "overtaken while a grammar was compiled"
        if theirs.adapter and theirs.adapter != ours.adapter:
            yield "overtaken beside another adapter"

    def preempted(self, ledger: Ledger, event: Preempted) -> Iterator[str]:
        """Yield the marks of a request that loses its pages."""
        request = ledger.requests[event.r]
        if request.paused:
            yield "session preempted while it waits"
        asked = self._asked.get(event.r)
        if (
            event.by_engine
            and asked is not None
            and any(
                self._asked[other].priority < asked.priority
                for other in ledger.requests.live
                if other in self._asked
            )
        ):
            yield "preempted below a priority"

    def extended(self, ledger: Ledger, event: Extended) -> Iterator[str]:
        """Yield the marks of a session that gets more input."""
        yield "session went on"
        hit = ledger.requests[event.r].hit
        if hit is not None and hit.tier != "local":
            yield "session went on behind its tier"
        if ledger.open_steps:
            yield "session went on beside a step in flight"

    def begins(self, ledger: Ledger, event: StepBegin) -> Iterator[str]:
        """Yield the marks of a step."""
        adapters = {ledger.requests[run.r].identity[2] for run in event.runs} - {""}
        if len(adapters) > 1:
            yield "adapters in one step"
        if ledger.open_steps and any(run.drafts for run in event.runs):
            yield "drafts beside a step in flight"
        for run in event.runs:
            yield from _of_run(ledger, run)


def _of_run(ledger: Ledger, run: Run) -> Iterator[str]:
    request = ledger.requests[run.r]
    if run.checkpoints:
        yield "state saved within a chunk"
    if run.stop < request.prompt_tokens and any(item.at == run.stop for item in request.media):
        yield "chunk ended before an image"
    behind = run.known - request.prompt_tokens
    if any(0 < group.answer_window < behind for group in ledger.local):
        yield "answer beyond its window"


def _has_first_block(ledger: Ledger, request: RequestRecord) -> Iterator[bool]:
    """Yield for each group of full attention whether the request's first block has a key."""
    for group in ledger.local:
        yield (
            group.kind == "full"
            and group.block_size < len(request.nodes)
            and has_usable_key(ledger, group.id, request.nodes[group.block_size])
        )
