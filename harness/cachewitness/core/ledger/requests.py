"""What is known of every request: its prefixes, how far it has been computed, and the steps in
flight that run it.

The prefixes of a request are nodes of one trie, so that two requests share a node exactly where
they share content. A step may compute drafts, which branch off until they stand, and it may end
after its request: what it then computes is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from cachewitness.core.events import (
    Accept,
    Extended,
    Hit,
    Read,
    Run,
    Settled,
    StepBegin,
    StepEnd,
    Submitted,
    Version,
    Write,
)
from cachewitness.core.ledger.records import UNKNOWN
from cachewitness.core.ledger.trie import Trie
from cachewitness.core.trace_format import Media

Identity = tuple[int, str, str, int, str]
"""What a token is computed with: weights, salt, adapter, the adapter's version, and the kernels
that write its pages."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """What is known of a request: `nodes[i]` is its prefix of i tokens, `computed` how many of them
    have been run.

    `identity` is that of the first token, `drafted` where the last run ended, drafts included.
    `states` are, per group, the lengths at which a recurrent state was written. The first `shared`
    tokens are a part that others have too, as the client says. A session whose answer is over is
    `paused`: it holds its pages and waits for its client. `went_on` is how many of its tokens had
    been computed when it got more input last, `dropped` by position the prefixes up to the tokens
    that it went on without. With `prompt_logprobs` it may restore nothing. `load_failed`: of its
    hit, not all was loaded from another tier. `begun`: it was looked up, or ran, whatever it has
    lost since.
    """

    r: str
    tokens: list[int]
    prompt_tokens: int
    media: list[Media]
    identity: Identity
    nodes: list[int] = field(default_factory=list)
    live: bool = True
    computed: int = 0
    drafted: int = 0
    ran_steps: int = 0
    hit: Hit | None = None
    tainted: bool = False
    states: dict[int, set[int]] = field(default_factory=dict)
    shared: int = 0
    paused: bool = False
    went_on: int = 0
    dropped: dict[int, int] = field(default_factory=dict)
    prompt_logprobs: bool = False
    load_failed: bool = False
    begun: bool = False

    def restart(self) -> None:
        """Forget what was computed: the request lost its pages."""
        self.computed = self.drafted = self.ran_steps = self.went_on = 0
        self.hit = None
        self.tainted = self.load_failed = False
        self.states = {}

    @property
    def resume(self) -> int:
        """The position at which the request started to compute."""
        return self.hit.resume if self.hit else 0

    def node_of(self, length: int) -> int:
        """Return the prefix of a length; UNKNOWN if the request has fewer tokens."""
        return self.nodes[length] if length < len(self.nodes) else UNKNOWN


class Requests(dict[str, RequestRecord]):
    """The records of requests by name, the trie of their prefixes, and the steps in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.trie = Trie()
        self.live: dict[str, RequestRecord] = {}
        """Those that are not over, in the order in which they came."""
        self.weights = 0
        self._renewed = False
        """Whether weights or an adapter were ever loaded."""
        self.adapters: dict[str, int] = {}
        """Per adapter: its version."""
        self.open_steps: dict[int, StepBegin] = {}
        self.last_step_ended = 0
        self.draft_prefixes: dict[tuple[int, str], list[int]] = {}
        """Per step in flight and request that drafts in it: the prefixes of its run."""
        self.ended_in_flight: dict[tuple[int, str], int] = {}
        """(step, r) of requests that ended, or lost their pages, while the step was in flight: it
        still runs, over pages that they gave back. Nobody waits for its tokens, and whoever has
        those pages next writes them in a later step, be it r itself come back; so what it reads
        is not judged, unless keys of what it writes stay. The oldest step in flight by then.
        """

    # --- questions --------------------------------------------------------------------------------

    def prefixes_of_run(self, event: Read | Write) -> list[int]:
        """Return the prefixes that a run computes, by length: those of its request, and behind them
        a branch for its drafts.

        A run may go past the tokens known without drafts if its request ended meanwhile; what it
        computes is like nothing else.
        """
        nodes = self[event.r].nodes
        if self.draft_prefixes:
            nodes = self.draft_prefixes.get((event.step, event.r), nodes)
        return nodes if event.stop < len(nodes) else self._with_drafts(event, nodes)

    def _with_drafts(self, event: Read | Write, nodes: list[int]) -> list[int]:
        """Return the prefixes of a run beyond the tokens known, and remember them until its step
        ends.
        """
        begun = self.open_steps.get(event.step)
        run = next((run for run in begun.runs if run.r == event.r), None) if begun else None
        symbols = list(run.drafts) if run and run.known < len(nodes) else []
        known = run.known if run and symbols else len(nodes) - 1
        symbols += [self.trie.marked(("unknown", event.step, event.r))] * (
            event.stop - known - len(symbols)
        )
        branch = nodes[: known + 1] + self.trie.extend(nodes[known], symbols)
        self.draft_prefixes[event.step, event.r] = branch
        return branch

    # --- life -------------------------------------------------------------------------------------

    def submit(self, event: Submitted) -> None:
        """Take in a request under the adapter and weights of now."""
        self[event.r] = self.live[event.r] = self.would_be(event)

    def would_be(self, event: Submitted) -> RequestRecord:
        """Return the record that a request would have if it came now."""
        identity = (
            self.weights,
            event.salt,
            event.adapter,
            self.adapters.get(event.adapter, 0),
            event.kernels,
        )
        request = RequestRecord(
            event.r,
            list(event.tokens),
            len(event.tokens),
            event.media,
            identity,
            shared=event.shared,
            prompt_logprobs=event.prompt_logprobs,
        )
        self._rebuild_prefix(request, 0)
        return request

    def accept(self, event: Accept) -> None:
        """Take in the tokens that a run generated; drafts that fell are taken off again."""
        request = self[event.r]
        old = event.upto - len(event.tokens)
        request.tokens[old:] = event.tokens
        self._rebuild_prefix(request, old)
        if request.drafted > request.computed:
            request.computed = min(event.upto - 1, request.drafted)

    def pause(self, r: str) -> None:
        """Let a session wait for more input; what steps in flight compute for it is nobody's."""
        self._ends_in_flight(r)
        self[r].paused = True

    def extend(self, event: Extended) -> None:
        """Let a session go on with more input; steps in flight still compute the tokens that it
        had.
        """
        request = self[event.r]
        for place in self.ended_in_flight:
            if place[1] == event.r:
                self.draft_prefixes.setdefault(place, [*request.nodes])
        request.paused = False
        if event.keep + 1 < len(request.nodes):
            request.dropped[event.keep] = request.nodes[event.keep + 1]
        request.tokens[event.keep :] = event.tokens
        request.prompt_tokens = len(request.tokens)
        request.computed = request.drafted = request.went_on = min(request.computed, event.keep)
        self._rebuild_prefix(request, event.keep)

    def resume_at(self, event: Hit, *, tainted: bool) -> None:
        """Start a request where its hit ends."""
        request = self[event.r]
        request.restart()
        request.begun = True
        request.hit = event
        request.computed = event.resume
        request.tainted = tainted

    def preempt(self, r: str) -> None:
        """Let a request start again from nothing, under the weights and the adapter of now."""
        self._ends_in_flight(r)
        self[r].restart()
        self._renew(self[r])

    def end(self, r: str) -> None:
        """Note that a request is over."""
        self._ends_in_flight(r)
        self[r].live = self[r].paused = False
        del self.live[r]

    def _ends_in_flight(self, r: str) -> None:
        for step, begun in self.open_steps.items():
            if any(run.r == r for run in begun.runs):
                self.ended_in_flight.setdefault((step, r), min(self.open_steps))

    def note_state(self, event: Write) -> None:
        """Remember that a request wrote its recurrent state, unless the run outlived it."""
        request = self[event.r]
        if event.stop < len(request.nodes) and (event.step, event.r) not in self.ended_in_flight:
            request.states.setdefault(event.group, set()).add(event.stop)

    # --- steps ------------------------------------------------------------------------------------

    def begin_step(self, event: StepBegin) -> None:
        """Note who runs, and what of it is computed from other tokens than the request's own."""
        self.open_steps[event.step] = event
        for run in event.runs:
            self[run.r].begun = True
        self._note_fed(event.step, event.runs)

    def _note_fed(self, step: int, runs: list[Run]) -> None:
        for run in runs:
            if run.fed:
                nodes = self[run.r].nodes[: run.start + 1]
                self.draft_prefixes[step, run.r] = nodes + self.trie.extend(
                    nodes[-1], [*run.fed, *run.drafts]
                )

    def settle(self, event: Settled) -> None:
        """Note how the runs of a step in flight turned out, which is known before any of them
        reads or writes.
        """
        begun = self.open_steps[event.step]
        self.open_steps[event.step] = replace(begun, runs=event.runs_of(begun))
        settled = {run.r for run in event.runs}
        for run in begun.runs:
            if run.fed and run.r in settled:
                del self.draft_prefixes[event.step, run.r]
        self._note_fed(event.step, event.runs)

    def ran_in(self, event: StepEnd) -> list[Run]:
        """Return the runs of a step that is about to end whose requests are still there and were
        not withdrawn from it.
        """
        step = event.step
        begun = self.open_steps.get(event.step)
        withdrawn = event.withdrawn
        ended = self.ended_in_flight
        if begun is None:
            return []
        if not withdrawn and not ended:
            return begun.runs
        return [run for run in begun.runs if run.r not in withdrawn and (step, run.r) not in ended]

    def end_step(self, event: StepEnd) -> None:
        """Advance whoever ran and is still there."""
        step = event.step
        for run in self.ran_in(event):
            request = self[run.r]
            request.computed = run.known
            request.drafted = run.stop
            request.ran_steps += 1
        self.open_steps.pop(step, None)
        if self.ended_in_flight:
            self.ended_in_flight = {
                place: since for place, since in self.ended_in_flight.items() if place[0] != step
            }
        if self.draft_prefixes:
            self.draft_prefixes = {
                place: nodes for place, nodes in self.draft_prefixes.items() if place[0] != step
            }
        if step > self.last_step_ended:
            self.last_step_ended = step

    # --- identity ---------------------------------------------------------------------------------

    def load_version(self, event: Version) -> None:
        """Load weights or an adapter; what live requests have yet to compute is computed with
        them.
        """
        self._renewed = True
        if event.adapter:
            self.adapters[event.adapter] = event.weights
        else:
            self.weights = event.weights
        for request in self.live.values():
            self._renew(request)

    def _identity_now(self, request: RequestRecord) -> Identity:
        """Return what the request's next token is computed with."""
        _, salt, adapter, _, kernels = request.identity
        return (self.weights, salt, adapter, self.adapters.get(adapter, 0), kernels)

    def _renew(self, request: RequestRecord) -> None:
        """Rebuild the prefixes that a request has yet to compute under the weights and the
        adapter of now.
        """
        now = self._identity_now(request)
        if now != request.identity:
            if request.computed == 0:
                request.identity = now
            self._rebuild_prefix(request, request.computed)

    def _rebuild_prefix(self, request: RequestRecord, start: int) -> None:
        """Rebuild the request's prefixes from `start` on, under the adapter and weights of now."""
        if start == 0:
            request.nodes = [self.trie.root(request.identity)]
        request.nodes[start + 1 :] = self.trie.extend(
            request.nodes[start], self._symbols(request, start)
        )

    def _symbols(self, request: RequestRecord, start: int) -> list[int]:
        """Return what tells the tokens from `start` on apart: each token, its image, and an
        identity that changed midway.
        """
        symbols = request.tokens[start:]
        now = self._identity_now(request) if self._renewed else request.identity
        mixed = now != request.identity
        if not mixed and not request.media:
            return symbols
        for index, token in enumerate(symbols):
            item = _media_at(request.media, start + index)
            if mixed or item:
                symbols[index] = self.trie.marked((token, item, now if mixed else 0))
        return symbols


def _media_at(media: list[Media], position: int) -> str:
    for item in media:
        if item.at <= position < item.at + item.length:
            return item.hash
    return ""
