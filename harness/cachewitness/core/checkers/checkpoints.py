"""States that a prompt has to leave behind: chunks that end where a later request can resume.

A recurrent state exists where a chunk ends, and nowhere else. An engine whose chunks all end beside
the boundaries at which it resumes keeps nothing of a prompt, and every answer is right: no key is
lost, since none could be made. Where an engine declares at which multiples it stops for a state
(`checkpoint_alignment`), a prompt that was computed has a state behind the last of them that an
exact replay can use; and where it says that it keeps shared-prefix boundaries, behind those.

In how many chunks a prompt is computed is the scheduler's affair, and so is where the others end.
That a state which was written is kept is judged by `replay-boundary-retained`.
"""

from __future__ import annotations

from collections.abc import Collection

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.retention import left_shared_prefix, replay_boundary
from cachewitness.core.checkers.wording import count, named
from cachewitness.core.events import Header, Hit, Run, StepBegin, StepEnd
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.requests import RequestRecord

MISSED = "missed-checkpoint"


class CheckpointsTaken(Checker):
    """A prompt that was computed has a state where its replay, or a sibling, resumes."""

    name = "checkpoints"
    summary = (
        "a chunk of a prompt ends at the last boundary at which an exact replay can resume, and at"
        " a shared-prefix boundary that is kept, so that there is a state, where the engine"
        " declares at which multiples it stops for one"
    )
    anomalies = (MISSED,)
    lacks = "a prompt that is computed past a boundary of a recurrent state"

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[str, int] = {}
        """By request: where it leaves a prefix that another request shares, in tokens."""
        self._replaying: set[str] = set()
        """Who had generated tokens when it was looked up: it computes them again, and its chunks
        end as those of a prompt that is so much longer."""
        self._ends: dict[str, list[int]] = {}
        """By request: where it began, and where its chunks ended."""

    def not_applicable(self, header: Header) -> str:
        if own := super().not_applicable(header):
            return own
        if not header.rules.caching:
            return "prefix caching is off"
        if not any(group.kind == "recurrent" for group in header.local_groups()):
            return "there is no recurrent state"
        if not header.rules.checkpoint_alignment:
            return (
                "the engine does not declare at which multiples it stops for a state"
                " (`checkpoint_alignment` of its rules)"
            )
        return ""

    def handlers(self) -> dict[type, Handler]:
        return {Hit: self.on_hit, StepBegin: self.on_step_begin, StepEnd: self.on_step_end}

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Note where the request leaves a shared prefix, and whether it had generated tokens."""
        request = ledger.requests[event.r]
        self._left[event.r] = left_shared_prefix(ledger, request)
        if len(request.tokens) > request.prompt_tokens:
            self._replaying.add(event.r)
        else:
            self._replaying.discard(event.r)
        return None

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> Found:
        """Note where chunks end."""
        for run in event.runs:
            if ledger.requests[run.r].ran_steps == 0:
                self._ends[run.r] = []
            self._ends.setdefault(run.r, []).append(run.stop)
        return None

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        """Judge the boundaries that prompts have passed with their runs of this step."""
        found: list[Finding] = []
        for run in ledger.requests.ran_in(event):
            request = ledger.requests[run.r]
            if request.tainted or run.r in self._replaying:
                continue
            found += self._judge(ledger, request, run)
            if run.stop >= request.prompt_tokens:
                self._ends.pop(run.r, None)
        return found

    def _judge(self, ledger: Ledger, request: RequestRecord, run: Run) -> list[Finding]:
        """Judge the replay boundary when the prompt is complete, and a shared-prefix boundary
        when it is passed.
        """
        first = max(request.resume, request.went_on)
        prompt = request.prompt_tokens
        found: list[Finding] = []
        if run.start < prompt <= run.stop:
            boundary = replay_boundary(
                ledger.header.rules, prompt, ledger.header.rules.checkpoint_alignment
            )
            found += self._missed(ledger, request, boundary, first, "an exact replay of it resumes")
        left = self._left.get(request.r, 0)
        if run.start < left <= min(run.stop, prompt):
            why = "it leaves a prefix that somebody else shares"
            found += self._missed(ledger, request, left, first, why)
        return found

    def _missed(
        self, ledger: Ledger, request: RequestRecord, boundary: int, first: int, why: str
    ) -> list[Finding]:
        """Find the recurrent groups that have no state behind a boundary."""
        if boundary <= first:
            return []
        self.opportunities += 1
        return [
            _missed(request, group.id, boundary, why, self._ends.get(request.r, []))
            for group in ledger.local
            if group.kind == "recurrent" and boundary not in request.states.get(group.id, ())
        ][:1]

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Forget requests that are over."""
        self._left = {r: left for r, left in self._left.items() if r in ledger.requests}
        self._ends = {r: ends for r, ends in self._ends.items() if r in ledger.requests}
        self._replaying &= ledger.requests.keys()


def _missed(
    request: RequestRecord, group: int, boundary: int, why: str, ends: list[int]
) -> Finding:
    chunks = ", ".join(map(str, ends))
    sentence = (
        f"Let {request.r} compute its prompt of {count(request.prompt_tokens, 'token')} from"
        f" {request.resume} on, and pass {boundary}, where {why}. The engine declares that a chunk"
        f" ends there, so that there is a state. However its chunks end at {chunks}, and group"
        f" {group} has no state behind {boundary}: a contradiction."
    )
    line = f"{named(request.r)} has no state behind token {boundary}, where {why}"
    return Finding(anomaly=MISSED, r=request.r, sentence=sentence, line=line, owed=boundary)
