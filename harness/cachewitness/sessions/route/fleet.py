"""Runs a trace on a fleet of workers behind a router.

Before each request the router says what it foresees on every worker, which is held against the keys
that are there (`contract`); the request goes to the worker of which it foresees most, and that
engine then says what it hit. Every worker is followed by a ledger of its own. Where its events
contradict its keys, no router is held to what they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index as whole
from typing import Any

from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.key_events import KeyEventsTrue
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, named
from cachewitness.core.driving import BatchedRun, LiveRequests, Observer, described
from cachewitness.core.engine_failure import EngineFailure, by_the_user, describe_error
from cachewitness.core.events import (
    Accept,
    Event,
    Hit,
    Publish,
    ResetDone,
    StepEnd,
    Submitted,
    Unpublish,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Op,
    Submit,
    Trace,
    UpdateWeights,
    Vocabulary,
)
from cachewitness.engines.deadline import call_within
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.route.contract import Bounds, Reported, bounds, longest, unjudged
from cachewitness.sessions.route.delivery import Channel
from cachewitness.sessions.route.router import SECONDS, Make, Router
from cachewitness.sessions.route.wire import Names, Shared, Texts, events_of
from cachewitness.sessions.route.wire import described as groups_of

MISSED, PROMISED, RAISED = "missed-prefix", "false-promise", "router-raised"
"""What a router may do: foresee less than is there, more than is there, or raise, or not answer."""
HUNG = "hung"


@dataclass
class Routed:
    """A request that was sent to a worker; all lengths in tokens.

    `foreseen` there, between `least` and `most` by the router's contract, `keys` by all keys of
    the worker, `best` by those of the best worker. `hit` is what the engine took, and
    `keys_at_hit` what its keys allowed by then; −1 if it was never looked up. `settled`: everything
    that had happened had reached the router.
    """

    r: str
    prompt: int
    worker: int
    foreseen: int
    bounds: Bounds
    best: int
    settled: bool
    hit: int = -1
    keys_at_hit: int = -1


@dataclass
class Course:
    """What came of a trace: `why_not` says why it was not judged, or not to its end. `asked` counts
    how often a worker's share of a prompt was judged. `hung`: the router gave no answer.
    """

    routed: list[Routed] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    asked: int = 0
    messages: int = 0
    why_not: str = ""
    hung: bool = False


class _Hits(Checker):
    """Notes what each request hits when it is looked up first, and what the keys allow then."""

    name = "hits"
    summary = "what requests hit"
    anomalies = ()

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, tuple[int, int]] = {}

    def handlers(self) -> dict[type, Handler]:
        return {Hit: self.on_hit}

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Note a first hit."""
        if event.r not in self.first:
            nodes = ledger.requests[event.r].nodes
            published = ledger.keys.published
            allowed = longest(
                ledger.local, len(nodes) - 1, lambda group, at: nodes[at] in published[group.id]
            )
            self.first[event.r] = event.resume, allowed
        return None


class Worker:
    """An engine of the fleet, from one start to the next."""

    def __init__(
        self, spec: EngineSpec, trace: Trace, fleet: Vocabulary, names: Names, how: str
    ) -> None:
        self.engine = spec.open(trace.header)
        self.header = described(self.engine, trace.header)
        self.hits = _Hits()
        self.observer = Observer(self.header, [KeyEventsTrue(), self.hits], keep=False)
        self.channel = Channel(how)
        self.reported = Reported()
        self.open: set[str] = set()
        """Requests that were sent here and have not ended."""
        self.unsettled = False
        """Whether keys began or ended that are to be published with the next step."""
        self._ahead = BatchedRun(self.engine, self.header, self.observer, 1)
        self._live = LiveRequests()
        self._texts = Texts(fleet)
        self._names = names
        self._groups = self.header.local_groups()
        self._streams: dict[str, str] = {}
        self._taken = 0

    def apply(self, op: Op, index: int) -> list[dict[str, Any]] | None:
        """Carry out what of an operation concerns this worker, and return the key events of it;
        None if the engine failed.
        """
        asked = self._live.filter(op)
        if asked is None:
            return []
        events = self._ahead.carry_out(asked, index)
        if events is None:
            return None
        for event in events:
            if isinstance(event, Submitted) and isinstance(asked, Submit):
                self._texts.learn(asked, event)
                self._streams[event.r] = asked.stream or f"@{event.r}"
            elif isinstance(event, Accept):
                self._texts.learn_answer(self._streams[event.r], event)
        self._settle(events)
        return list(events_of(events, self._groups, self._texts, self._names))

    def _settle(self, events: Iterable[Event]) -> None:
        kinds = set(map(type, events))
        if StepEnd in kinds:
            self.unsettled = False
        elif kinds & {Publish, Unpublish, ResetDone}:
            self.unsettled = True

    def arrived(self, number: int) -> None:
        """Note that a message reached the router, and with it those that it has to ask for."""
        while self._taken <= number:
            self.reported.take(self.channel.log[self._taken])
            self._taken += 1

    def bounds(self, op: Submit, tokens: Sequence[int], router: Router) -> Bounds:
        """Return what the router may foresee of a prompt here."""
        ledger = self.observer.checkers.ledger
        event = Submitted(r=op.r, tokens=self._texts.own(tokens), salt=op.salt, adapter=op.adapter)
        return bounds(
            ledger,
            self.reported,
            ledger.requests.would_be(event).nodes,
            ((op.salt, op.adapter), tuple(tokens)),
            counts=router.counts,
            all_groups=router.all_groups,
        )


