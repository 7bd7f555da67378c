"""Whether a live engine's events answer what was asked: the operation, its requests, its tokens.

An engine that answers something else is not judged by what it was asked, so a rule could have
nothing to judge because the engine says that nothing is shared, that nobody was asked for, or that
a reset ended its keys.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from cachewitness.core.events import (
    Aborted,
    Accept,
    Event,
    Extended,
    Finished,
    Header,
    Hit,
    Preempted,
    ResetDone,
    StepBegin,
    Submitted,
    Version,
)
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.texts import Texts
from cachewitness.core.trace_format import (
    Abort,
    Extend,
    Finish,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    UpdateWeights,
    length_of,
)
from cachewitness.core.well_formed import WellFormedness

_ANSWERS = frozenset(
    (Aborted, Accept, Extended, Finished, Hit, Preempted, ResetDone, StepBegin, Submitted, Version)
)
"""Events that answer what was asked."""
_ENDS = (Finish, Abort)
_RESETS = (Reset, UpdateWeights)


class OperationCheck:
    """Follows what one engine is asked for and what it answers, operation by operation."""

    def __init__(self, header: Header, sense: WellFormedness) -> None:
        self._header = header
        self._sense = sense
        self._tiers = {pool.tier for pool in header.pools}
        self._texts = Texts()
        self._looked = set[str]()
        self._more: dict[str, deque[Extend]] = {}
        """By session: the input that waits for the end of its answer."""
        self._most: dict[str, int] = {}
        """By session: how many tokens it has when all its answers are over."""

    def check(self, op: Op, events: list[Event]) -> None:
        """Raise MalformedHistory if events, which were followed already, do not answer the
        operation.

        Ends and preemptions that nobody asked for are marked as the engine's own.
        """
        by_type: dict[type, list[Any]] = {}
        for event in events:
            if (kind := type(event)) in _ANSWERS:
                if kind in by_type:
                    by_type[kind].append(event)
                else:
                    by_type[kind] = [event]
        # The order matters: texts learn a submit before the tokens that follow it, and ends are
        # marked last, when it is known what the operation asked for.
        submits = by_type.get(Submitted, [])
        sense = self._sense
        if isinstance(op, Submit):
            check_submit(op, submits)
            self._texts.submit(op, submits[0].tokens)
        elif submits:
            raise MalformedHistory(
                f"request {submits[0].r!r} was not asked for - at `$.r`; a `submit` answers a"
                " submit alone"
            )
        if isinstance(op, Step):
            self._check_step(op, by_type.get(StepBegin, []))
        if isinstance(op, _ENDS) and op.r in sense.tokens and op.r not in sense.ended:
            raise MalformedHistory(f"{op.r!r} does not end; report `finish` or `abort` of it")
        if ResetDone in by_type or Version in by_type or isinstance(op, _RESETS):
            self._check_reset(op, by_type.get(ResetDone, []), by_type.get(Version, []))
        if self._header.rules.caching:
            self._check_looked_up(events, by_type)
        for event in by_type.get(Accept, ()):
            self._texts.accept(event)
        if isinstance(op, Submit) and op.session:
            self._most[op.r] = length_of(op.prompt) + op.generate
        elif isinstance(op, Extend):
            self._most[op.r] = self._most.get(op.r, 0) + length_of(op.prompt) + op.generate
            self._more.setdefault(op.r, deque()).append(op)
        for event in by_type.get(Extended, ()):
            if not (waiting := self._more.get(event.r)):
                raise MalformedHistory(
                    f"{event.r!r} gets more input - at `$.r`; nobody gave it any"
                )
            self._texts.extend(waiting.popleft(), event)
        # Set here and not by the engine: an engine that could say that its aborts were asked for
        # would never be found to give a request up.
        for event in by_type.get(Aborted, ()):
            event.by_engine = event.r not in _let_go(op) and not self._outgrows(op)
        for event in by_type.get(Preempted, ()):
            event.by_engine = not _preempts(op, event.r)
        for event in by_type.get(Finished, ()):
            event.by_engine = event.r not in _let_go(op) and not self._as_long_as_it_may_be(event.r)

    def _outgrows(self, op: Op) -> bool:
        """Whether an operation gives a session more input than the engine takes."""
        return isinstance(op, Extend) and 0 < self._header.rules.max_prompt < self._most[op.r]

    def _as_long_as_it_may_be(self, r: str) -> bool:
        """Whether a request, whose prompt the engine takes, has grown beyond what a prompt may
        have: the engine ends it.
        """
        return self._texts.prompt_tokens(r) <= self._header.rules.max_prompt < self._sense.tokens[r]

    def _check_step(self, op: Step, begun: list[StepBegin]) -> None:
        """Refuse a step that is missing, or says that others were asked for; at scheduler level
        nobody is, by name.
        """
        ended = self._sense.ended
        if not begun:
            there = (
                not ended.issuperset(r for r, _ in op.run)
                if op.run
                else len(ended) < len(self._sense.tokens)
            )
            if there:
                raise MalformedHistory(
                    "no `step_begin`; report every step, also one in which nobody runs"
                )
            return
        asked = (
            begun[0].asked
            if len(begun) == 1
            else [entry for event in begun for entry in event.asked]
        )
        wanted = op.run if self._header.level == "manager" else []
        if asked == wanted:
            return
        asked_by_name = dict(asked)
        by_name = dict(wanted)
        missing = by_name.keys() - asked_by_name.keys() - ended
        if (
            missing
            or len(asked_by_name) < len(asked)
            or not asked_by_name.items() <= by_name.items()
        ):
            raise MalformedHistory(f"asked {asked} - at `$.asked`; the operation asks for {wanted}")

    def _check_reset(self, op: Op, resets: list[ResetDone], versions: list[Version]) -> None:
        """Refuse a reset, or new weights, that nobody asked for, or that is asked for and not
        reported.
        """
        if isinstance(op, UpdateWeights):
            refused = any(not reset.ok for reset in resets)
            if not refused and not any(
                (event.weights, event.adapter) == (op.version, op.adapter) for event in versions
            ):
                raise MalformedHistory(
                    f"no `version` with weights {op.version} and adapter {op.adapter!r}; report it"
                    " when they are loaded"
                )
        elif versions:
            raise MalformedHistory(
                "`version`, which nobody asked for; weights are new when the trace says so"
            )
        elif isinstance(op, Reset):
            if (op.tier or "local") in self._tiers and not resets:
                raise MalformedHistory(
                    "no `reset`; report what was answered for each tier, `ok` or not"
                )
        elif resets:
            raise MalformedHistory(
                "`reset`, which nobody asked for; keys that end by themselves are evicted"
            )

    def _check_looked_up(self, events: list[Event], by_type: dict[type, list[Any]]) -> None:
        """Refuse a run of a request that was not looked up since it came, or lost its place;
        `hit` may come after the run.
        """
        looked = self._looked
        if Hit not in by_type and Preempted not in by_type:
            if StepBegin not in by_type:
                return
            new = [
                run.r for event in by_type[StepBegin] for run in event.runs if run.r not in looked
            ]
        else:
            hits = {event.r for event in by_type.get(Hit, ())}
            found = set[str]()
            for event in events:
                if isinstance(event, Hit):
                    looked.add(event.r)
                elif isinstance(event, Preempted):
                    looked.discard(event.r)
                elif isinstance(event, StepBegin):
                    found |= {run.r for run in event.runs} - looked - hits
            new = [*found]
        if new:
            raise MalformedHistory(
                f"{min(new)!r} runs and was not looked up; report `hit`, also when nothing was hit"
            )


def _let_go(op: Op) -> list[str]:
    """Return the requests whose clients go away with an operation."""
    if isinstance(op, Step):
        return op.cancel
    return [op.r] if isinstance(op, Finish | Abort) else []


def _preempts(op: Op, r: str) -> bool:
    """Whether an operation asks for a request to lose its pages."""
    if isinstance(op, Step):
        return r in op.withdraw
    return op.r == r if isinstance(op, Preempt) else isinstance(op, Reset | UpdateWeights)


def check_submit(op: Submit, submits: list[Submitted]) -> None:
    """Raise MalformedHistory unless exactly the request that was asked for was submitted."""
    if [event.r for event in submits] != [op.r]:
        raise MalformedHistory(
            f"`submit` of {[event.r for event in submits]}; report {op.r!r}, once"
        )
    (event,) = submits
    for field in ("salt", "adapter", "media", "kernels", "session", "prompt_logprobs"):
        if getattr(event, field) != getattr(op, field):
            raise MalformedHistory(
                f"{field} {getattr(event, field)!r} of {op.r!r} - at `$.{field}`; the operation"
                f" says {getattr(op, field)!r}"
            )
    if len(event.tokens) != length_of(op.prompt):
        raise MalformedHistory(
            f"{len(event.tokens)} tokens of {op.r!r} - at `$.tokens`; the prompt has"
            f" {length_of(op.prompt)}"
        )
