"""What a picture says of events and pages, in words."""

from __future__ import annotations

from typing import Literal

from cachewitness.core.checkers.wording import count
from cachewitness.core.events import (
    Aborted,
    Event,
    Finished,
    Group,
    Header,
    Hit,
    Preempted,
    ResetDone,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Version,
)
from cachewitness.core.ledger.records import NOTHING, Content, Key, PageRecord

PageState = Literal[
    "free", "poisoned", "zeros", "written", "pending", "committed", "idle", "stale", "tainted"
]
STATES: dict[PageState, str] = {
    "free": "nobody holds it and no key names it",
    "poisoned": "held, and not written since it was acquired",
    "zeros": "held, and overwritten with zeros",
    "written": "held and written, without a key",
    "pending": "keyed in a step that has not ended",
    "committed": "held and keyed",
    "idle": "kept for its key alone",
    "stale": "a key names what it does not hold",
    "tainted": "computed from something wrong",
}
"""What each state of a page means."""
NAMES = {
    "full": "full attention",
    "sliding": "sliding window",
    "chunked": "chunked attention",
    "recurrent": "recurrent state",
}
NOT_YET = "nothing yet"
END: dict[type[Event], str] = {
    Preempted: "was preempted",
    Finished: "has finished",
    Aborted: "was aborted",
}


def group(one: Group) -> str:
    """Return the name of a group."""
    window = f", window {one.window}" if one.window else ""
    return f"group {one.id}: {NAMES.get(one.kind, one.kind)}, blocks of {one.block_size}{window}"


def pools(header: Header) -> list[str]:
    """Return the names of the pools."""
    return [
        f"pool {pool.id}" + ("" if pool.tier == "local" else f" (tier {pool.tier})")
        for pool in header.pools
    ]


def step(begun: StepBegin) -> str:
    """Return the title of a frame before the runs of a step."""
    runs = ", ".join(f"{run.r} {computes(run)}" for run in begun.runs)
    return f"step {begun.step}: {runs or 'nobody runs'}"


def computes(run: Run) -> str:
    """Return what a request is about to do in a step."""
    return f"computes tokens [{run.start}, {run.stop})"


def hit(event: Hit) -> str:
    """Return what a request found."""
    return (
        f"finds {count(event.resume, 'token')} cached" if event.resume else "finds nothing cached"
    )


def title(event: Event) -> str:
    """Return the title of a frame behind an event of the life of requests."""
    match event:
        case Submitted():
            return f"{event.r} is submitted: {count(len(event.tokens), 'token')}" + (
                f", salt {event.salt}" if event.salt else ""
            )
        case Hit():
            return f"{event.r} {hit(event)}"
        case Preempted() | Finished() | Aborted():
            return f"{event.r} {END[type(event)]}"
        case StepEnd():
            return f"step {event.step} has ended"
        case ResetDone():
            return "the cache is reset" if event.ok else "a reset of the cache is refused"
        case Version():
            return "weights are loaded" + (f" for adapter {event.adapter}" if event.adapter else "")
    return ""


def left_waiting(event: StepBegin) -> list[tuple[str, int]]:
    """Return who asked for how many tokens in a step and got none."""
    got = {run.r for run in event.runs}
    return [(r, tokens) for r, tokens in event.asked if r not in got]


def places(header: Header, event: Event) -> set[tuple[int, int]]:
    """Return the pages, with their pools, that an event is about."""
    number = getattr(event, "group", -1)
    if isinstance(event, Hit):
        return {
            (one.pool, page)
            for one, pages in zip(header.groups, event.pages, strict=False)
            for page in pages
        }
    pool = getattr(
        event, "pool", header.groups[number].pool if 0 <= number < len(header.groups) else -1
    )
    pages = getattr(event, "pages", None)
    found = pages if isinstance(pages, list) else [getattr(event, "page", -1)]
    return {(pool, page) for page in found if page >= 0}


def state(record: PageRecord) -> PageState:
    """Return what a page is, in a word."""
    if any(key.state not in ("pending", "committed") for key in record.keys):
        return "stale"
    if record.tainted:
        return "tainted"
    if record.keys:
        pending = all(key.state == "pending" for key in record.keys)
        return "pending" if pending else "committed" if record.holders else "idle"
    if not record.holders:
        return "free"
    return "written" if record.node != NOTHING else "zeros" if record.zeroed else "poisoned"


def content(record: Content) -> str:
    """Return what a page holds."""
    if record.zeroed:
        return "holds zeros"
    if record.node == NOTHING:
        return "holds nothing"
    of = f"of group {record.group}, written by {record.writer} in step {record.step}"
    if record.state:
        text = f"holds the state after {record.stop} tokens {of}"
    else:
        spans = " and ".join(f"[{span.start}, {span.stop})" for span in record.spans())
        text = f"holds tokens {spans} {of}"
    return text + (", computed from something wrong" if record.tainted else "")


def page(record: PageRecord) -> str:
    """Return all that is known of a page."""
    held = "held by " + ", ".join(record.holders) if record.holders else "held by nobody"
    keys = "; ".join(_key(key) for key in record.keys)
    return f"{content(record)}; {held}; {f'keys: {keys}' if keys else 'no key'}"


def _key(key: Key) -> str:
    return f"the first {key.length} tokens of {key.r} ({key.state})"
