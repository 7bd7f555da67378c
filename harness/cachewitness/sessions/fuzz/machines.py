"""Hypothesis state machines: traces for an engine, drawn operation by operation.

For authors of an allocator who have registered an engine, in a test of their own (extra
`machines`)::

    import cachewitness

    TestMyCache = cachewitness.machines.manager_machine("mine", layouts=["full"]).TestCase

A machine draws a configuration first (cache groups, options, a pool that is too small), then
operations in any order that its rules allow: at manager level a step names which request computes
how many tokens, at scheduler level it gives a budget. Engine, worker and ledger live beside it,
and every checker judges every operation as it happens: the machine stops at the first
contradiction.

A run in which too little happened fails as well: nothing was hit, nothing was evicted, or the
engine refused most of the configurations that were drawn. Then `layouts` and `options` name those
that it takes.

A failure leaves a shrunk trace; its message names the file and the command that replays it. The
trace alone reproduces the failure, without a database of examples.
"""

from __future__ import annotations

import re
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cachewitness._util.errors import UsageError
from cachewitness.core import trace_format as traces
from cachewitness.core.checkers.anomalies import gravest_first
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import LiveRequests, Observer, applied
from cachewitness.core.intake import BadEvents
from cachewitness.core.result import Activity
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Layout,
    Level,
    Media,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
    length_of,
)
from cachewitness.core.worker import Worker
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.counterexample import witness
from cachewitness.sessions.fuzz.campaign import RAN_LEAST, levels_of
from cachewitness.sessions.fuzz.draw import Restriction, draw
from cachewitness.sessions.fuzz.drawn import Drawn
from cachewitness.sessions.run.judging import found_again
from cachewitness.sessions.run.store import DEFAULT_FOLDER, replay_command
from cachewitness.workloads import layouts as known_layouts
from cachewitness.workloads.prompts import cut
from cachewitness.workloads.scenarios.shape import Shape, image
from cachewitness.workloads.shrink import shrink

SETTINGS = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)
"""The same examples each time, some seconds of them. A failure is shrunk as a trace, which is many
times faster than shrinking examples, and told by it alone."""

UNITS_MAX = 6
"""The longest prompt, in scheduler blocks."""
_FIFTHS_OF_POOL: dict[Level, tuple[int, ...]] = {
    "manager": (5, 3, 4, 6, 8, 12),
    "scheduler": (5, 6, 8, 12),
}
"""The pool, in fifths of what the longest request takes: one that does not fit alone would stop a
queue in order of arrival."""
_ROOM: dict[Level, int] = {"manager": 1, "scheduler": 4}
"""Scheduler blocks beyond the longest prompt, for what is generated."""
_STEPS_OF_A_PROMPT = 3
_ROUNDS = (1, 4, 16)
"""How many times the examples are run until something was hit and something evicted: few examples
may miss both by chance, as Hypothesis draws constants of whatever modules are imported."""

Measured = tuple[int, int, int]
"""A length before the layout is known: which measure of it, how often, and how far off that
boundary."""
Picture = tuple[int, int, str]
"""An image before the prompt is known: where, how long, and of what."""

LENGTHS: st.SearchStrategy[Measured] = st.tuples(
    st.integers(0, 5), st.integers(1, UNITS_MAX), st.sampled_from((0, -1, 1))
)
_SALTS = st.sampled_from(("", "", "", "", "one", "two"))
_ADAPTERS = st.sampled_from(("", "", "", "", "tuned", "other"))
_PICTURES = st.one_of(
    st.none(),
    st.none(),
    st.tuples(st.integers(0, 40), st.integers(1, 20), st.sampled_from(("cat", "dog"))),
)
_STREAMS = st.sampled_from(("", "", "told", "untold"))
"""What a request generates: a text of its own, or one that others generate too. How many drafts
stand depends on it as well."""


class Contradiction(AssertionError):
    """What a machine found, told as a witness; each anomaly is a subclass, so that one is not
    shrunk into another.
    """


@cache
def contradiction(anomaly: str) -> type[Contradiction]:
    """Return the exception of an anomaly."""
    return type(
        f"Contradiction[{anomaly}]", (Contradiction,), {"__doc__": f"The anomaly {anomaly}."}
    )


@dataclass
class Tried:
    """How many configurations were drawn, how many of them the engine refused, and why it refused
    the last one.
    """

    drawn: int = 0
    refused: int = 0
    refusal: str = ""

    @property
    def mostly_refused(self) -> bool:
        """Whether so few ran that the engine was not tested."""
        return self.drawn - self.refused < RAN_LEAST * self.drawn


