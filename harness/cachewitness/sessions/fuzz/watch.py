"""Counts marks in the events of a run, at the cost of a few comparisons per event.

It runs as one of the checkers, so it sees every event before the ledger takes the event in; it
reports no findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import lcm

from cachewitness.core.checkers.lookup import has_usable_key
from cachewitness.core.checkers.protocol import Checker, Handler
from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Copy,
    Counts,
    Extended,
    Finished,
    Group,
    Header,
    Hit,
    Preempted,
    Publish,
    Release,
    ResetDone,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
    Version,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import PageRecord
from cachewitness.core.ledger.requests import RequestRecord
from cachewitness.core.trace_format import Op
from cachewitness.sessions.fuzz import coverage_points
from cachewitness.sessions.fuzz.near_pairs import NearPairs
from cachewitness.sessions.fuzz.special_requests import SpecialRequests

_EVICTED = {
    "full": "attention evicted",
    "sliding": "window evicted",
    "chunked": "window evicted",
    "recurrent": "snapshot evicted",
}


class Watch(Checker):
    """Counts marks in `seen`; the same counter may serve many runs. `ops` are the trace's, where
    there is one.
    """

    name = "marks"
    summary = "which rules and boundary cases a campaign reached"
    anomalies = ()

    def __init__(self, header: Header, seen: Counter[str], ops: Iterable[Op] = ()) -> None:
        super().__init__()
        self._seen = seen
        self._rules = header.rules
        self._sizes = sorted({group.block_size for group in header.local_groups()})
        self._unit = lcm(*self._sizes)
        self._tiers = {pool.id: pool.tier for pool in header.pools}
        self._aside = len(set(self._tiers.values())) > 1
        self._preempted: set[str] = set()
        self._owner: dict[tuple[int, int], int] = {}
        """(pool, page) -> the group that had the page last."""
        self._drafting: dict[tuple[int, str], Run] = {}
        self._begun: dict[str, set[tuple[int, ...]]] = {}
        self._outdated: dict[str, set[tuple[int, ...]]] = {}
        """Per adapter: how prompts began, since it was loaded last and before."""
        self._copies_begun: dict[int, int] = {}
        """Of copies under way: the step that each began with."""
        self._pairs = NearPairs(self._sizes)
        self._special = SpecialRequests(ops)
        self._of_layout = _layout_marks(header)
        self._fetching = -1
        """The step in which somebody last hit another tier."""
        self._depths: dict[tuple[int, str], int] = {}
        """Per step and request: how many hit one another in it, this one the last of them."""
        self._unlucky: set[str] = set()
        """Who held a page when a copy into it failed."""
        self._came: set[str] = set()
        """Who, since admitted last, held a page when a copy into it had ended."""

    def handlers(self) -> dict[type, Handler]:
        """Return which events are looked at, and with what."""
        return {
            Submitted: self.on_submit,
            Hit: self.on_hit,
            Publish: self.on_publish,
            Unpublish: self.on_unpublish,
            Acquire: self.on_acquire,
            Copy: self.on_copy,
            Release: self.on_release,
            Counts: self.on_counts,
            StepBegin: self.on_step_begin,
            StepEnd: self.on_step_end,
            Accept: self.on_accept,
            Preempted: self.on_preempt,
            Aborted: self.on_abort,
            Extended: self.on_extended,
            Finished: self.on_finish,
            ResetDone: self.on_reset,
            Version: self.on_version,
        }

    def _mark(self, name: str, reached: object = True) -> None:
        if reached:
            assert name in coverage_points.ALL, name
            self._seen[name] += 1

    def _mark_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._mark(name)

    # --- look-up and publication ------------------------------------------------------------------

    def on_hit(self, ledger: Ledger, event: Hit) -> None:
        """Look at where a hit ends, and on whose pages."""
        request = ledger.requests[event.r]
        self._mark_all(self._special.admitted(ledger, event))
        at = event.resume
        if not at:
            self._mark("miss")
            return
        self._mark("hit on a boundary", at % self._unit == 0)
        self._mark("hit inside a block", any(at % size for size in self._sizes))
        self._mark("hit with one token left", at == len(request.tokens) - 1)
        self._mark("hit after preemption", event.r in self._preempted)
        self._mark("fetched from tier", event.tier != "local")
        self._came.discard(event.r)
        self._fetching = event.step if event.tier != "local" else self._fetching
        self._mark("hit after a failed load", event.r in self._unlucky)
        self._mark("snapshot restored", any(group.kind == "recurrent" for group in ledger.local))
        self._mark(
            "hit cut short by a group",
            any(self._more(ledger, group, request, at) for group in ledger.local),
        )
        self._mark_all(self._of_layout)
        for group, pages in zip(ledger.local, event.pages, strict=False):
            null = ledger.records[group.pool].null
            self._mark("null column skipped", any(page in null or page < 0 for page in pages))
            self._hit_pages(ledger, event, group, pages)

    def _hit_pages(self, ledger: Ledger, event: Hit, group: Group, pages: list[int]) -> None:
        for page in pages:
            record = ledger.record(group.id, page)
            if record is None:
                continue
            self._mark("hit of somebody running", record.holders)
            for key in record.keys:
                if key.state == "pending" and key.r != event.r:
                    self._mark(
                        "hit in flight" if key.step in ledger.open_steps else "hit in the same step"
                    )
                    self._chained(event, key.r)
                publisher = ledger.requests.get(key.r)
                generated = (
                    publisher is not None
                    and key.r != event.r
                    and publisher.prompt_tokens < key.length <= event.resume
                )
                self._mark("hit on generated tokens", generated)

    def _chained(self, event: Hit, publisher: str) -> None:
        depth = self._depths.get((event.step, publisher), 1) + 1
        self._depths[event.step, event.r] = max(depth, self._depths.get((event.step, event.r), 0))
        self._mark("third hit of a chain", depth > 2)

    def _more(self, ledger: Ledger, group: Group, request: RequestRecord, at: int) -> bool:
        """Whether a group of full attention holds the block behind the hit as well."""
        length = (at // group.block_size + 1) * group.block_size
        return (
            group.kind == "full"
            and length < len(request.nodes) - 1
            and has_usable_key(ledger, group.id, request.nodes[length])
        )

    def on_publish(self, ledger: Ledger, event: Publish) -> None:
        """Look at what is kept and why."""
        group = ledger.groups[event.group]
        request = ledger.requests[event.r]
        if self._tiers[group.pool] != "local":
            self._mark("stored in tier")
            return
        self._mark("published in a block", event.length % group.block_size)
        self._mark("published after its step", ledger.before(event).late)
        self._mark("snapshot published", group.kind == "recurrent")
        self._mark("snapshot of several pages", event.extra_pages)
        node = request.nodes[event.length] if event.length < len(request.nodes) else None
        self._mark(
            "duplicate key",
            any(
                page != event.page
                for page in ledger.keys.published[event.group].get(node or -1, ())
            ),
        )
        retention = self._rules.retention
        if (
            event.group in retention.groups
            and retention.interval is not None
            and group.kind == "recurrent"
        ):
            last = (
                request.prompt_tokens - 1
            ) // self._rules.alignment * self._rules.alignment - self._rules.eagle_drop_tokens
            if retention.interval and event.length % retention.interval == 0:
                self._mark("interval kept")
            else:
                self._mark(
                    "replay boundary kept"
                    if event.length >= last
                    else "shared-prefix boundary kept"
                )

    def on_unpublish(self, ledger: Ledger, event: Unpublish) -> None:
        """Look at why a key ends."""
        group = ledger.groups[event.group]
        self._mark("withdrawn key ended", event.reason == "withdraw")
        if event.reason == "evict":
            aside = self._tiers[group.pool] != "local"
            self._mark("tier evicted" if aside else _EVICTED[group.kind])
            self._mark(
                "tier evicted beside a load",
                aside and (event.step == self._fetching or any(self._filling(ledger))),
            )

    # --- pages ------------------------------------------------------------------------------------

    def on_acquire(self, ledger: Ledger, event: Acquire) -> None:
        """Look at who had the pages before."""
        for page in event.pages:
            before = self._owner.get((event.pool, page), event.group)
            self._mark("page changed groups", before != event.group)
            self._owner[event.pool, page] = event.group

    def on_copy(self, ledger: Ledger, event: Copy) -> None:
        """Mark how long a copy took, whether it succeeded, and which requests waited for it."""
        if event.phase == "begin":
            self._copies_begun[event.id] = event.step
        elif event.phase != "whole":
            later = event.step > self._copies_begun.pop(event.id, event.step)
            for move in event.moves:
                load = self._tiers[move.dst_pool] == "local"
                what = "load" if load else "store"
                holders = ledger.records[move.dst_pool][move.dst].holders
                if event.phase == "fail":
                    self._mark(f"{what} failed")
                    self._unlucky.update(holders)
                    self._mark("load failed in part", load and not self._came.isdisjoint(holders))
                else:
                    self._mark(f"{what} took steps", later)
                    self._mark("page filled for nobody", load and len(holders) == 1)
                    self._came.update(holders if load else ())

    def on_release(self, ledger: Ledger, event: Release) -> None:
        """Look whether somebody goes on without the pages."""
        request = ledger.requests.get(event.holder)
        if request is None or not request.live or not request.computed:
            return
        kind = ledger.groups[event.group].kind
        self._mark("window moved past a block", kind in ("sliding", "chunked"))
        self._mark("old state given back", kind == "recurrent")

    def on_counts(self, ledger: Ledger, event: Counts) -> None:
        """Look whether there is room."""
        self._mark("pool exhausted", event.free + event.cached == 0)

    # --- steps ------------------------------------------------------------------------------------

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> None:
        """Look at who runs, and over what."""
        self._mark_all(self._special.begins(ledger, event))
        self._mark("step beside one in flight", ledger.open_steps)
        self._mark("step beside two in flight", len(ledger.open_steps) > 1)
        self._mark("ran beside a load", event.runs and any(self._filling(ledger)))
        self._mark("page zeroed", any(pages for _, pages in event.zeros))
        self._mark("copy on write", any(move.src_pool == move.dst_pool for move in event.copies))
        stands = not event.runs and bool(ledger.requests.live)
        self._mark("nobody ran", stands)
        self._mark("nobody ran beside a step in flight", stands and ledger.open_steps)
        prompts = [run.start < ledger.requests[run.r].prompt_tokens for run in event.runs]
        self._mark("decode beside prefill", any(prompts) and not all(prompts))
        for run, prompt in zip(event.runs, prompts, strict=True):
            self._run(ledger, run, prompt)
            self._mark("run without drafts", self._rules.drafts and not prompt and not run.drafts)
            self._mark("run with one draft", len(run.drafts) == 1)
            self._mark(
                "run with all its drafts", run.drafts and len(run.drafts) == self._rules.drafts
            )
            if run.drafts:
                self._drafting[event.step, run.r] = run

    def _run(self, ledger: Ledger, run: Run, prompt: bool) -> None:
        self._mark("prompt in chunks", prompt and run.stop < ledger.requests[run.r].prompt_tokens)
        self._mark(
            "decode over a boundary",
            not prompt and any(run.start % size == 0 for size in self._sizes),
        )
        for group in ledger.local:
            size = group.block_size
            if group.kind == "recurrent":
                self._mark(
                    "chunk over several boundaries", run.known // size - run.start // size > 1
                )
                self._mark("chunk ends inside a block", prompt and run.known % size)
            self._mark(
                "chunk longer than the window", group.window and run.stop - run.start > group.window
            )

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> None:
        """Look who was taken out."""
        self._mark("withdrawn", event.withdrawn)

    def on_accept(self, ledger: Ledger, event: Accept) -> None:
        """Look how many drafts stood, and where the others lay."""
        run = self._drafting.pop((event.step, event.r), None)
        if run is None:
            return
        stood = len(event.tokens) - 1
        drafts = len(run.drafts)
        outcome = (
            "drafts all stood"
            if stood == drafts
            else "drafts partly stood"
            if stood
            else "drafts all fell"
        )
        self._mark(outcome)
        right = run.known + stood
        self._mark(
            "draft rejected over a boundary",
            any(run.stop // size > right // size for size in self._sizes),
        )
        self._mark(
            "drafts stood over a boundary",
            any(right // size > run.known // size for size in self._sizes),
        )

    # --- life -------------------------------------------------------------------------------------

    def on_submit(self, ledger: Ledger, event: Submitted) -> None:
        """Look at how a prompt lies on the blocks."""
        tokens = len(event.tokens)
        for size in self._sizes:
            self._mark("prompt on a boundary", tokens % size == 0)
            self._mark("prompt one short", size > 2 and tokens % size == size - 1)
            self._mark("prompt one over", size > 2 and tokens % size == 1)
            self._mark(
                "image ends on a boundary",
                any((item.at + item.length) % size == 0 for item in event.media),
            )
        self._mark_all(self._pairs.marks(event))
        live = [request for request in ledger.requests.values() if request.live]
        self._mark("sixteen live", len(live) >= 15)  # and the one that comes
        self._mark("sixty-four live", len(live) >= 63)
        self._mark(
            "prompt and its answer",
            any(_answered(request, event) for request in ledger.requests.values()),
        )
        self._mark("salt", event.salt)
        self._mark("image", event.media)
        if event.adapter:
            self._mark("adapter")
            beginning = tuple(event.tokens[: self._unit])
            self._mark(
                "prompt again after a reload", beginning in self._outdated.get(event.adapter, ())
            )
            if len(beginning) == self._unit:
                self._begun.setdefault(event.adapter, set()).add(beginning)

    def on_preempt(self, ledger: Ledger, event: Preempted) -> None:
        """Look how far it was."""
        request = ledger.requests[event.r]
        self._preempted.add(event.r)
        self._mark(
            "preempted mid-prefill"
            if request.computed < request.prompt_tokens
            else "preempted while decoding"
        )
        self._mark("preempted in flight", _in_flight(ledger, event.r))
        self._mark_all(self._special.preempted(ledger, event))

    def on_abort(self, ledger: Ledger, event: Aborted) -> None:
        """Look how far it was."""
        request = ledger.requests[event.r]
        self._mark("aborted before it ran", not request.computed)
        self._mark("aborted mid-prefill", 0 < request.computed < request.prompt_tokens)
        self._mark("aborted in flight", _in_flight(ledger, event.r))
        self._mark(
            "aborted with keys to come",
            any(
                key.r == event.r for step in ledger.open_steps for key in ledger.keys.pending(step)
            ),
        )
        self._mark(
            "aborted while loading",
            any(event.r in record.holders for record in self._filling(ledger)),
        )

    def on_extended(self, ledger: Ledger, event: Extended) -> None:
        """Look whether a step has not ended."""
        self._mark_all(self._special.extended(ledger, event))

    def on_finish(self, ledger: Ledger, event: Finished) -> None:
        """Look whether it still runs."""
        self._mark("finished in flight", _in_flight(ledger, event.r))

    def on_reset(self, ledger: Ledger, event: ResetDone) -> None:
        """Look who was there."""
        self._mark("reset" if event.ok else "reset refused", event.tier == "local")
        self._mark(
            "reset in flight", event.ok and event.tier == "local" and bool(ledger.open_steps)
        )
        self._mark("reset beside a transfer", ledger.contents.copying)
        self._mark("reset with requests", any(request.live for request in ledger.requests.values()))
        kept = self._aside and event.tier == "local" and event.ok
        published = ledger.keys.published
        self._mark(
            "tier kept in a reset",
            kept and any(published[group.id] for group in ledger.groups if group.source_group >= 0),
        )

    def on_version(self, ledger: Ledger, event: Version) -> None:
        """Look who was there, and whether it had the adapter."""
        live = {request.identity[2] for request in ledger.requests.values() if request.live}
        if event.adapter:
            self._mark("adapter reloaded")
            self._mark("adapter reloaded midway", event.adapter in live)
            self._mark("adapter reloaded beside others", live and event.adapter not in live)
            self._outdated.setdefault(event.adapter, set()).update(
                self._begun.pop(event.adapter, ())
            )
        else:
            self._mark("weights updated")
            self._mark("weights updated midway", live)

    def _filling(self, ledger: Ledger) -> Iterator[PageRecord]:
        """Yield the pages of the device that copies under way fill."""
        for (pool, page), copies in ledger.contents.filling.items():
            if copies and self._tiers[pool] == "local":
                yield ledger.records[pool][page]


def _in_flight(ledger: Ledger, r: str) -> bool:
    return any(run.r == r for begun in ledger.open_steps.values() for run in begun.runs)


def _answered(request: RequestRecord, event: Submitted) -> bool:
    return (
        request.prompt_tokens < len(request.tokens) == len(event.tokens)
        and request.tokens == event.tokens
    )


def _layout_marks(header: Header) -> list[str]:
    """Return the marks that every hit over these groups reaches."""
    groups = header.local_groups()
    windows = {group.window for group in groups if group.kind == "sliding"}
    found = {
        "hit beside a window shorter than a block": any(
            g.window and g.window < g.block_size for g in groups
        ),
        "hit over two groups of full attention": sum(group.kind == "full" for group in groups) > 1,
        "hit over windows of several lengths": len(windows) > 1,
        "hit given back in some groups": 0 < len(header.rules.eagle_groups) < len(groups),
    }
    return [name for name, reached in found.items() if reached]
