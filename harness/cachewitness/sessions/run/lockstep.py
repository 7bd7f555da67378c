"""The differential: the reference runs beside the engine, and what must be equal is compared after
every operation.

Engines are free in some choices, so the reference follows them instead of making its own
(`cachewitness.sessions.run.follower`):

* `block-ids`: any free page may be handed out; ids are never compared, only which columns of a
  table are null;
* `victims`: whichever cached page the engine evicts where one has to go, the reference evicts too;
* `duplicates`: of several pages with the same content, either may be hit, and where only one of
  them has a key, either may.

Everything else must be equal: hit lengths, which request runs which tokens, who is preempted and
ends, how many pages are taken, zeroed and copied, which prefixes are published and unpublished, and
the counts of free, held and cached pages. The first difference is the finding; after it the two can
no longer be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import EARLY_COPY, Finding, Tally
from cachewitness.core.checkers.wording import with_detail
from cachewitness.core.driving import Stopped, described, drive
from cachewitness.core.engine import Engine
from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Counts,
    Event,
    Finished,
    Header,
    Hit,
    Preempted,
    ResetDone,
    StepBegin,
)
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Op, Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.cache_state import ABSENT
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers.prefixes import Keys, Prefixes
from cachewitness.sessions.run.follower import Follower

NAME = "differential"
SUMMARY = (
    "in lock-step with the reference: hits, chunks, published keys and counts are equal, free"
    " choices followed"
)
ANOMALIES = ("divergence",)
TOLERANCES = {
    "block-ids": "any free page may be handed out",
    "victims": "whichever cached page the engine evicts where one has to go, the reference evicts",
    "duplicates": "of several pages with the same content, either may be hit or keep the key",
}


def followed() -> list[str]:
    """Return the policies whose reference can be made to follow an engine."""
    return [kind.name for kind in policies.loadable() if kind.steer is not None]


def incomparable(spec: EngineSpec, policy: str) -> str:
    """Return why the reference of a policy cannot run beside an engine; empty if it can."""
    if policies.get(policy).steer is None:
        return (
            f"the reference of {policy} cannot follow an engine's free choices; those of"
            f" {', '.join(followed())} can"
        )
    if spec.comparable:
        return ""
    if spec.kind.is_reference:
        return (
            f"{spec.kind.name} is what it compares with; plant a fault"
            f" ({spec.kind.name}:mutant=NAME) or name another engine"
        )
    return (
        f"engine {spec.kind.name} says that it does not follow the policy of a reference"
        " (replays=False)"
    )


def refused(trace: Trace, engine: Header) -> str:
    """Return why the reference of an engine's release cannot run a trace; empty if it can.
    `engine` is its header.
    """
    try:
        Follower(trace, engine)
    except UsageError as error:
        return f"the reference refuses the configuration: {error}"
    return ""


def lockstep(
    trace: Trace,
    engine: Engine,
    *,
    until: Callable[[Finding], bool] | None = None,
    keep: bool = True,
    **driven: Any,
) -> Result:
    """Run a trace on an engine and, beside it, on the reference of the same release; judge both
    ways.

    `until`, `keep` and whatever else is given are as in `cachewitness.core.driving.drive`. Raises
    UsageError if the reference cannot follow, or refuses the trace's configuration in the engine's
    release.
    """
    header = described(engine, trace.header)
    reference = Follower(trace, header)
    tally = Tally(checker=NAME)
    facts = _Facts(header)

    def compare(_: int, op: Op, theirs: list[Event]) -> Finding | None:
        if tally.findings:
            return None
        tally.opportunities += 1
        difference = facts.difference(theirs, reference.follow(op, theirs))
        if not difference:
            return None
        tally.findings = 1
        cause, line, sentence = difference
        return Finding(
            anomaly="divergence", checker=NAME, cause=cause, line=line, sentence=sentence
        )

    try:
        result = drive(trace, engine, until=until, beside=compare, keep=keep, **driven)
    except Stopped as stopped:
        stopped.result.tallies.append(tally)
        raise
    result.tallies.append(tally)
    early = {finding.op for finding in result.findings if finding.cause == EARLY_COPY}
    for finding in result.findings:
        if finding.checker == NAME and finding.op in early:
            finding.cause = EARLY_COPY  # the reference lets whoever would copy so wait a step
    return result


Facts = list[tuple[str, list[Any]]]
"""What must be equal of the events of one operation, in the order in which differences are
reported."""


class _Facts:
    """Compares what two engines did, operation by operation. `header` is that of either; both
    have the same pools.
    """

    def __init__(self, header: Header) -> None:
        self._null = _null(header)
        self._prefixes = Prefixes()
        self._theirs = _Books(self._prefixes)
        self._ours = _Books(self._prefixes)

    def difference(
        self, theirs: Sequence[Event], ours: Sequence[Event]
    ) -> tuple[str, str, str] | None:
        """Return the name of the fact that differs first, a line and a sentence; None if nothing
        does.
        """
        self._prefixes.learn(theirs)
        engine = _facts(theirs, self._null, self._theirs)
        reference = _facts(ours, self._null, self._ours)
        for (what, a), (_, b) in zip(engine, reference, strict=True):
            if a != b:
                fact = what.partition(" (")[0]
                mine = _surplus(a, b)
                its = _surplus(b, a)
                line = with_detail(
                    f"engine and reference differ in the {fact} of this operation",
                    f"{mine} and {its}",
                )
                return fact.replace(" ", "-"), line, _sentence(what, mine, its)
        return None


class _Books:
    """The keys of one engine, and what it last counted in each pool."""

    def __init__(self, prefixes: Prefixes) -> None:
        self.keys = Keys(prefixes)
        self._counted: dict[int, tuple[int, int, int, int]] = {}

    def after(self, events: Sequence[Event]) -> list[tuple[int, int, int, int]]:
        """Return (pool, free, held, cached) of every pool after an operation, as last counted."""
        self._counted |= {
            e.pool: (e.pool, e.free, e.held, e.cached) for e in events if isinstance(e, Counts)
        }
        return sorted(self._counted.values())


def _null(header: Header) -> list[set[int]]:
    """Return by group the pages that stand for none."""
    pools = {pool.id: {ABSENT, *pool.null} for pool in header.pools}
    return [pools[group.pool] for group in header.groups]


def _facts(events: Sequence[Event], null: Sequence[set[int]], books: _Books) -> Facts:
    began, ended_keys = books.keys.changes(events)
    hits = [(e.r, e.tier, e.reported, e.resume) for e in events if isinstance(e, Hit)]
    resets = [(e.tier, e.ok) for e in events if isinstance(e, ResetDone)]
    ended = sorted(
        (type(e).__name__.lower(), e.r)
        for e in events
        if isinstance(e, Preempted | Aborted | Finished)
    )
    steps = [event for event in events if isinstance(event, StepBegin)]
    runs = [run for step in steps for run in step.runs]
    taken: Counter[tuple[int, str]] = Counter()
    for event in events:
        if isinstance(event, Acquire):
            taken[event.group, event.holder.partition(":")[0]] += len(event.pages)
    # Causes come before effects, since the first difference names the finding: another hit makes
    # other runs, and those other tables, keys and counts.
    return [
        ("resets (tier, done)", resets),
        ("hits (request, tier, reported, resume)", hits),
        ("requests that lost their place or ended", ended),
        (
            "runs (request, start, stop, drafts)",
            [(run.r, run.start, run.stop, len(run.drafts)) for run in runs],
        ),
        (
            "columns that are not null",
            [(run.r, _filled(run.tables, null), _filled(run.scratch, null)) for run in runs],
        ),
        ("pages (zeroed, copied, stored) around the step", [_moved(step) for step in steps]),
        (
            "transfers (begun, ended, failed) of the step",
            [(len(s.begun), len(s.ended), len(s.failed)) for s in steps],
        ),
        (
            "tokens accepted (request, up to)",
            [(e.r, e.upto) for e in events if isinstance(e, Accept)],
        ),
        ("published keys (group, request, length)", began),
        ("unpublished keys (group, request, length)", ended_keys),
        (
            "pages taken (group, holder, how many)",
            sorted((*who, pages) for who, pages in taken.items()),
        ),
        ("pages (pool, free, held, cached)", books.after(events)),
    ]


def _filled(tables: list[list[int]], null: Sequence[set[int]]) -> list[list[bool]]:
    return [
        [page not in nobodys for page in table]
        for table, nobodys in zip(tables, null, strict=False)
    ]


def _moved(step: StepBegin) -> tuple[int, int, int]:
    return sum(len(pages) for _, pages in step.zeros), len(step.copies), len(step.stores)


def _surplus(mine: list[Any], other: list[Any]) -> str:
    """Return what one side has beyond the other, as often as it has it; all of it if they differ
    in order alone.
    """
    beyond = [
        item for index, item in enumerate(mine) if mine[: index + 1].count(item) > other.count(item)
    ]
    if not beyond and len(mine) < len(other):
        return "nothing more" if mine else "nothing"
    return msgspec.json.encode(beyond or mine).decode()


def _sentence(what: str, engine: str, reference: str) -> str:
    followed = ", ".join(TOLERANCES)
    return (
        "Let the engine and the reference carry out the same operation, the engine's free choices"
        f" ({followed}) followed. Of {what}, the engine says {engine}; however the reference says"
        f" {reference}: a contradiction."
    )