class Machine(RuleBasedStateMachine):
    """What both machines share: configurations, requests and how they end, resets, weights, and
    that nothing contradicts.
    """

    engine: ClassVar[EngineSpec]
    policy: ClassVar[str]
    level: ClassVar[Level]
    folder: ClassVar[Path]
    chosen: ClassVar[Restriction]
    """What is not drawn: layouts and options that the user named."""
    tried: ClassVar[Tried]
    evicts: ClassVar[bool]
    """Whether keys must have been taken away for want of room."""
    happened: ClassVar[Activity]
    """What happened in all examples that ran to their end."""
    smallest: ClassVar[dict[str, Trace]]
    """The shrunk trace of each anomaly that was found."""

    live = Bundle("live")
    sent = Bundle("said")
    """Requests that may still do something, and all that there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self._ops: list[Op] = []
        self._prompts: dict[str, tuple[str, str]] = {}
        """What each request said and the text that it generates."""
        self._versions = 0
        self._judged = False

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Draw a configuration that the engine accepts, and build it."""
        source = Drawn(data.draw)
        self.tried.drawn += 1
        try:
            configuration = draw(source, self.policy, self.level, self.chosen)
            self.shape = configuration.shape(self.level)
            longest = (UNITS_MAX + _ROOM[self.level]) * self.shape.unit
            pages = max(
                self.shape.pages(longest) * source.choice(_FIFTHS_OF_POOL[self.level]) // 5 + 1, 4
            )
            self._header = self._named(self.shape, pages)
            self._engine = self.engine.open(self._header)
        except UsageError as refusal:
            self.tried.refused += 1
            self.tried.refusal = str(refusal)
            reject()
        described = self._engine.describe()
        self.capabilities = frozenset(described.capabilities)
        self._worker = Worker(described)
        self._observer = Observer(described, keep=False)
        self._applicable = LiveRequests()

    def _named(self, shape: Shape, pages: int) -> TraceHeader:
        return TraceHeader(
            name=f"machine-{self.policy}-{self.level}",
            layout=shape.layout,
            pages=pages,
            level=self.level,
            policy=self.policy,
            options=dict(shape.options),
            story="an example of a state machine",
            source="harness/cachewitness/sessions/fuzz/machines.py",
        )

    # --- requests ---------------------------------------------------------------------------------

    @rule(
        targets=(live, sent),
        whole=LENGTHS,
        shared=LENGTHS,
        text=st.sampled_from("AB"),
        salt=_SALTS,
        adapter=_ADAPTERS,
    )
    def submit(self, whole: Measured, shared: Measured, text: str, salt: str, adapter: str) -> str:
        """Submit a new prompt, of which others may share the beginning."""
        tokens = self._tokens(whole)
        common = min(self._tokens(shared), tokens)
        return self._submit(
            [f"{text}:{common}", f"{self._next}:{tokens - common}"], salt=salt, adapter=adapter
        )

    @rule(targets=(live, sent), before=sent, salt=_SALTS, stream=_STREAMS, picture=_PICTURES)
    def submit_again(self, before: str, salt: str, stream: str, picture: Picture | None) -> str:
        """Submit what was said before, now and then with an image in it."""
        prompt = self._prompts[before][0]
        media = _placed(picture, length_of(prompt)) if picture else []
        return self._submit([prompt], salt=salt, stream=stream, media=media)

    @rule(target=sent, before=sent)
    def serve(self, before: str) -> str:
        """Submit what was said before, let it be computed, and end it."""
        r = self._submit([self._prompts[before][0]])
        self._prefill(r)
        self._do(Finish(r))
        return r

    @rule(
        targets=(live, sent),
        before=sent,
        length=LENGTHS,
        generated=st.integers(0, 17),
        more=LENGTHS,
        stream=_STREAMS,
    )
    def fork(
        self, before: str, length: Measured, generated: int, more: Measured, stream: str
    ) -> str:
        """Go on, in other words than it did, after a part of a request, or after all of it and
        some of what it generated.
        """
        prompt, text = self._prompts[before]
        kept = cut(prompt, self._tokens(length))
        room = UNITS_MAX * self.shape.unit - length_of(kept)
        generated = min(generated, room) if kept == prompt else 0
        more_tokens = min(self._tokens(more), room - generated)
        return self._submit(
            [kept, f"{text}:{generated}", f"{self._next}:{more_tokens}"], stream=stream
        )

    @rule(r=consumes(live), early=st.booleans())
    def end(self, r: str, early: bool) -> None:
        """End a request as intended, so that its pages are free and may be hit, or early."""
        self._do(Abort(r) if early else Finish(r))

    @precondition(lambda self: "preempt" in self.capabilities)
    @rule(r=live)
    def preempt(self, r: str) -> None:
        """Take a request's pages away."""
        self._do(Preempt(r))

    @precondition(lambda self: self.capabilities & {"reset", "update_weights"})
    @rule(running=st.booleans(), tier=st.sampled_from(("local", "cpu", "")), weights=st.booleans())
    def forget(self, running: bool, tier: Any, weights: bool) -> None:
        """Forget what is cached, in one tier or in all, with or without those who run; or load
        new weights.
        """
        if "reset" in self.capabilities and not (weights and "update_weights" in self.capabilities):
            self._do(Reset(running=running, tier=tier if self.shape.tier_pages else ""))
        else:
            self._load("")

    @precondition(lambda self: {"update_weights", "adapter"} <= self.capabilities)
    @rule(adapter=st.sampled_from(("tuned", "other")))
    def reload(self, adapter: str) -> None:
        """Reload an adapter under its name, also while requests run with it."""
        self._load(adapter)

    def _load(self, adapter: str) -> None:
        self._versions += 1
        self._do(UpdateWeights(self._versions, adapter))

    def _prefill(self, r: str) -> None:
        """Let a prompt be computed, in several steps: an engine may stop at boundaries in
        between.
        """
        raise NotImplementedError

    @property
    def _next(self) -> str:
        return f"r{len(self._prompts) + 1}"

    def _submit(self, terms: Sequence[str], *, stream: str = "", **identity: Any) -> str:
        r = self._next
        prompt = " ".join(
            term for part in terms for term in part.split() if int(term.rpartition(":")[2]) > 0
        )
        self._prompts[r] = prompt, stream or f"@{r}"
        known = {name: value for name, value in identity.items() if name in self.capabilities}
        self._do(Submit(r=r, prompt=prompt, stream=stream, **known))
        return r

    def _tokens(self, length: Measured) -> int:
        """Return a length in tokens: at most the longest prompt, at least one token."""
        which, times, off = length
        shape = self.shape
        measures = [shape.unit, *(group.block_size for group in shape.layout.groups)]
        measures += [measure for measure in (shape.window, shape.interval) if measure]
        return max(1, min(times * measures[which % len(measures)] + off, UNITS_MAX * shape.unit))

    @classmethod
    def nothing_judged(cls) -> str:
        """Return why a pass would mean nothing; empty if it means something."""
        tried = cls.tried
        happened = cls.happened
        if tried.mostly_refused:
            return (
                f"the engine refused {tried.refused:,} of {tried.drawn:,} drawn configurations, the"
                f" last one because {tried.refusal}; name those that it takes with layouts= and"
                " options="
            )
        missing = [
            what
            for what, count in (
                ("no request hit anything", happened.hits),
                ("nothing was evicted", happened.evictions or not cls.evicts),
            )
            if not count
        ]
        if not missing:
            return ""
        return (
            f"{' and '.join(missing)} in {tried.drawn:,} drawn configurations, of which"
            f" {tried.refused:,} were refused, with {happened.operations:,} operations,"
            f" {happened.hits:,} hits and {happened.evictions:,} evictions"
        )

    # --- judging ----------------------------------------------------------------------------------

    def _do(self, op: Op) -> None:
        """Carry one operation out, and show the checkers what it made happen."""
        wanted = self._applicable.filter(op)
        self._ops.append(op)
        index = len(self._ops) - 1
        try:
            events = applied(self._engine, wanted, index, self._observer) if wanted else None
        except BadEvents:
            self._judged = True  # nothing that comes behind can be judged
            raise
        if events is not None:
            self._observer.see(self._worker.extend(events), index)

    @invariant()
    def nothing_contradicts(self) -> None:
        """No checker found anything so far, and none of them crashed."""
        self._judge(self._observer.findings)

    def teardown(self) -> None:
        """Judge what can only be judged at the end."""
        if self._ops and not self._judged:
            self._engine.close()
            result = self._observer.close(self._trace())
            self._judge(result.findings)
            self.happened.add(result.activity)

    def _judge(self, findings: Sequence[Finding]) -> None:
        crashed = [tally for tally in self._observer.checkers.tallies.values() if tally.unjudged]
        self._judged = bool(findings or crashed)
        if findings:
            gravest = gravest_first(findings)[0]
            raise contradiction(gravest.anomaly)("\n".join(self._witness(gravest)))
        if crashed:
            raise AssertionError(
                f"checker {crashed[0].checker} {crashed[0].unjudged};"
                f" {self._write_trace(self._trace())}"
            )

    def _witness(self, finding: Finding) -> list[str]:
        """Shrink the trace, unless the anomaly was found before, and return the witness of what
        is left.
        """
        whole = self._trace()
        anomaly = finding.anomaly
        if anomaly not in self.smallest:
            self.smallest[anomaly] = shrink(whole, partial(self._fails_at, anomaly))
        trace = self.smallest[anomaly]
        command = replay_command(self._write_trace(trace), self.engine)
        return witness(
            self._rerun(anomaly, trace) or finding, trace, whole=len(whole.ops), replay=command
        )

    def _rerun(self, anomaly: str, trace: Trace) -> Finding | None:
        return found_again(trace, self.engine, lambda finding: finding.anomaly == anomaly)

    def _fails_at(self, anomaly: str, trace: Trace) -> int:
        try:
            found = self._rerun(anomaly, trace)
        except UsageError:
            return -1
        return found.op if found else -1

    def _trace(self) -> Trace:
        withdraws = any(isinstance(op, Step) and op.withdraw for op in self._ops)
        return Trace(
            msgspec.structs.replace(self._header, needs=["withdraw"] if withdraws else []),
            list(self._ops),
        )

    def _write_trace(self, trace: Trace) -> Path:
        """Write a trace into the folder and return where."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(
            r"[^A-Za-z0-9._=-]+", "_", f"machine-{self.engine.text}-{self.policy}-{self.level}"
        )
        path = self.folder / f"{name}.trace.jsonl"
        traces.save(trace, path)
        return path


class ManagerMachine(Machine):
    """A cache manager alone: the machine says who computes how many tokens.

    Look-up, allocation, publication and growth of a table all happen in a step: who waits is looked
    up, who runs grows.
    """

    level = "manager"
    live = Machine.live

    @rule(r=live, length=LENGTHS)
    def compute(self, r: str, length: Measured) -> None:
        """Let one request compute a chunk."""
        self._do(Step(run=[(r, self._tokens(length))]))

    @rule(r=live)
    def compute_all(self, r: str) -> None:
        """Let one request compute its prompt."""
        self._prefill(r)

    def _prefill(self, r: str) -> None:
        for _ in range(_STEPS_OF_A_PROMPT):
            self._do(Step(run=[(r, length_of(self._prompts[r][0]))]))

    @rule(run=st.lists(st.tuples(live, LENGTHS), min_size=2, max_size=4))
    def compute_together(self, run: list[tuple[str, Measured]]) -> None:
        """Let several requests compute a chunk each, in one step."""
        self._do(Step(run=self._chunks(run)))

    @precondition(lambda self: "withdraw" in self.capabilities)
    @rule(run=st.lists(st.tuples(live, LENGTHS), min_size=1, max_size=3))
    def withdraw(self, run: list[tuple[str, Measured]]) -> None:
        """Schedule several requests, and take the last of them back before anything runs."""
        chunks = self._chunks(run)
        self._do(Step(run=chunks, withdraw=[chunks[-1][0]]))

    @rule(run=st.lists(live, min_size=1, max_size=3), steps=st.integers(1, 9))
    def generate(self, run: list[str], steps: int) -> None:
        """Let requests generate, a token each in a step."""
        for _ in range(steps):
            self._do(Step(run=[(r, 1) for r in dict.fromkeys(run)]))

    def _chunks(self, run: list[tuple[str, Measured]]) -> list[tuple[str, int]]:
        return [(r, self._tokens(length)) for r, length in dict(run).items()]


class SchedulerMachine(Machine):
    """A scheduler over its cache manager: the machine gives a budget, and who runs is the
    engine's to say.
    """

    level = "scheduler"
    live = Machine.live

    @rule(budget=LENGTHS)
    def step(self, budget: Measured) -> None:
        """Run one step within a budget."""
        self._do(Step(budget=self._tokens(budget)))

    @precondition(lambda self: self.shape.tier_delay)
    @rule(budget=LENGTHS, fail=st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True))
    def step_and_fail(self, budget: Measured, fail: list[int]) -> None:
        """Run one step, with which some of the copies from and to another tier fail."""
        self._do(Step(budget=self._tokens(budget), fail=sorted(fail)))

    @rule(steps=st.integers(1, 6))
    def run_on(self, steps: int) -> None:
        """Run some steps within the engine's own budget."""
        for _ in range(steps):
            self._do(Step())

    def _prefill(self, r: str) -> None:
        self.run_on(_STEPS_OF_A_PROMPT)

    @precondition(lambda self: "withdraw" in self.capabilities)
    @rule(budget=LENGTHS, r=live)
    def withdraw(self, budget: Measured, r: str) -> None:
        """Take a request back out of a step, as a scheduler does for one of higher priority,
        before anything runs.
        """
        self._do(Step(budget=self._tokens(budget), withdraw=[r]))


