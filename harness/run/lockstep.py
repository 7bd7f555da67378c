"""The differential: the reference runs beside the engine, and what must be equal is compared after every operation.

Engines are free in some choices, so the reference follows them instead of making its own:

* `block-ids`: any free block may be handed out; ids are never compared, only which columns of a table are null;
* `victims`: whichever cached block the engine evicts to make room, the reference evicts too;
* `duplicates`: of several blocks with the same key, either may be hit.

Everything else must be equal: hit lengths, which request runs which tokens, how many pages are zeroed and copied for it, which
prefixes are published and unpublished, and the counts of free, held and cached blocks. The first difference is the finding;
after it the two can no longer be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from harness._util.errors import UsageError
from harness.checkers.finding import Finding, Tally
from harness.engines import policy as policies
from harness.engines.policy import Follower
from harness.engines.protocol import Engine
from harness.history.events import Counts, Event, Hit, Publish, ResetDone, StepBegin, Unpublish
from harness.run.execute import drive
from harness.trace.format import Op, Trace
from harness.verdict.result import Result

NAME = "differential"
SUMMARY = "in lock-step with the reference: hits, chunks, published keys and counts are equal, free choices followed"
ANOMALIES = ("divergence",)
TOLERANCES = {
    "block-ids": "any free block may be handed out",
    "victims": "whichever cached block the engine evicts, the reference evicts",
    "duplicates": "of several blocks with the same key, either may be hit",
}


def followed() -> list[str]:
    """Return the policies whose reference can be made to follow an engine."""
    return [kind.name for kind in policies.loadable() if kind.follower is not None]


def lockstep(trace: Trace, engine: Engine, *, until: Callable[[Finding], bool] | None = None, keep: bool = True) -> Result:
    """Run a trace on an engine and, beside it, on the reference of the same release; judge both ways.

    `until` and `keep` are as in `harness.run.execute.drive`.
    """
    follower = policies.get(trace.header.policy).follower
    if follower is None:
        raise UsageError(f"--differential: the reference of {trace.header.policy} cannot follow an engine's free choices")
    reference = follower(trace, engine.describe().engine_version)
    tally = Tally(checker=NAME)

    def compare(_: int, op: Op, events: list[Event]) -> Finding | None:
        if tally.findings:
            return None
        tally.opportunities += 1
        difference = _difference(reference, op, events)
        if not difference:
            return None
        tally.findings = 1
        cause, sentence = difference
        return Finding(anomaly="divergence", checker=NAME, cause=cause, sentence=sentence)

    result = drive(trace, engine, until=until, beside=compare, keep=keep)
    result.tallies.append(tally)
    return result


def _difference(reference: Follower, op: Op, theirs: list[Event]) -> tuple[str, str] | None:
    """Let the reference follow one operation; return the fact that differs first, and a sentence. None if nothing does."""
    try:
        ours = reference.follow(op, theirs)
    except (AssertionError, ValueError) as error:
        return "operation", _sentence("carry the operation out", "did", f"could not follow ({error})")
    for (what, a), (_, b) in zip(_facts(theirs), _facts(ours), strict=True):
        if a != b:
            return what.partition(" (")[0].replace(" ", "-"), _sentence(what, _told(a, b), _told(b, a))
    return None


def _facts(events: list[Event]) -> list[tuple[str, Any]]:
    """Return what must be equal of the events of one operation, in the order in which differences are reported."""
    hits = [(e.r, e.reported, e.resume) for e in events if isinstance(e, Hit)]
    resets = [e.ok for e in events if isinstance(e, ResetDone)]
    runs, tables, prepared = [], [], []
    for event in events:
        if isinstance(event, StepBegin):
            runs += [(run.r, run.start, run.stop) for run in event.runs]
            prepared.append((sum(len(pages) for _, pages in event.zeros), len(event.copies)))
            tables += [(run.r, [[page != 0 for page in table] for table in run.tables]) for run in event.runs]
    published = sorted((e.group, e.r, e.length) for e in events if isinstance(e, Publish))
    unpublished = sorted((e.group, e.length) for e in events if isinstance(e, Unpublish))
    counts = [(e.free, e.held, e.cached) for e in events if isinstance(e, Counts)][-1:]
    return [
        ("resets", resets),
        ("hits (request, reported, resume)", hits),
        ("runs (request, start, stop)", runs),
        ("columns that are not null", tables),
        ("pages (zeroed, copied) before the step", prepared),
        ("published keys (group, request, length)", published),
        ("unpublished keys (group, length)", unpublished),
        ("blocks (free, held, cached)", counts),
    ]


def _told(mine: list[Any], other: list[Any]) -> str:
    """Return what one side has beyond the other; if that is nothing, all of it."""
    extra = [item for item in mine if item not in other]
    return msgspec.json.encode(extra or mine).decode() if extra or not other or len(mine) != len(other) else "nothing more"


def _sentence(what: str, engine: str, reference: str) -> str:
    followed = ", ".join(TOLERANCES)
    return (
        f"Let the engine and the reference carry out the same operation, the engine's free choices ({followed}) followed. Of "
        f"{what}, the engine says {engine}; however the reference says {reference}: a contradiction."
    )
