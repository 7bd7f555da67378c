"""Whether the events of a history can be followed: they name what exists, and come when they can
(docs/reference/formats.md).

Nothing here says whether the engine was right. An event that fails this is a mistake of whoever
wrote it down: the checkers cannot tell what it means, so nothing is judged from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from cachewitness.core.attention_span import columns
from cachewitness.core.declared import check_declared, denied
from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Compare,
    Copy,
    Counts,
    Died,
    Event,
    Extended,
    Finished,
    Grow,
    Header,
    Hit,
    KvCleared,
    KvRemoved,
    KvStored,
    KvUnreadable,
    Move,
    Paused,
    Preempted,
    Publish,
    Read,
    Release,
    ResetDone,
    Run,
    Settled,
    Stats,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
    Version,
    Write,
    Zero,
)
from cachewitness.core.malformed import (
    CAPTURE,
    NO_REQUEST,
    PAGES_MAX,
    MalformedHistory,
    at_least_nothing,
    check_header,
    check_tokens,
    listed,
    media_problem,
    name_problem,
)

NO_COLUMN = -1
"""What stands for a column that a table does not have."""
IN_FLIGHT_MAX = 64
"""So many steps may be in flight at once."""


class WellFormedness:
    """Follows a history event by event, keeping no more than is needed to know what exists.

    `live`: the events come from an engine, and the harness adds its own later: `read`, `write`,
    `copy`, `zero` and `engine-crashed`.

    Raises MalformedHistory for a header whose groups or pools do not fit together.
    """

    def __init__(self, header: Header, *, live: bool = False) -> None:
        check_header(header)
        check_declared(header)
        self._denied = denied(header)
        self._hits = header.rules.caching or len({pool.tier for pool in header.pools}) > 1
        self._groups = header.groups
        self._tells_routers = header.rules.key_events is not None
        self._tells_operators = header.rules.stats
        self._pool_of_group = {group.id: group.pool for group in header.groups}
        self._pools = {pool.id: pool.pages for pool in header.pools}
        self._growing = {pool.id for pool in header.pools if pool.grows}
        self._tiers = {pool.tier for pool in header.pools}
        self.tokens: dict[str, int] = {}
        """How many tokens each request has."""
        self.ended: set[str] = set()
        """Requests that are over."""
        self.begun = 0
        """The step that began last."""
        self._ended_step = 0
        self._ahead = 0
        """The latest step that has events and has not begun."""
        self._forgotten = ""
        """Why keys ended that nothing has explained yet: `reset` or `version`."""
        self._forgets = False
        """Whether a reset that was done, or new weights, explain why keys end."""
        self._taken_back: set[int] = set()
        """Steps of which keys were withdrawn."""
        self._keyed = 0
        """The step that has not begun and will write what keys were published for."""
        self._in_flight: dict[int, dict[str, tuple[int, int]]] = {}
        """Steps that have not ended, the oldest first; of each, by request, where its run ends and
        how many drafts it has."""
        self._copying: dict[int, list[Move]] = {}  # by copy that has begun: what it moves
        self._under_way: set[int] = set()
        self._placed: set[str] = set()
        """Requests that were looked up, or ran from their first token, since they came or lost
        their place."""
        self._unfound: dict[str, int] = {}
        """Requests that run from so many tokens on, and of which no look-up was reported yet."""
        self._followed: dict[str, list[list[int]]] = {}
        """By request: the tables that it ran over last, whose pages exist."""
        self._waits: dict[str, bool] = {}
        """By session: whether it waits for more input."""
        self._in_vain: set[tuple[int, str]] = set()
        """(step, r) of steps in flight when the answer of r was over."""
        self._rules: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys((Acquire, Release), self._holding),
            Grow: self._grow,
            Read: self._access,
            Write: self._access,
            Copy: self._copy,
            Zero: lambda e: self._check_pages(e.pages, e.pool, "pages"),
            Publish: self._publish,
            Unpublish: self._unpublish,
            Hit: self._hit,
            Counts: self._counts,
            **dict.fromkeys((KvStored, KvRemoved, KvCleared, KvUnreadable), self._key_event),
            Stats: self._stats,
            Submitted: self._submit,
            StepBegin: self._step_begin,
            Settled: self._settle,
            StepEnd: self._step_end,
            Accept: self._accept,
            Paused: self._pause,
            Extended: self._extend,
            Preempted: self._preempt,
            Aborted: self._end,
            Finished: self._end,
            Compare: self._compare,
            ResetDone: self._reset,
            Version: self._version,
        }
        if live:
            self._rules |= dict.fromkeys((Read, Write, Copy, Zero, Died), _not_the_engines)

    def follow(self, event: Event) -> None:
        """Take one event in. Raises MalformedHistory if it refers to something that does not exist,
        or cannot come now.
        """
        step = event.step
        if step != self._ahead and not self._ended_step <= step <= self.begun:
            self._check_step(event)
        rule = self._rules.get(type(event))
        if rule is not None:
            rule(event)

    def rest(self) -> None:
        """Judge the end of the history. Raises MalformedHistory if no step ever ended of those that
        began.
        """
        if self._in_flight and not self._ended_step:
            raise MalformedHistory(
                f"{len(self._in_flight)} steps begin and none of them ends; write `step_end` when a"
                " step has run"
            )
        self._check_explained()

    def operation_over(self) -> None:
        """Note that an operation is over. Raises MalformedHistory if it published keys for a step
        that did not begin in it.
        """
        if self._keyed:
            raise MalformedHistory(
                f"step {self._keyed} has keys, and did not begin by the end of the operation - at"
                f" `$.step`; the last step that began is {self.begun}"
            )
        self._check_explained()
        self._forgets = False

    # --- when -------------------------------------------------------------------------------------

    def _check_explained(self) -> None:
        """Refuse what nothing in the same operation explains: keys that ended for what did not
        happen, runs from nowhere.

        A `hit` may come after the run, in the same operation.
        """
        if self._forgotten:
            forgotten, self._forgotten = self._forgotten, ""
            if not self._forgets:
                cause = "a `reset` that is `ok` or a `version`"
                raise MalformedHistory(
                    f"keys ended for {forgotten!r} without {cause}; a key that ends by itself is"
                    " evicted"
                )
        if self._unfound:
            r, start = self._unfound.popitem()
            raise MalformedHistory(
                f"{r!r} runs from token {start} on, and was not looked up; report `hit`, which says"
                " where that lies"
            )

    def _check_step(self, event: Event) -> None:
        """Refuse an event of a step that is long over; note one of a step that has not begun."""
        step = event.step
        if step < self._ended_step:
            raise MalformedHistory(
                f"step {step} - at `$.step`; step {self._ended_step} has ended, and no earlier step"
                " has events then"
            )
        self._ahead = max(step, self._ahead)

    def _step_begin(self, event: StepBegin) -> None:
        step = event.step
        if step in self._in_flight:
            raise MalformedHistory(
                f"step {step} has begun already - at `$.step`; it ends before it begins again"
            )
        if step <= self.begun:
            raise MalformedHistory(
                f"step {step} - at `$.step`; number the steps upwards from 1: the last one was"
                f" {self.begun}"
            )
        if len(self._in_flight) == IN_FLIGHT_MAX:
            oldest = next(iter(self._in_flight))
            raise MalformedHistory(
                f"step {step} - at `$.step`; {IN_FLIGHT_MAX} steps are in flight, and step {oldest}"
                " has not ended"
            )
        if step < self._ahead or self._keyed not in (0, step):
            expected = self._keyed or self._ahead
            raise MalformedHistory(
                f"step {step} - at `$.step`; events of step {expected} came already, so step"
                f" {expected} begins first"
            )
        # Before the state moves on: what the step before left unexplained belongs to that step.
        self._check_explained()
        self._forgets = False
        self.begun = step
        self._ahead = 0
        self._keyed = 0
        for r, tokens in event.asked:
            if tokens < 0 or r not in self.tokens:
                self._check_known(r, "asked")
                at_least_nothing(tokens, "asked")
        runs: dict[str, tuple[int, int]] = {}
        for run in event.runs:
            if run.r in runs:
                raise MalformedHistory(
                    f"request {run.r!r} twice - at `$.runs`; a step computes one chunk of each"
                )
            self._check_run(run)
            runs[run.r] = run.stop, len(run.drafts)
        # Only after every run was checked: a refused step is not in flight.
        self._in_flight[step] = runs
        if event.copies or event.stores:
            self._moves(event.copies, "copies")
            self._moves(event.stores, "stores")
        if event.begun or event.ended or event.failed or event.flushed:
            self._transfers(event)
        for pool, pages in event.zeros:
            self._check_pages(pages, pool, "zeros")

    def _check_run(self, run: Run) -> None:
        r = run.r
        known = self._going_on(r, "runs")
        self._check_chunk(run, known, self._may_come(r) if run.stop > known else 0)
        if r not in self._placed:
            if run.start:
                self._unfound[r] = run.start
            self._placed.add(r)

    def _check_chunk(self, run: Run, known: int, more: int = 0) -> None:
        """Refuse a run of tokens that its request has not: it has `known`, and steps in flight
        may add so many `more`.
        """
        if run.drafts:
            if not run.start < run.known <= known + more:
                raise MalformedHistory(
                    f"drafts from {run.known} on - at `$.runs`; {run.r!r} has {known} tokens here"
                )
            check_tokens(run.drafts)
            self._tables(run.scratch, "runs")
        elif not 0 <= run.start < run.stop or run.stop > known + more:
            raise MalformedHistory(
                f"tokens [{run.start}, {run.stop}) of {run.r!r} - at `$.runs`; it has {known}"
                " tokens here"
            )
        if run.fed:
            if len(run.fed) != run.known - run.start:
                raise MalformedHistory(
                    f"{len(run.fed)} tokens fed at `$.runs`; {run.r!r} computes"
                    f" {run.known - run.start} known ones"
                )
            check_tokens(run.fed)
        for group, page, length in run.checkpoints:
            self._check_page(page, self._pool_of(group), "runs")
            if self._groups[group].kind != "recurrent" or not run.start < length < run.known:
                within = (
                    "only a recurrent group has checkpoints"
                    if self._groups[group].kind != "recurrent"
                    else f"{run.r!r} computes [{run.start}, {run.known}): a checkpoint lies behind"
                    f" {run.start} and ends before {run.known}; the state after {run.known} is not"
                    " one, it goes into the page that `tables` has for it"
                )
                raise MalformedHistory(
                    f"a checkpoint of group {group} after {length} tokens - at `$.runs`; {within}"
                )
        if run.mirrors:
            self._check_mirrors(run)
        followed = self._followed.get(run.r, ())
        if run.tables != followed:
            self._columns(run.tables, "runs", followed)
        self._followed[run.r] = run.tables

    def _check_mirrors(self, run: Run) -> None:
        """Refuse tokens that the run does not compute, or that do not lie in one block, as
        written a second time.
        """
        for group, page, start, stop in run.mirrors:
            self._check_page(page, self._pool_of(group), "runs")
            size = self._groups[group].block_size
            one = self._groups[group].kind != "recurrent" and start // size == (stop - 1) // size
            if not one or not run.start <= start < stop <= run.stop:
                within = (
                    f"{run.r!r} computes [{run.start}, {run.stop}), and a page holds one block of"
                    " attention"
                )
                raise MalformedHistory(
                    f"tokens [{start}, {stop}) mirrored for group {group} - at `$.runs`; {within}"
                )

    def _may_come(self, r: str) -> int:
        """Return how many tokens the steps in flight may add to a request."""
        return sum(1 + runs[r][1] for runs in self._in_flight.values() if r in runs)

    def _settle(self, event: Settled) -> None:
        """Refuse what cannot become of a step that runs now: others run, other tokens than they
        have, or more of them.
        """
        scheduled = self._oldest(event)
        for run in event.runs:
            tokens = scheduled.get(run.r)
            if tokens is None:
                raise MalformedHistory(
                    f"{run.r!r} is not in step {event.step} - at `$.runs`; settle the runs that it"
                    " began with"
                )
            # The step of a request that is over runs all the same, over tokens that nobody will
            # know.
            over = run.r in self.ended or (event.step, run.r) in self._in_vain
            self._check_chunk(
                run, max(run.known, self.tokens[run.r]) if over else self.tokens[run.r]
            )
            scheduled[run.r] = run.stop, len(run.drafts)
        for field in ("before", "after"):
            self._moves(getattr(event, field), field)

    def _oldest(self, event: Settled | StepEnd) -> dict[str, tuple[int, int]]:
        """Return the runs of the step that an event is of. Raises MalformedHistory unless it is the
        oldest in flight.
        """
        if event.step not in self._in_flight:
            raise MalformedHistory(f"step {event.step} has not begun - at `$.step`")
        oldest = next(iter(self._in_flight))
        if event.step != oldest:
            raise MalformedHistory(
                f"step {event.step} - at `$.step`; steps end in the order in which they began, and"
                f" {oldest} is first"
            )
        return self._in_flight[oldest]

    def _step_end(self, event: StepEnd) -> None:
        self._oldest(event)
        del self._in_flight[event.step]
        self._ended_step = event.step
        if self._in_vain:
            self._in_vain = {place for place in self._in_vain if place[0] > event.step}
        for r in event.withdrawn:
            self._check_known(r, "withdrawn")
        if event.step in self._taken_back and not event.withdrawn:
            raise MalformedHistory(
                f"nobody - at `$.withdrawn`; keys of step {event.step} ended for `withdraw`"
            )

    def _transfers(self, event: StepBegin) -> None:
        for number, move in event.begun:
            if number in self._under_way:
                raise MalformedHistory(
                    f"copy {number} has begun already - at `$.begun`; give every copy a number of"
                    " its own"
                )
            self._moves([move], "begun")
            self._under_way.add(number)
        for field, numbers in (
            ("flushed", event.flushed),
            ("ended", event.ended),
            ("failed", event.failed),
        ):
            for number in numbers:
                if number not in self._under_way:
                    raise MalformedHistory(f"copy {number} is not under way - at `$.{field}`")
                self._under_way.remove(number)

    # --- requests ---------------------------------------------------------------------------------

    def _submit(self, event: Submitted) -> None:
        problem = name_problem(event.r, self.tokens) or media_problem(event.media)
        if problem:
            raise MalformedHistory(problem)
        if not event.tokens:
            raise MalformedHistory("no tokens - at `$.tokens`; a request has at least one")
        if not 0 <= event.shared <= len(event.tokens):
            raise MalformedHistory(f"{event.shared} of {len(event.tokens)} tokens - at `$.shared`")
        self.tokens[event.r] = len(event.tokens)
        check_tokens(event.tokens)
        if event.session:
            self._waits[event.r] = False

    def _pause(self, event: Paused) -> None:
        self._going_on(event.r, "r")
        if event.r not in self._waits:
            raise MalformedHistory(
                f"{event.r!r} waits for more input - at `$.r`; only a session does, by `session` of"
                " its `submit`"
            )
        self._waits[event.r] = True
        self._in_vain |= {
            (step, event.r) for step, runs in self._in_flight.items() if event.r in runs
        }

    def _extend(self, event: Extended) -> None:
        known = self._live(event.r, "r")
        if not self._waits.get(event.r):
            raise MalformedHistory(
                f"{event.r!r} does not wait for more input - at `$.r`; a session does from its"
                " `pause` on"
            )
        if not known - 1 <= event.keep <= known:
            raise MalformedHistory(
                f"{event.keep} - at `$.keep`; {event.r!r} has {known} tokens here, and all but the"
                " last stay"
            )
        if not event.tokens:
            raise MalformedHistory("no tokens - at `$.tokens`; more input has at least one")
        check_tokens(event.tokens)
        self._waits[event.r] = False
        self.tokens[event.r] = event.keep + len(event.tokens)

    def _going_on(self, r: str, field: str) -> int:
        """Return how many tokens a request has that is live and does not wait for more input."""
        known = self._live(r, field)
        if self._waits.get(r):
            raise MalformedHistory(
                f"{r!r} waits for more input - at `$.{field}`; nothing is computed for it before"
                " its `extend`"
            )
        return known

    def _accept(self, event: Accept) -> None:
        known = self._live(event.r, "r")
        before = event.upto - len(event.tokens)
        if not 0 < before <= known:
            raise MalformedHistory(
                f"{event.upto} - at `$.upto`; {event.r!r} has {known} tokens here and gets"
                f" {len(event.tokens)}"
            )
        self.tokens[event.r] = event.upto
        check_tokens(event.tokens)

    def _preempt(self, event: Preempted) -> None:
        self._live(event.r, "r")
        self._placed.discard(event.r)

    def _end(self, event: Aborted | Finished) -> None:
        self._live(event.r, "r")
        self.ended.add(event.r)
        self._placed.discard(event.r)
        self._followed.pop(event.r, None)

    def _live(self, r: str, field: str) -> int:
        """Return how many tokens a request has that was submitted and has not ended."""
        known = self.tokens.get(r)
        if known is None:
            self._check_known(r, field)
        elif r not in self.ended:
            return known
        raise MalformedHistory(
            f"request {r!r} has ended - at `$.{field}`; nothing happens to it any more but what it"
            " gives back"
        )

    def _check_known(self, r: str, field: str) -> None:
        if r not in self.tokens:
            raise MalformedHistory(
                f"request {r!r} was never submitted - at `$.{field}`; name a request that a"
                " `submit` named before"
            )

    def _compare(self, event: Compare) -> None:
        self._check_known(event.r, "r")
        if not 0 <= event.start <= event.stop:
            raise MalformedHistory(f"tokens [{event.start}, {event.stop}) - at `$.start`")

    # --- claims -----------------------------------------------------------------------------------

    def _publish(self, event: Publish) -> None:
        if event.r not in self.tokens:
            self._check_known(event.r, "r")
        pool = self._pool_of(event.group)
        self._check_page(event.page, pool, "page")
        if event.extra_pages:
            self._check_pages(event.extra_pages, pool, "extra_pages")
        if event.length < 0:
            at_least_nothing(event.length, "length")
        if event.group in self._denied:
            raise MalformedHistory(
                f"a key in group {event.group} - at `$.group`; the header says"
                f" {self._denied[event.group]}"
            )
        if event.step > self.begun:
            self._keyed = self._keyed or event.step

    def _unpublish(self, event: Unpublish) -> None:
        self._check_page(event.page, self._pool_of(event.group), "page")
        if event.length < 0:
            at_least_nothing(event.length, "length")
        if event.reason in ("reset", "version"):
            self._forgotten = self._forgotten or event.reason
        elif event.reason == "withdraw":
            self._taken_back.add(event.step)

    def _reset(self, event: ResetDone) -> None:
        self._tier(event.tier)
        self._forgets = self._forgets or event.ok

    def _version(self, event: Version) -> None:
        self._forgets = True

    def _key_event(self, event: KvStored | KvRemoved | KvCleared | KvUnreadable) -> None:
        if not self._tells_routers:
            raise MalformedHistory(
                "an event for routers; the header says that there are none - at"
                " `$.rules.key_events`"
            )
        if isinstance(event, KvStored):
            check_tokens(event.tokens)

    def _stats(self, event: Stats) -> None:
        if not self._tells_operators:
            raise MalformedHistory(
                "an event for operators; the header says that there are none - at `$.rules.stats`"
            )
        if event.pool not in self._pools:
            raise self._no_pool(event.pool, "pool")
        if event.tier is not None and (event.requests < 0 or len(self._tiers) == 1):
            raise MalformedHistory(
                "look-ups in another tier - at `$.tier`; the device's are told with them, and the"
                " header has a pool of such a tier"
            )
        for r, _ in event.restored:
            self._check_known(r, "restored")

    def _counts(self, event: Counts) -> None:
        if event.refs or event.pool not in self._pools:
            self._check_pages([page for page, _ in event.refs], event.pool, "refs")

    def _hit(self, event: Hit) -> None:
        self._live(event.r, "r")
        self._tier(event.tier)
        if event.resume < 0:
            raise MalformedHistory("less than nothing - at `$.resume`")
        if not event.resume <= event.reported <= self.tokens[event.r]:
            between = f"{event.r!r} resumes at {event.resume} and has {self.tokens[event.r]} tokens"
            raise MalformedHistory(
                f"{event.reported} - at `$.reported`; it lies between both: {between}"
            )
        if event.reported and not self._hits:
            raise MalformedHistory(
                f"{event.reported} - at `$.reported`; the header says `caching` false, so nothing"
                " is ever hit"
            )
        self._columns(event.pages, "pages")
        self._placed.add(event.r)
        self._unfound.pop(event.r, None)
        if event.resume and not any(event.pages):
            raise MalformedHistory(
                f"no page in any group - at `$.pages`; {event.r!r} resumes at {event.resume}, over"
                " its tables there"
            )

    # --- pages ------------------------------------------------------------------------------------

    def _grow(self, event: Grow) -> None:
        if event.pool not in self._growing:
            raise MalformedHistory(
                f"pool {event.pool} - at `$.pool`; it does not grow, by the header: `grows` of the"
                " pool says so"
            )
        if event.pages < 1 or self._pools[event.pool] + event.pages > PAGES_MAX:
            raise MalformedHistory(
                f"{event.pages} more - at `$.pages`; at least 1, and at most {PAGES_MAX} in all"
            )
        self._pools[event.pool] += event.pages

    def _holding(self, event: Acquire | Release) -> None:
        if self._pool_of_group.get(event.group) != event.pool:
            self._check_pool(event.group, event.pool)
        self._check_pages(event.pages, event.pool, "pages")
        if not event.pages and event.holder.startswith(CAPTURE):
            raise MalformedHistory(
                f"no page of {event.holder!r} - at `$.pages`; a capture lies in one at least"
            )
        if event.holder not in self.tokens and not event.holder.startswith(NO_REQUEST):
            self._check_known(event.holder, "holder")

    def _access(self, event: Read | Write) -> None:
        r = event.r
        start = event.start
        stop = event.stop
        self._check_pool(event.group, event.pool)
        self._check_known(r, "r")
        group = self._groups[event.group]
        tokens = self.tokens[r]
        if not 0 <= start <= stop <= tokens:
            self._check_beyond(event, tokens)
        wanted = 1
        if group.kind != "recurrent":
            first, last = columns(group, start, stop)
            wanted = last - first
        if len(event.pages) != wanted:
            span = f"tokens [{start}, {stop}) of group {event.group}"
            raise MalformedHistory(f"{len(event.pages)} pages - at `$.pages`; {span} take {wanted}")
        self._check_pages(event.pages, event.pool, "pages", NO_COLUMN)

    def _check_beyond(self, event: Read | Write, tokens: int) -> None:
        """Refuse tokens that neither the request has, which has so many, nor its run in the
        step.
        """
        run = self._in_flight.get(event.step, {}).get(event.r)
        tokens = max(tokens, run[0] if run else 0)
        if not 0 <= event.start <= event.stop <= tokens:
            raise MalformedHistory(
                f"tokens [{event.start}, {event.stop}) - at `$.start`; {event.r!r} has {tokens}"
                " tokens here"
            )

    def _copy(self, event: Copy) -> None:
        self._moves(event.moves, "moves")
        if event.phase == "begin":
            self._copying[event.id] = event.moves
        elif self._copying.pop(event.id, event.moves) != event.moves:
            raise MalformedHistory(
                f"other pages than copy {event.id} began with - at `$.moves`; it ends, or fails,"
                " with the same"
            )

    def _moves(self, moves: list[Move], field: str) -> None:
        for move in moves:
            self._check_page(move.src, move.src_pool, field)
            self._check_page(move.dst, move.dst_pool, field)
            if move.tokens < 0:
                raise MalformedHistory(f"{move.tokens} tokens of a page - at `$.{field}`")

    def _tier(self, tier: str) -> None:
        if tier not in self._tiers:
            raise MalformedHistory(
                f"tier {tier!r} does not exist - at `$.tier`; the header has"
                f" {', '.join(sorted(self._tiers))}"
            )

    def _check_pool(self, group: int, pool: int) -> None:
        if self._pool_of_group.get(group) != pool:
            raise MalformedHistory(
                f"pool {pool} - at `$.pool`; group {group} lies in pool {self._pool_of(group)}"
            )

    def _pool_of(self, group: int) -> int:
        pool = self._pool_of_group.get(group)
        if pool is None:
            raise MalformedHistory(
                f"group {group} does not exist - at `$.group`; the header has groups 0 to"
                f" {len(self._groups) - 1}"
            )
        return pool

    def _columns(
        self, tables: list[list[int]], field: str, followed: Sequence[list[int]] = ()
    ) -> None:
        self._tables(tables, field, NO_COLUMN, followed)

    def _tables(
        self,
        tables: list[list[int]],
        field: str,
        least: int = 0,
        followed: Sequence[list[int]] = (),
    ) -> None:
        """Refuse pages that do not exist, but for rows that were followed before."""
        if len(tables) != len(self._groups):
            raise MalformedHistory(
                f"{len(tables)} tables - at `$.{field}`; the header has {len(self._groups)} groups"
            )
        for group, pages, known in zip_longest(self._groups, tables, followed):
            if pages and pages is not known and pages != known:
                self._check_pages(pages, group.pool, field, least)

    def _check_pages(self, pages: list[int], pool: int, field: str, least: int = 0) -> None:
        count = self._pools.get(pool)
        if count is None:
            raise self._no_pool(pool, field)
        if pages and not (min(pages) >= least and max(pages) < count):
            raise self._no_page(
                next(page for page in pages if not least <= page < count), pool, field
            )

    def _check_page(self, page: int, pool: int, field: str) -> None:
        if not 0 <= page < self._pools.get(pool, 0):
            raise (
                self._no_page(page, pool, field)
                if pool in self._pools
                else self._no_pool(pool, field)
            )

    def _no_page(self, page: int, pool: int, field: str) -> MalformedHistory:
        return MalformedHistory(
            f"page {page} does not exist - at `$.{field}`; pool {pool} has pages 0 to"
            f" {self._pools[pool] - 1}"
        )

    def _no_pool(self, pool: int, field: str) -> MalformedHistory:
        return MalformedHistory(
            f"pool {pool} does not exist - at `$.{field}`; the header has {listed(self._pools)}"
        )


def _not_the_engines(event: Event) -> None:
    raise MalformedHistory(
        "the harness writes this event down itself, from the tables of `step_begin`; leave it out"
    )