def _placed(picture: Picture, tokens: int) -> list[Media]:
    at, length, name = picture
    at = min(at, tokens - 1)
    length = min(length, tokens - at)
    return image(at, length, f"{name}-{length}")


M = TypeVar("M", bound=Machine)


def manager_machine(
    engine: str | EngineKind | EngineSpec = "reference",
    policy: str = "vllm",
    folder: Path = DEFAULT_FOLDER,
    *,
    layouts: Sequence[Layout | str] = (),
    options: Mapping[str, Any] | None = None,
    evicts: bool = True,
) -> type[ManagerMachine]:
    """Return the machine that works on an engine's cache manager under a policy; failing traces are
    written into `folder`.

    `layouts`, by name or themselves, and `options` are what the engine takes; they are drawn
    otherwise. With layouts, options are not drawn at all. `evicts`: whether the engine takes keys
    away for want of room, which must then have happened. The machine's `TestCase` is a test, and
    `run` runs it. Raises UsageError if there is no such engine, policy or layout, or if the engine
    does not run at this level.
    """
    return _machine(ManagerMachine, engine, policy, folder, _restriction(layouts, options), evicts)


def scheduler_machine(
    engine: str | EngineKind | EngineSpec = "reference",
    policy: str = "vllm",
    folder: Path = DEFAULT_FOLDER,
    *,
    layouts: Sequence[Layout | str] = (),
    options: Mapping[str, Any] | None = None,
    evicts: bool = True,
) -> type[SchedulerMachine]:
    """Return the machine that works on an engine's scheduler; see `manager_machine`."""
    return _machine(
        SchedulerMachine, engine, policy, folder, _restriction(layouts, options), evicts
    )


