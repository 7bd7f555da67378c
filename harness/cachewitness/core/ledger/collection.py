"""Lets the ledger forget what is over, so that its size is that of what is live and not that of the
history.

A prefix matters while a page holds it, a key names it or a request that has not ended spells it; a
request matters while it may be spoken of: it is live, holds something, runs, or is the one that
wrote a page or published a key. Everything else is forgotten, not at once but when as many prefixes
have come as there were, so that it costs little; and a request only the second time, since an
engine may say the last of it a little after its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import NOTHING, Content

PREFIXES = 1 << 15
"""Nothing is forgotten before this number of prefixes has come."""


class Collector:
    """Watches over the size of a ledger. `limit` is the number of prefixes at which it forgets."""

    def __init__(self, ledger: Ledger, limit: int = PREFIXES) -> None:
        self._ledger = ledger
        self._least = limit
        self.limit = limit
        self._over: set[str] = set()

    @property
    def due(self) -> bool:
        """Whether there is enough to forget."""
        return len(self._ledger.trie) > self.limit

    def collect(self) -> Collection[int]:
        """Forget requests that are over and prefixes that are nobody's; return the nodes that
        stand for nothing now.
        """
        ledger = self._ledger
        self._forget_requests()
        # Requests first, because the prefix of each of them would keep its nodes.
        live = {
            node
            for content in self._contents()
            for node in (content.node, *(span.node for span in content.older))
        }
        live.update(node for prefixes in ledger.keys.published for node in prefixes)
        live.update(request.nodes[-1] for request in ledger.requests.values())
        live.update(
            node for request in ledger.requests.values() for node in request.dropped.values()
        )
        live.update(nodes[-1] for nodes in ledger.requests.draft_prefixes.values())
        gone = ledger.trie.collect(node for node in live if node >= 0)
        # A node that is gone will be given to another prefix, so nothing may refer to it by number.
        for records in ledger.records.values():
            records.verified.clear()
        for ended in ledger.keys.ended:
            for node in [node for node in ended if node in gone]:
                del ended[node]
        # The limit grows with what is live, so that collecting costs a constant share of the work;
        # requests that go next time are not counted as live.
        waiting = sum(len(ledger.requests[r].tokens) for r in self._over)
        self.limit = len(ledger.trie) + max(self._least, len(ledger.trie) - waiting)
        return gone

    def _contents(self) -> Iterator[Content]:
        """Yield what every page that was touched holds, and what copies under way carry."""
        for records in self._ledger.records.values():
            for record in records.values():
                yield record
                if record.left is not None:
                    yield record.left
        for images in self._ledger.contents.copying.values():
            yield from images

    def _forget_requests(self) -> None:
        ledger = self._ledger
        pages_of = self._ledger.holdings.pages_of
        named = {
            key.r
            for records in ledger.records.values()
            for record in records.values()
            for key in record.keys
        }
        named |= {content.writer for content in self._contents() if content.node != NOTHING}
        named |= {run.r for begun in ledger.open_steps.values() for run in begun.runs}
        over = {
            r
            for r, request in ledger.requests.items()
            if not (request.live or pages_of.get(r) or r in named)
        }
        # Only who was over at the last collection too: an engine may report the last of a request
        # a little after its end.
        for r in over & self._over:
            del ledger.requests[r]
            pages_of.pop(r, None)
        self._over = over - self._over