class Fleet:
    """A number of workers behind a router, for one trace."""

    def __init__(
        self,
        spec: EngineSpec,
        trace: Trace,
        make: Make,
        workers: int,
        how: str,
        seconds: float = SECONDS,
    ) -> None:
        self._spec = spec
        self._seconds = seconds
        self._trace = trace
        self._make = make
        self._texts = Vocabulary()
        self._starts = 0
        self._names: Shared | None = None if how == "seeds" else {}
        self.course = Course()
        self.workers = [self._start(how) for _ in range(workers)]
        self._router: Router | None = None
        self.course.why_not = unjudged(self.workers[0].header)

    def _start(self, how: str) -> Worker:
        self._starts += 1
        names = Names(self._starts, self._names)
        return Worker(self._spec, self._trace, self._texts, names, how)

    def run(self) -> Course:
        """Run the trace, or as far as it can be judged."""
        try:
            if not self.course.why_not:
                self._build()
            for index, op in enumerate(self._trace.ops):
                if self.course.why_not or self.course.findings:
                    break
                self._apply(_plain(op), index)
        finally:
            for worker in self.workers:
                worker.engine.close()
        for routed in self.course.routed:
            self._note_hit(routed)
        return self.course

    def _build(self) -> None:
        groups = groups_of(self.workers[0].header.local_groups())
        # What a router lacks of this machine or its options is the user's to mend.
        with self._asks("be built", "be built for these cache groups", 0, passes=UsageError):
            self._router = self._make(
                groups, lambda worker, first: self.workers[worker].channel.replay(first)
            )

    def _apply(self, op: Op | None, index: int) -> None:
        if op is None:
            return
        if isinstance(op, Submit):
            chosen = self._ask(op, index)
            if chosen < 0:
                return
            self.workers[chosen].open.add(op.r)
            self._give(chosen, op, index)
            return
        for number, worker in enumerate(self.workers):
            if isinstance(op, Finish | Abort):
                worker.open.discard(op.r)
            self._give(number, op, index)

    def _give(self, number: int, op: Op, index: int) -> None:
        """Have a worker carry out its part of an operation, and the router hear of it."""
        worker = self.workers[number]
        events = worker.apply(op, index)
        if events is None or worker.observer.findings:
            found = worker.observer.findings[0]
            self.course.why_not = f"the engine's own fault: {found.anomaly}, {found.line}"
            return
        if not events:
            return
        self.course.messages += 1
        for arriving in worker.channel.publish(events):
            worker.arrived(arriving)
            self._tell(number, arriving, index)
        if number == 0 and worker.channel.ends:
            self._restart(number)

    def _restart(self, number: int) -> None:
        """Start a worker anew; its requests are gone, and so is all that it had."""
        old = self.workers[number]
        for routed in self.course.routed:
            if routed.worker == number:
                self._note_hit(routed)
        old.engine.close()
        self.workers[number] = self._start("whole")
        # The router knows nothing of it before the first message comes, which has the number 0.
        self.workers[number].channel.behind = True

    def _note_hit(self, routed: Routed) -> None:
        if routed.hit < 0:
            hits = self.workers[routed.worker].hits.first
            routed.hit, routed.keys_at_hit = hits.get(routed.r, (-1, -1))

    def _tell(self, number: int, message: int, index: int) -> None:
        assert self._router is not None
        with self._asks("take", f"take in message {message} of worker {number}", index):
            self._router.take(number, message, self.workers[number].channel.message(message))

    @contextmanager
    def _asks(
        self,
        call: str,
        what: str,
        index: int,
        r: str = "",
        passes: type[Exception] | tuple[()] = (),
    ) -> Iterator[None]:
        """Give the router its time for a call; whatever it raises but `passes` is its own."""
        try:
            with call_within(call, self._seconds):
                yield
        except passes:
            raise
        except BaseException as error:
            if by_the_user(error):
                raise
            self._raised(what, error, index, r)

    def _raised(self, what: str, error: BaseException, index: int, r: str = "") -> None:
        self.course.hung = isinstance(error, EngineFailure) and error.anomaly == HUNG
        does = f"{error}" if self.course.hung else f"raises {describe_error(error)}"
        did = does.replace("raises", "raised", 1)
        self._find(
            RAISED,
            f"Let a router {what}, which every router must bear; however it {does}: a"
            " contradiction.",
            f"the router {did}",
            index,
            r,
        )

    def _find(self, anomaly: str, sentence: str, line: str, index: int, r: str) -> None:
        self.course.findings.append(
            Finding(anomaly=anomaly, checker="router", sentence=sentence, line=line, op=index, r=r)
        )

    # --- what is foreseen -------------------------------------------------------------------------

    def _ask(self, op: Submit, index: int) -> int:
        """Ask the router what it foresees of a request, judge that, and return the worker that it
        goes to; −1 if the router fails.
        """
        assert self._router is not None
        tokens = self._texts.tokens(op.prompt)
        foreseen: list[int] = []
        with self._asks("foresee", f"be asked of {op.r}", index, op.r):
            # It gets a list of its own: what is judged must not be the router's to change.
            answer = dict(self._router.foresee([*tokens], op.salt, op.adapter))
            foreseen = [whole(answer.get(number, 0)) for number in range(len(self.workers))]
        if not foreseen:
            return -1
        every = [worker.bounds(op, tokens, self._router) for worker in self.workers]
        settled = [not (worker.unsettled or worker.channel.behind) for worker in self.workers]
        for number, allowed in enumerate(every):
            if settled[number]:
                self.course.asked += 1
                self._judge(op, number, foreseen[number], allowed, index)
        chosen = min(
            range(len(self.workers)),
            key=lambda number: (-foreseen[number], len(self.workers[number].open), number),
        )
        self.course.routed.append(
            Routed(
                r=op.r,
                prompt=len(tokens),
                worker=chosen,
                foreseen=foreseen[chosen],
                bounds=every[chosen],
                best=max(allowed.keys for allowed in every),
                settled=settled[chosen],
            )
        )
        return chosen

    def _judge(self, op: Submit, number: int, foreseen: int, allowed: Bounds, index: int) -> None:
        """Hold what the router foresees on a worker against its contract."""
        asked = (
            f"Let a router that was given every event be asked what worker {number} has of"
            f" {op.r}, {count(len(self._texts.tokens(op.prompt)), 'token')}."
        )
        answer = f"however it foresees {count(foreseen, 'token')}: a contradiction."
        foresaw = f"of {named(op.r)} {count(foreseen, 'token')} are foreseen on worker {number}"
        if foreseen > allowed.most:
            self._find(
                PROMISED,
                f"{asked} By the keys that are there it resumes at {allowed.most}; {answer}",
                f"{foresaw}; its keys allow {allowed.most}",
                index,
                op.r,
            )
        elif foreseen < allowed.least:
            self._find(
                MISSED,
                f"{asked} By the keys that are there, each of which was published with the tokens"
                f" that it stands for, it resumes at {allowed.least}; {answer}",
                f"{foresaw}; its keys allow {allowed.least}",
                index,
                op.r,
            )


def _plain(op: Op) -> Op | None:
    """Return an operation without what no event says: multimodal items and kernels of a request;
    None for new weights.
    """
    if isinstance(op, UpdateWeights):
        return None
    if isinstance(op, Submit) and (op.media or op.kernels):
        return replace(op, media=[], kernels="")
    return op