def run(machine: type[Machine], examples: settings = SETTINGS) -> None:
    """Run a machine as a test, in more examples if too little happened in the first.

    Raises what it finds; AssertionError if too little happened in all of them.
    """
    for times in _ROUNDS:
        more = settings(examples, max_examples=times * examples.max_examples)
        try:
            run_state_machine_as_test(machine, settings=more)
        except Unsatisfiable:
            if not machine.tried.mostly_refused:
                raise
        if not machine.nothing_judged() or machine.tried.mostly_refused:
            break
    if why := machine.nothing_judged():
        raise AssertionError(f"a pass of this machine would show nothing: {why}")


def _restriction(layouts: Sequence[Layout | str], options: Mapping[str, Any] | None) -> Restriction:
    known = [
        known_layouts.load(layout) if isinstance(layout, str) else layout for layout in layouts
    ]
    return Restriction(known, options or {}, whole=bool(known))


def _machine(
    kind: type[M],
    engine: str | EngineKind | EngineSpec,
    policy: str,
    folder: Path,
    chosen: Restriction,
    evicts: bool,
) -> type[M]:
    spec = _spec(engine)
    if not spec.kind.follows(policy) or kind.level not in levels_of(spec, policy):
        raise UsageError(
            f"--engine: {spec.text} does not follow policy {policy!r} at {kind.level} level"
        )
    own = {
        "engine": spec,
        "policy": policy,
        "folder": folder,
        "evicts": evicts,
        "chosen": replace(chosen, historic=not spec.kind.replays, accepts=spec.kind.accepts),
        "tried": Tried(),
        "happened": Activity(),
        "smallest": {},
    }
    machine = type(kind.__name__, (kind,), own)
    # In the place of Hypothesis's own, which passes whatever happened.
    type.__setattr__(machine, "TestCase", _test_case(machine))
    return machine


def _spec(engine: str | EngineKind | EngineSpec) -> EngineSpec:
    if isinstance(engine, str):
        return parse(engine)
    return EngineSpec(engine, {}, engine.name) if isinstance(engine, EngineKind) else engine


def _test_case(machine: type[Machine]) -> type[unittest.TestCase]:
    class MachineTest(unittest.TestCase):
        settings = SETTINGS

        def runTest(self) -> None:
            run(machine, self.settings)

    return MachineTest
