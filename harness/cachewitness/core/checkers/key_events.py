"""What an engine tells routers of its keys, held against the keys that it has.

A router sends a request to the engine that has most of its prompt cached. It knows that from events
alone: which blocks were stored, removed or cleared. So they have to be well formed, and to say what
is: a block that is told as stored has a key over these tokens, behind this parent, of this
identity; one that is told as removed has lost it. Two pages may have the same key, and each is
told, so a router counts. Events of another medium, as those of a connector's memory, are judged by
what they prove by themselves (`event_stream`).

Events may come later than the keys that they tell of. When a step has ended, everything has to be
told by the end of the operation; what a reset or new weights end, by the end of the next operation
in which a step ends.

Sources: vLLM 0.33.0, `distributed/kv_events.py`, `v1/core/block_pool.py`; vllm-project/vllm#44451,
#58119.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from cachewitness.core.attention_span import first_needed, has_window
from cachewitness.core.checkers.event_stream import FALSE, EventStream, Problem, misshapen
from cachewitness.core.checkers.finding import DROPPED_TOKENS, LEFT_WINDOW, Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.router_view import (
    ANYWHERE,
    OTHER_MEDIA,
    Meant,
    RouterView,
    UnreportedKey,
    UnreportedKeys,
)
from cachewitness.core.checkers.tier_hits import unreported
from cachewitness.core.checkers.wording import count, with_detail
from cachewitness.core.events import (
    Group,
    Header,
    Hit,
    KeyEvents,
    KvCleared,
    KvRemoved,
    KvStored,
    KvUnreadable,
    Preempted,
    Publish,
    ResetDone,
    StepEnd,
    Unpublish,
    Version,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import UNKNOWN
from cachewitness.core.ledger.requests import RequestRecord

NO_GROUP = -1


class KeyEventsTrue(Checker):
    """Events report to routers what the engine can hit."""

    name = "key-events"
    summary = (
        "routers are told of every key that begins or ends, in events that are well formed and true"
    )
    anomalies = ("malformed-key-event", "false-key-event", "lost-key-event")

    def __init__(self) -> None:
        super().__init__()
        self._rules = KeyEvents()
        self._groups: list[int] = []
        self._windows: list[Group] = []
        self._view = RouterView()
        self._tiers = EventStream()
        self._unreported = UnreportedKeys()
        self._perhaps: set[tuple[int, int]] = set()
        """(group, prefix) of which a page is taken for untold that perhaps never lost its key."""
        self._reached: dict[str, int] = {}
        """How far requests were computed that were preempted since: what their windows left behind
        by then may have been told of."""
        self._misled = False
        """Whether a false event was found since all keys were reported: what it does to the view
        is not found again."""
        self._fresh: set[tuple[int, int]] = set()
        """(group, prefix) of the keys that began since, where they may be told with the next step
        that ends."""

    def not_applicable(self, header: Header) -> str:
        if why := super().not_applicable(header):
            return why
        if header.rules.key_events is None:
            return "the engine tells nobody of its keys"
        self._rules = header.rules.key_events
        self._view.once = self._rules.once
        self._groups = [group.id for group in header.local_groups()]
        self._tiers.full = frozenset(
            group.id for group in header.local_groups() if group.kind == "full"
        )
        self._windows = [group for group in header.local_groups() if has_window(group)]
        return "" if header.rules.caching else "prefix caching is off"

    def handlers(self) -> dict[type, Handler]:
        return {
            Publish: self.on_publish,
            Unpublish: self.on_unpublish,
            KvStored: self.on_stored,
            KvRemoved: self.on_removed,
            KvCleared: self.on_cleared,
            KvUnreadable: self.on_unreadable,
            Hit: self.on_hit,
            StepEnd: self.on_step_end,
            Preempted: self.on_preempted,
            ResetDone: self.on_reset,
            Version: self.on_reset,
        }

    # --- keys -------------------------------------------------------------------------------------

    def on_publish(self, ledger: Ledger, event: Publish) -> Found:
        """Note a key that an event must report."""
        request = ledger.requests[event.r]
        node = request.node_of(event.length)
        if node != UNKNOWN and event.group in self._groups:
            self._view.touch(event.group, node)
            if not (self._rules.once and self._stands(event.group, event.length, node)):
                self._unreported.add(event.group, request, event.length)
            if self._rules.late:
                self._fresh.add((event.group, node))
            self._perhaps.discard((event.group, node))
        return None

    def _stands(self, group: int, length: int, node: int) -> bool:
        """Whether a page with a prefix was reported, or is yet to be."""
        return self._view.reports(group, node) or self._unreported.has(group, length, node)

    def on_unpublish(self, ledger: Ledger, event: Unpublish) -> Found:
        """Note which keys end."""
        record = ledger.record(event.group, event.page) if event.group in self._groups else None
        for key in record.keys if record is not None else ():
            if key.ended_by(event):
                self._view.touch(event.group, key.node)
        return None

    # --- what is told -----------------------------------------------------------------------------

    def on_stored(self, ledger: Ledger, event: KvStored) -> Iterator[Finding]:
        """Find the key of each block that the event reports."""
        self.opportunities += 1
        if event.medium:
            yield from self._of_tier(ledger, event, self._tiers.stored(event, self._rules))
            return
        self._tiers.heard(event)
        group = self._group(event.group)
        problems = [
            *self._no_such_group(event.group),
            *self._shapeless(event),
            *self._orphaned(event),
        ]
        for problem in problems:
            yield _finding_of(event, "malformed-key-event", _stored(event), problem)
        if group == NO_GROUP or event.block_size < 1:
            return
        if self._rules.again and all(
            self._is_reported(ledger, group, name) for name in event.hashes
        ):
            wrong = next(
                filter(
                    None,
                    map(
                        partial(self._reported_again, ledger, group, event),
                        range(len(event.hashes)),
                    ),
                ),
                "",
            )
        else:
            wrong = self._stored_anew(ledger, group, event)
        if wrong:
            self._misled = True
            brief = OTHER_MEDIA if wrong.startswith(OTHER_MEDIA) else ""
            yield _finding_of(event, "false-key-event", _stored(event), wrong, brief)

    def _stored_anew(self, ledger: Ledger, group: int, event: KvStored) -> str:
        """Find the key of each block of an event, and take it into the routers' view; return
        what is wrong with the first.
        """
        behind = self._view.prefix(event.parent)
        start = ledger.trie.depth[behind] if behind >= 0 else 0
        meanings = self._unreported.take(group, event, behind, start, self._view)
        for place, name in enumerate(event.hashes):
            meant = next(meanings, Meant([]))
            again = self._rules.again and not meant.keys and self._view.pages(group, name)
            wrong = (
                self._reported_again(ledger, group, event, place)
                if again
                else self._store(group, event, place, name, meant)
            )
            if wrong:
                self._view.note(event.hashes[place:])
                return wrong
        return ""

    def _is_reported(self, ledger: Ledger, group: int, name: str) -> bool:
        """Whether routers know of a page that has the prefix of a name, and no page with it is
        still unreported.
        """
        pages = self._view.pages(group, name)
        node = self._view.prefix(name)
        if not pages or node < 0 or not self._unreported.has(group, ledger.trie.depth[node], node):
            return pages > 0
        return (group, node) in self._perhaps and pages >= len(
            ledger.keys.published[group].get(node, ())
        )

    def _store(self, group: int, event: KvStored, place: int, name: str, meant: Meant) -> str:
        """Take into the routers' view a block that may mean any of some keys; return what is
        wrong with that.
        """
        keys = meant.keys
        unclear = self._view.is_unclear(name)
        if not meant.sure:
            wrong = [] if unclear else [key.wrong_identity(event, place) for key in keys]
            self._view.store_unclear(name, group, [key.node for key in keys])
            return wrong[0] if wrong and all(wrong) else ""
        if keys:
            node = keys[0].node
            known = self._view.is_for_another(name, keys[0].node)
            self._view.store(group, name, node)
            return (
                f"{name!r} names another prefix already"
                if known
                else keys[0].wrong_identity(event, place)
            )
        if unclear or self._unreported.was_forgotten(group):
            self._view.store_unclear(name, group, [])
            return ""
        other = self._unreported.elsewhere(group, event)
        return (
            "the key over these tokens is behind another prefix"
            if other
            else "no key that was not told is over them"
        )

    def _reported_again(self, ledger: Ledger, group: int, event: KvStored, place: int) -> str:
        """Return what is wrong with a block that was hit and reported before; it adds no page."""
        name = event.hashes[place]
        tokens = event.tokens[: (place + 1) * event.block_size]
        for key in list(ledger.keys.published[group].get(self._view.prefix(name), {}).values())[:1]:
            request = ledger.requests[key.r]
            known = UnreportedKey(request, key.length, key.node, request.nodes)
            if not known.ends_with(tokens, self._view.prefix(event.parent)):
                return f"{name!r} was told over other tokens, or behind another prefix"
            return known.wrong_identity(event, place)
        return ""

    def on_removed(self, ledger: Ledger, event: KvRemoved) -> Iterator[Finding]:
        """Take blocks out of the routers' view."""
        self.opportunities += 1
        if event.medium:
            yield from self._of_tier(ledger, event, self._tiers.removed(event))
            return
        group = self._group(event.group)
        if not event.hashes:
            yield _finding_of(event, "malformed-key-event", "that keys are gone", "it names none")
        for problem in self._no_such_group(event.group):
            yield _finding_of(
                event, "malformed-key-event", f"that {', '.join(event.hashes)} are gone", problem
            )
        for name in event.hashes if group != NO_GROUP else ():
            if not self._view.knows(name):
                yield _finding_of(
                    event,
                    "false-key-event",
                    f"that {name!r} of group {group} is gone",
                    "no event told that it was there",
                    f"no event stored {name!r}",
                )
            elif self._view.remove(group, name):
                self._may_be_stored_again(ledger, group, self._view.prefix(name))
            else:
                yield _finding_of(
                    event,
                    "false-key-event",
                    f"that {name!r} of group {group} is gone",
                    "every page of it was told to be",
                    f"{name!r} was removed from every page before",
                )

    def _may_be_stored_again(self, ledger: Ledger, group: int, node: int) -> None:
        """Note a key that stands although an event removed it: in one call it may have ended
        and begun on the same page.
        """
        for key in list(ledger.keys.published[group].get(node, {}).values())[:1]:
            self._unreported.add(group, ledger.requests[key.r], key.length)
            self._perhaps.add((group, node))

    def on_cleared(self, ledger: Ledger, event: KvCleared) -> Found:
        """Empty the routers' view: what has a key now is told behind that, be it that a hit, or a
        page that was told of before, was taken for it. What perhaps lost its key, and has none now,
        is not told any more.
        """
        self.opportunities += 1
        self._view.clear()
        for group, node in self._perhaps:
            if not ledger.keys.published[group].get(node):
                self._unreported.drop(group, node)
        rules = self._rules
        for group in self._groups if rules.again or rules.once else ():
            for keys in ledger.keys.published[group].values():
                key = next(iter(keys.values()))
                pages = 1 if rules.once else len(keys)
                self._unreported.expect(group, ledger.requests[key.r], key.length, pages)
        return None

    def on_unreadable(self, ledger: Ledger, event: KvUnreadable) -> Iterator[Finding]:
        """Find an event that routers drop."""
        self.opportunities += 1
        yield _finding_of(event, "malformed-key-event", "what they cannot read", event.why)

    def _of_tier(
        self, ledger: Ledger, event: KvStored | KvRemoved, problems: Iterator[Problem]
    ) -> Iterator[Finding]:
        """Return what an event about another medium proves by itself: its tokens go with its
        blocks, its names stand for one prefix, and what it removes was stored there.
        """
        what = _stored(event) if isinstance(event, KvStored) else "that blocks are gone"
        for problem in problems:
            found = _finding_of(event, problem.anomaly, f"of {event.medium}, {what}", problem.why)
            if isinstance(event, KvStored) and any(
                self._left_a_window(ledger, tokens)
                for tokens in (event.tokens, [*problem.before])
                if problem.anomaly == FALSE and tokens
            ):
                found.cause = LEFT_WINDOW
            if problem.dropped:
                found.cause = DROPPED_TOKENS
            yield found
        self.excused.update(self._tiers.excused)
        self._tiers.excused.clear()

    def _left_a_window(self, ledger: Ledger, tokens: list[int]) -> bool:
        """Whether these are the tokens of a block that a request has left behind: no query of it
        that is to come reads them in some group with a window.
        """
        size = len(tokens)
        return any(
            request.tokens[start : start + size] == tokens
            for request in ledger.requests.values()
            for start in range(0, self._left_behind(self._computed(request)) - size + 1, size)
        )

    def _computed(self, request: RequestRecord) -> int:
        """Return how far a request is, or was before it was preempted."""
        return max(request.computed, self._reached.get(request.r, 0))

    def on_preempted(self, ledger: Ledger, event: Preempted) -> Found:
        """Note how far a request was."""
        if self._windows:
            self._reached[event.r] = self._computed(ledger.requests[event.r])
        return None

    def _left_behind(self, computed: int) -> int:
        """Return how many tokens lie in front of all that the query at `computed` reads in the
        group with the shortest window; 0 without windows.
        """
        return max((first_needed(group, computed) for group in self._windows), default=0)

    def _group(self, named: int) -> int:
        """Return the group that an event means, which may be unsaid where there is one alone."""
        if named == NO_GROUP and len(self._groups) == 1:
            return self._groups[0]
        return named if named in self._groups else NO_GROUP

    def _no_such_group(self, named: int) -> Iterator[str]:
        if self._group(named) == NO_GROUP:
            groups = ", ".join(map(str, self._groups))
            yield (
                f"it names {'no group' if named == NO_GROUP else f'group {named}'}, and the device"
                f" has {groups}"
            )

    def _shapeless(self, event: KvStored) -> Iterator[str]:
        """Yield why hashes, tokens and block size do not go together."""
        if wrong := misshapen(event, gaps=self._rules.gaps):
            yield wrong
        elif not event.hashes or len(event.hashes) * event.block_size < len(event.tokens):
            self.excused["key_events gaps"] += 1

    def _orphaned(self, event: KvStored) -> Iterator[str]:
        """Yield why its parent is nobody's."""
        if (
            event.parent
            and self._view.prefix(event.parent) == ANYWHERE
            and not self._view.knows(event.parent)
        ):
            if self._rules.orphans:
                self.excused["key_events orphans"] += 1
            else:
                yield f"its parent {event.parent!r} is a prefix that no event told"

    # --- what is not told -------------------------------------------------------------------------

    def on_hit(self, ledger: Ledger, event: Hit) -> Iterator[Finding]:
        """Find what is loaded from another tier that no router knows of."""
        if not self._rules.tiers or event.tier == "local":
            return
        self.opportunities += 1
        tokens, blocks = unreported(ledger, event, self._tiers)
        if tokens:
            yield Finding(
                anomaly="lost-key-event",
                r=event.r,
                sentence=(
                    f"Let {event.r} be given {count(event.reported, 'token')}, of which"
                    f" {blocks} are loaded from another tier, {tokens} the first; however no event"
                    " that stands told routers of them: a contradiction."
                ),
                line=f"{event.r} loads tokens {tokens} from a tier; routers know of no such block",
            )

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        """Check at the end of this operation that events reported every key."""
        self.deferred = [partial(self._difference, event=event)]
        return None

    def on_reset(self, ledger: Ledger, event: ResetDone | Version) -> Found:
        """Wait for the next step that ends: vLLM publishes what a reset has ended with the
        outputs of a step. A reset that was refused leaves the other tiers what they have.
        """
        self.deferred.clear()
        if not isinstance(event, ResetDone) or (event.ok and event.tier != "local"):
            self._tiers.reset()
        return None

    def operation_over(self, ledger: Ledger) -> Found:
        found = super().operation_over(ledger)
        self._settle(ledger)
        return found

    def _difference(self, ledger: Ledger, event: StepEnd) -> Finding | None:
        """Return how the routers' view differs from the keys; if it does not, everything was
        told.
        """
        differences = [
            found for found in self._view.differences(ledger) if found[:2] not in self._fresh
        ]
        if not differences or self._misled:
            return None
        group, node, reported, there = differences[0]
        prefix = f"{count(ledger.trie.depth[node], 'token')}" if node >= 0 else "a forgotten prefix"
        more = f", and so of {len(differences) - 1} more" if len(differences) > 1 else ""
        sentence = (
            f"Let step {event.step} end. {count(there, 'page')} of group {group} can be hit as one"
            f" prefix of {prefix}; however routers were told of {reported}{more}: a contradiction."
        )
        line = (
            f"{count(there, 'page')} of group {group} can be hit as a prefix of {prefix}; routers"
            f" know {reported}"
        )
        return Finding(anomaly="lost-key-event", sentence=sentence, line=line, seq=event.seq)

    def _settle(self, ledger: Ledger) -> None:
        self._view.settle(ledger, self._fresh)
        self._unreported.clear(self._fresh)
        self._fresh.clear()
        self._perhaps.clear()
        self._misled = False

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Forget prefixes whose nodes stand for others now, and requests that are over."""
        self._fresh = {place for place in self._fresh if place[1] not in gone}
        self._view.forget(gone)
        self._unreported.forget(gone)
        self._reached = {r: to for r, to in self._reached.items() if r in ledger.requests}


def _stored(event: KvStored) -> str:
    behind = f"behind {event.parent!r}" if event.parent else "at the beginning of a prompt"
    return f"that group {event.group} has stored {count(len(event.tokens), 'token')} {behind}"


def _finding_of(
    event: KvStored | KvRemoved | KvUnreadable,
    anomaly: str,
    what: str,
    why: str,
    brief: str = "",
) -> Finding:
    group = ""
    if not isinstance(event, KvUnreadable) and event.group != NO_GROUP:
        group = f", group {event.group}"
    line = f"wrong {event.__struct_config__.tag} event, step {event.step}{group}"
    return Finding(
        anomaly=anomaly,
        sentence=(
            f"Let routers be told in step {event.step} {what}; however {why}: a contradiction."
        ),
        line=with_detail(line, brief or why),
    )
