"""What retention may drop and what it must keep: replay boundaries, shared-prefix boundaries where
declared, and a sparse rest.

The rules are stated in lengths of prefixes and in what the engine declares of itself (interval,
alignment, whether shared-prefix boundaries count), so no mask of any engine is consulted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from math import lcm

from cachewitness.core.attention_span import needed_lengths
from cachewitness.core.checkers.finding import OFF_GRID, Finding
from cachewitness.core.checkers.key_floor import resumed_inside
from cachewitness.core.checkers.lookup import Lookup
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, describe_retention, key_of
from cachewitness.core.events import Group, Header, Hit, Publish, Rules, StepEnd, Unpublish
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.requests import RequestRecord

Lost = Callable[[str, int, int, str], Finding]
"""Says of a request, a length in tokens and a group what was lost there, and how."""


class ReplayBoundaryRetained(Checker):
    """Replay boundary retained: an exact replay of a prefilled prompt resumes at the latest aligned
    boundary.

    Where the engine declares that shared-prefix boundaries are kept, the same rule holds for a
    state written at one: another request has resumed there before, so later ones will.
    """

    name = "replay-boundary-retained"
    summary = (
        "when a prompt was prefilled, retention drops nothing that a replay needs to resume at the"
        " last aligned boundary, whatever the interval; nor a state at a shared-prefix boundary,"
        " where the engine declares that it keeps those"
    )
    anomalies = ("lost-replay-boundary", "lost-shared-prefix-boundary")

    def __init__(self) -> None:
        super().__init__()
        self._owed: dict[tuple[int, int], tuple[str, Lost]] = {}
        """By group and prefix that must stay: the request that needs it, and the finding if it is
        dropped."""
        self._shared_prefix_boundaries: dict[str, int] = {}

    def not_applicable(self, header: Header) -> str:
        if reason := super().not_applicable(header):
            return reason
        if header.rules.captures is not None:
            return "prefixes are captured, not keyed: `captures` judges that"
        if header.rules.late_keys:
            return (
                "a key may begin steps behind the prompt's end (`late_keys` of the engine's rules)"
            )
        return "" if header.rules.caching else "prefix caching is off"

    def handlers(self) -> dict[type, Handler]:
        return {Hit: self.on_hit, StepEnd: self.on_step_end, Unpublish: self.on_unpublish}

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Note where the request leaves a prefix that full attention still holds, if the engine
        says that it keeps that.
        """
        self._shared_prefix_boundaries[event.r] = left_shared_prefix(
            ledger, ledger.requests[event.r]
        )
        return None

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Owe nothing at prefixes without a key, which retention cannot drop; forget boundaries
        of requests that are over.
        """
        self._owed = {place: owed for place, owed in self._owed.items() if place[1] not in gone}
        self._shared_prefix_boundaries = {
            r: point for r, point in self._shared_prefix_boundaries.items() if r in ledger.requests
        }

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        """When a prompt is complete, note the keys that its replay needs; they may come until
        the operation is over.
        """
        for run in ledger.requests.ran_in(event):
            request = ledger.requests[run.r]
            if run.start < request.prompt_tokens <= run.stop:
                self._expect_replay_boundary(ledger, request, event)
            if run.start < self._shared_prefix_boundaries.get(run.r, 0) <= run.known:
                self._expect_shared_prefix_boundary(ledger, request, event)
        return None

    def _expect_shared_prefix_boundary(
        self, ledger: Ledger, request: RequestRecord, event: StepEnd
    ) -> None:
        """Expect the states at a request's shared-prefix boundary, once it is past: those that
        were written are kept.
        """
        r = request.r
        length = self._shared_prefix_boundaries[request.r]
        node = request.nodes[length]
        for group in ledger.local:
            written = group.kind == "recurrent" and length in request.states.get(group.id, ())
            if written and group.id in ledger.header.rules.retention.groups:
                self.opportunities += 1
                self._owed.setdefault((group.id, node), (r, _lost_shared_prefix_boundary))
                lost = _lost_shared_prefix_boundary(r, length, group.id, "no key for it was kept")
                self._expect((group.id, node), _admitted(request), lost, event)

    def _expect(
        self, place: tuple[int, int], since: int, lost: Finding, event: StepEnd | Unpublish
    ) -> None:
        """Report a loss unless the (group, prefix) has a key, or had one that went lawfully,
        when the operation is over.
        """
        lost.seq = event.seq
        self.deferred.append(
            lambda ledger: lost if _dropped_by_retention(ledger, *place, since) else None
        )

    def on_unpublish(self, ledger: Ledger, event: Unpublish) -> Found:
        """Allow a kept boundary to go for want of room, with a reset or with new weights, but
        not by retention.
        """
        if event.reason != "retention":
            return None
        record = ledger.record(event.group, event.page)
        for key in record.keys if record else ():
            if (
                key.group != event.group
                or len(ledger.keys.published[event.group].get(key.node, ())) != 1
            ):
                continue
            if owed := self._owed.get((event.group, key.node)):
                r, lost = owed
                why = f"retention dropped it in step {event.step}"
                self._expect(
                    (event.group, key.node), 0, lost(r, key.length, event.group, why), event
                )
        return None

    def _expect_replay_boundary(
        self, ledger: Ledger, request: RequestRecord, event: StepEnd
    ) -> None:
        boundary, needed = replay_needs(ledger, request)
        resume = max(
            request.resume, request.went_on
        )  # what a session said before was no part of a prompt when it was written
        if boundary <= resume or not _states_written(ledger, request, boundary):
            return
        self.opportunities += 1
        r = request.r
        for group, node in needed:
            self._owed[group, node] = r, _lost
        cause = resumed_inside(ledger, request)
        since, needed = (
            _admitted(request),
            [(group, node) for group, node in needed if ledger.trie.depth[node] > resume],
        )
        places = [[place, *_matched_beyond(ledger, request, *place)] for place in needed]

        def judge(ledger: Ledger) -> Finding | None:
            for held in places:
                if all(_dropped_by_retention(ledger, *place, since) for place in held):
                    group, node = held[0]
                    first = count(ledger.trie.depth[node], "token")
                    why = f"no key for its first {first} was kept"
                    lost = _lost(r, boundary, group, why + _taken(ledger, group, node), event.seq)
                    lost.cause = cause
                    return lost
            return None

        self.deferred.append(judge)


class IntervalSparsity(Checker):
    """Interval sparsity: of what was written, only the interval and the reachable boundaries are
    kept.
    """

    name = "interval-sparsity"
    summary = (
        "kept = written ∩ (one boundary in each retention interval ∪ replay boundary ∪"
        " shared-prefix boundary)"
    )
    anomalies = ("over-dense-retention",)

    def __init__(self) -> None:
        super().__init__()
        self._shared_prefix_boundaries: dict[str, set[int]] = {}
        self._units: set[int] = set()
        self._needed: dict[tuple[str, int, int], set[int]] = {}
        """Per request, length of its prompt and group: what resuming at a reachable boundary needs,
        until the next look-up."""

    def not_applicable(self, header: Header) -> str:
        if reason := super().not_applicable(header):
            return reason
        if not header.rules.caching:
            return "prefix caching is off"
        if header.rules.retention.interval is not None:
            return ""
        return "retention is dense, as the engine declares no interval (`retention` of its rules)"

    def handlers(self) -> dict[type, Handler]:
        return {Hit: self.on_hit, Publish: self.on_publish}

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Forget the shared-prefix boundaries of requests that are over, which publish nothing
        any more.
        """
        self._needed.clear()
        self._shared_prefix_boundaries = {
            r: points
            for r, points in self._shared_prefix_boundaries.items()
            if r in ledger.requests
        }

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Note where the request leaves a prefix that one group still holds: that shared-prefix
        boundary is reachable.

        To the engine so is one of a key that it should not have, such as that of a step that was
        withdrawn: whoever hits that key is found by other rules.
        """
        retention = ledger.header.rules.retention
        self._needed.clear()
        if retention.shared_prefix_boundary and retention.interval is not None:
            request = ledger.requests[event.r]
            points = (
                Lookup(ledger, request).longest_of_each()
                | Lookup(ledger, request, unusable=True).longest_of_each()
            )
            if ledger.header.rules.tier is not None:
                points |= Lookup(ledger, request, device_alone=True).longest_of_each()
            self._shared_prefix_boundaries[event.r] = points
        return None

    def on_publish(self, ledger: Ledger, event: Publish) -> Found:
        """Expect a key of a governed group on the interval or at a reachable boundary of its
        publisher.

        What is reachable may be known only when the operation is over, if the look-up is reported
        after the key.
        """
        retention = ledger.header.rules.retention
        interval = retention.interval
        if interval is None or event.group not in retention.groups:
            return None
        self.opportunities += 1
        request = ledger.requests[event.r]
        group = ledger.groups[event.group]
        if _on_interval(ledger, group, event.length, interval) or _kept_aside(
            ledger, request, event
        ):
            return None
        if self._over_dense(ledger, event, interval) is not None:
            self.deferred.append(lambda ledger: self._over_dense(ledger, event, interval))
        return None

    def _over_dense(self, ledger: Ledger, event: Publish, interval: int) -> Finding | None:
        request = ledger.requests[event.r]
        group = ledger.groups[event.group]
        if _fetched(ledger, request, event):
            return None
        if event.length in self._needed_of(ledger, request, group):
            return None
        if group.kind == "sliding" and event.length - group.block_size in self._looked_beyond(
            ledger, request, group
        ):
            return None
        alignment = ledger.header.rules.alignment
        boundaries = self._reachable(ledger, request, group)
        off_grid = group.kind == "recurrent" and event.length % alignment > 0
        sentence = (
            f"Let {event.r} have a prompt of {count(request.prompt_tokens, 'token')} under a"
            f" retention interval of {interval}, which keeps {describe_retention(interval, boundaries)}; however"  # noqa: E501
            f" a key for its first {count(event.length, 'token')} was kept in group {event.group}"
            f" ({group.kind}){f', where no hit can end: hits are multiples of {alignment}' * off_grid}:"  # noqa: E501
            " a contradiction."
        )
        cause = OFF_GRID if off_grid else ""
        line = (
            f"{key_of(event.r, event.length)} was kept in page {event.page}; the retention interval"
            f" is {interval}"
        )
        return Finding(
            anomaly="over-dense-retention",
            r=event.r,
            sentence=sentence,
            line=line,
            seq=event.seq,
            cause=cause,
        )

    def _needed_of(self, ledger: Ledger, request: RequestRecord, group: Group) -> set[int]:
        """Return the lengths of prefixes that resuming at a reachable boundary needs of a group."""
        place = request.r, request.prompt_tokens, group.id
        needed = self._needed.get(place)
        if needed is None:
            boundaries = self._reachable(ledger, request, group)
            needed = self._needed[place] = {
                length for boundary in boundaries for length in needed_lengths(group, boundary)
            }
        return needed

    def _reachable(self, ledger: Ledger, request: RequestRecord, group: Group) -> set[int]:
        """Return the boundaries, in tokens, at which the request itself, a longer one or a
        sibling can be resumed.
        """
        rules = ledger.header.rules
        ends = {request.prompt_tokens - 1}
        if rules.eagle_drop_tokens or rules.retention.extension:
            ends.add(request.prompt_tokens)
        reachable = set()
        for boundary, unit in self._boundaries(ledger, ends | self._parted(ledger, request, group)):
            reachable |= {
                boundary,
                max(boundary - rules.eagle_drop_tokens, 0),
                max(boundary, rules.eagle_drop_tokens),
            }
            if rules.eagle_drop_tokens:
                reachable.add(boundary - unit)
            if not rules.retention.lowered:
                reachable.add(boundary + rules.eagle_drop_tokens)
        return {boundary for boundary in reachable if boundary > 0}

    def _parted(self, ledger: Ledger, request: RequestRecord, group: Group) -> set[int]:
        """Return where the request left a prefix that others share, in tokens, and how much
        lower a sibling can resume.
        """
        eagle_drop_tokens = ledger.header.rules.eagle_drop_tokens
        parted = self._shared_prefix_boundaries.get(request.r, set())
        if not eagle_drop_tokens:
            return parted
        parted = parted | {point - eagle_drop_tokens for point in parted}
        return {
            point for point in parted | {point - group.block_size for point in parted} if point >= 0
        }

    def _looked_beyond(self, ledger: Ledger, request: RequestRecord, group: Group) -> set[int]:
        """Return where the block begins that a speculative look-up matches beyond a resume
        position, and gives back.
        """
        if not ledger.header.rules.eagle_drop_tokens:
            return set()
        lowered = ledger.header.rules.retention.lowered
        ends = self._boundaries(ledger, {request.prompt_tokens - 1, request.prompt_tokens})
        positions = {max(boundary - unit, 0) if lowered else boundary for boundary, unit in ends}
        positions |= {
            boundary
            for boundary, _ in self._boundaries(ledger, self._parted(ledger, request, group))
        }
        return {position // group.block_size * group.block_size for position in positions}

    def _boundaries(self, ledger: Ledger, points: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the last boundary at or before each point, by unit, and the unit itself; all in
        tokens.
        """
        if not self._units:
            coarse = lcm(*(group.block_size for group in ledger.local))
            self._units = {
                ledger.header.rules.alignment,
                coarse,
                *(group.block_size for group in ledger.groups),
            }
        yield from ((point // unit * unit, unit) for point in points for unit in self._units)


def replay_needs(ledger: Ledger, request: RequestRecord) -> tuple[int, list[tuple[int, int]]]:
    """Return where an exact replay of a prompt resumes, in tokens, and the (group, prefix) whose
    keys it needs there.
    """
    rules = ledger.header.rules
    boundary = replay_boundary(rules, request.prompt_tokens, rules.alignment)
    return boundary, [
        (group.id, request.nodes[n])
        for group in ledger.local
        for n in needed_lengths(group, boundary)
    ]


def replay_boundary(rules: Rules, prompt: int, alignment: int) -> int:
    """Return where an exact replay of a prompt of so many tokens resumes, on a grid of so many."""
    # A speculative look-up may match the last token too: it gives back what it matches beyond.
    limit = prompt if rules.eagle_drop_tokens else prompt - 1
    return max(limit // alignment * alignment - rules.eagle_drop_tokens, 0)


def left_shared_prefix(ledger: Ledger, request: RequestRecord) -> int:
    """Return after how many tokens a request that is looked up leaves a prefix that full attention
    still holds, if the engine says that it keeps such boundaries; 0 if it leaves none.

    Where groups of full attention end at different lengths, or not at the end of a block of every
    group, where exactly the shared-prefix boundary lies is the engine's to choose. What a second
    tier has counts if it is asked key by key, as the device is.
    """
    rules = ledger.header.rules
    kept = rules.retention.shared_prefix_boundary and rules.retention.interval is not None
    if not kept or rules.eagle_drop_tokens:
        return 0
    ends = Lookup(ledger, request, device_alone=rules.tier is not None).longest_of_each("full")
    end = ends.pop() if len(ends) == 1 else 0
    return 0 if end % lcm(*(group.block_size for group in ledger.local)) else end


def _on_interval(ledger: Ledger, group: Group, length: int, interval: int) -> bool:
    """Whether the interval alone allows the key: a state on a multiple of it, a window block
    just before one.
    """
    if interval == 0:
        return False
    if group.kind == "recurrent":
        return interval <= group.block_size or length % interval == 0
    window_blocks = -(-(group.window - 1) // group.block_size)
    peeked = group.block_size if ledger.header.rules.eagle_drop_tokens else 0
    if window_blocks * group.block_size + peeked >= interval:
        return True
    before = -(length - peeked) % interval
    return length > peeked and before < window_blocks * group.block_size + peeked


def _kept_aside(ledger: Ledger, request: RequestRecord, event: Publish) -> bool:
    """Whether another tier has the key already: then a request can still resume there, and the page
    is loaded from the tier.

    It may have lost the key since the page was hit there, if bringing it back took time.
    """
    stored = ledger.stored[event.group]
    if not stored:
        return False
    node = request.nodes[event.length] if event.length < len(request.nodes) else None
    return any(node in ledger.keys.published[other] for other in stored) or _fetched(
        ledger, request, event
    )


def _fetched(ledger: Ledger, request: RequestRecord, event: Publish) -> bool:
    """Whether the page that is keyed was fetched from the pages of another tier by the request's
    hit.
    """
    stored = ledger.stored[event.group]
    if request.hit is None or not stored:
        return False
    pages = request.hit.pages
    columns = [zip(pages[event.group], pages[other], strict=False) for other in stored]
    return any(page == event.page and place >= 0 for pairs in columns for page, place in pairs)


def _matched_beyond(
    ledger: Ledger, request: RequestRecord, owner: int, node: int
) -> Iterator[tuple[int, int]]:
    """Yield the longer (group, prefix) that holds a length inside a block of full attention, if
    there is one.

    A speculative look-up matches its key and gives back what lies behind the length.
    """
    group = ledger.groups[owner]
    length = ledger.trie.depth[node]
    beyond = length + ledger.header.rules.eagle_drop_tokens
    if group.kind == "full" and length % group.block_size > 0 and beyond < len(request.nodes):
        yield owner, request.nodes[beyond]


def _dropped_by_retention(ledger: Ledger, group: int, node: int, since: int) -> bool:
    """Whether a prefix has no key, because none was published since a step began or because
    retention ended the last.
    """
    if node in ledger.keys.published[group]:
        return False
    ended = ledger.keys.ended[group].get(node)
    return ended is None or ended.reason == "retention" or ended.step < since


def _taken(ledger: Ledger, group: int, node: int) -> str:
    """Name the page that has a key for the same last block behind another prefix: a key that leaves
    the prefix out is taken. Empty if none has, or the prefix had a key of its own.
    """
    if node in ledger.keys.ended[group]:
        return ""
    size = ledger.groups[group].block_size
    if ledger.groups[group].kind == "recurrent":
        size = ledger.header.rules.alignment
    block = _last_symbols(ledger, node, size)
    for other, keys in ledger.keys.published[group].items():
        if block and _last_symbols(ledger, other, size) == block:
            page = next(iter(keys))
            return f", while page {page} has one for the same last block behind another prefix"
    return ""


def _last_symbols(ledger: Ledger, node: int, size: int) -> list[int]:
    """Return what the last `size` tokens of a prefix are; nothing if it has fewer."""
    trie = ledger.trie
    symbols: list[int] = []
    while len(symbols) < size and trie.depth[node] > 0:
        symbols.append(trie.symbol[node])
        node = trie.parent[node]
    return symbols if len(symbols) == size else []


def _admitted(request: RequestRecord) -> int:
    """Return the step in which the request was looked up: what it computes was written since."""
    return request.hit.step if request.hit else 0


def _states_written(ledger: Ledger, request: RequestRecord, boundary: int) -> bool:
    return all(
        boundary in request.states.get(group.id, ())
        for group in ledger.local
        if group.kind == "recurrent"
    )


def _lost(r: str, boundary: int, group: int, why: str, seq: int = -1) -> Finding:
    sentence = (
        f"Let {r} be prefilled. Everything that a replay needs to resume at {boundary} was written;"
        f" however in group {group} {why}: a contradiction."
    )
    return Finding(
        anomaly="lost-replay-boundary",
        r=r,
        sentence=sentence,
        line=f"a replay of request {r} cannot resume at {boundary}: in group {group} {why}",
        seq=seq,
        owed=boundary,
    )


def _lost_shared_prefix_boundary(r: str, length: int, group: int, why: str) -> Finding:
    sentence = (
        f"Let {r} have left, after {count(length, 'token')}, a prefix that somebody else shares: a"
        " shared-prefix boundary, which the engine declares that it keeps. The state there was"
        f" written; however in group {group} {why}: a contradiction."
    )
    line = f"request {r} left a shared prefix at {length}: in group {group} {why}"
    return Finding(anomaly="lost-shared-prefix-boundary", r=r, sentence=sentence, line=line)
