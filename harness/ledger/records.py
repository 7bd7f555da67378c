"""What one physical page holds: runs of tokens of known prefixes, or a recurrent state; and the keys that name it.

A page belongs to no group, because groups alias one pool; what is in it belongs to the group whose layers wrote it. A token
lies in the page at its position modulo the block size, so a ring overwrites what left its window, and a page that stands for
two blocks at once destroys one of them.
"""

from __future__ import annotations

from typing import Literal

from harness.history.events import Publish
from harness.ledger.trie import Trie

NOTHING = -1
"""The node of a page without content."""

KeyState = Literal["pending", "committed", "hollow", "withdrawn", "reset", "outdated"]
"""hollow: committed although its content was not there when its step ended."""


class Span:
    """A run of content in a page: tokens [start, stop) of the prefix `node`; for a state, start == stop."""

    __slots__ = ("node", "start", "stop")

    def __init__(self, start: int, stop: int, node: int) -> None:
        self.start, self.stop, self.node = start, stop, node


class Key:
    """A published prefix: `page` of `group` can be hit as the prefix `node` of `length` tokens."""

    __slots__ = ("companions", "group", "length", "node", "page", "r", "state", "step")

    def __init__(self, event: Publish, node: int, state: KeyState) -> None:
        self.group, self.page, self.r, self.length = event.group, event.page, event.r, event.length
        self.step, self.companions = event.step, event.companions
        self.node, self.state = node, state

    @property
    def usable(self) -> bool:
        """Whether a hit on it is allowed: pending in a step that may yet run, or committed over content."""
        return self.state == "committed" or self.state == "pending"


class PageRecord:
    """One physical page. `node`, `start`, `stop` describe the newest run; `older` the rest, if runs disagree.

    `group` is the group whose layers wrote it: to another one it is noise. `held_for` says for which group a holder took it.
    `state` tells a recurrent state from attention content, `zeroed` marks explicit zeros, `step` the step that wrote last.
    """

    __slots__ = (
        "group",
        "held_for",
        "holders",
        "keys",
        "node",
        "older",
        "start",
        "state",
        "step",
        "stop",
        "tainted",
        "writer",
        "zeroed",
    )

    def __init__(self) -> None:
        self.holders: dict[str, int] = {}
        self.held_for: dict[str, int] = {}
        self.keys: list[Key] = []
        self.writer = ""
        self.step = 0
        self.poison()

    def poison(self) -> None:
        """Forget the content."""
        self.node = NOTHING
        self.start = self.stop = 0
        self.group = NOTHING
        self.older: list[Span] = []
        self.state = self.tainted = self.zeroed = False

    def copy_content(self, other: PageRecord) -> None:
        """Take over the content of another page."""
        self.node, self.start, self.stop, self.group = other.node, other.start, other.stop, other.group
        self.older = list(other.older)
        self.state, self.tainted, self.zeroed = other.state, other.tainted, other.zeroed
        self.writer, self.step = other.writer, other.step

    def same_content(self, other: PageRecord) -> bool:
        """Whether two pages hold the same, as far as the newest run tells."""
        return (self.node, self.start, self.stop, self.group) == (other.node, other.start, other.stop, other.group)


def write_tokens(trie: Trie, record: PageRecord, nodes: list[int], start: int, stop: int, size: int) -> None:
    """Write tokens [start, stop) of the prefix that `nodes` spells into a page of `size` tokens of attention."""
    node = record.node
    if node == NOTHING:
        record.start, record.stop, record.node, record.zeroed = start, stop, nodes[stop], False
    elif record.older or record.start // size != start // size:
        _overwrite(trie, record, nodes, start, stop, size)
    elif start <= record.start and stop >= record.stop:
        record.start, record.stop, record.node, record.tainted = start, stop, nodes[stop], False
    elif record.start <= start <= record.stop and trie.ancestor(node, start) == nodes[start]:
        if stop >= record.stop:
            record.stop, record.node = stop, nodes[stop]
        elif trie.ancestor(node, stop) != nodes[stop]:
            _overwrite(trie, record, nodes, start, stop, size)
    else:
        _overwrite(trie, record, nodes, start, stop, size)


def _overwrite(trie: Trie, record: PageRecord, nodes: list[int], start: int, stop: int, size: int) -> None:
    """Lay a run over other content; what is left of that content on either side stays, joined to the run where it fits.

    A token lies in the page at its position modulo `size`, so a run of another column destroys what lies at its places.
    """
    low, high, node = start, stop, nodes[stop]
    rest = []
    for span in [*record.older, Span(record.start, record.stop, record.node)]:
        shift = (start // size - span.start // size) * size
        first, last = start - shift, stop - shift
        if span.start < first:
            upto = min(span.stop, first)
            before = trie.ancestor(span.node, upto)
            if upto == start and before == nodes[start]:
                low = span.start
            else:
                rest.append(Span(span.start, upto, before))
        if span.stop > last:
            if shift == 0 and span.start <= stop and trie.ancestor(span.node, stop) == nodes[stop]:
                high, node = span.stop, span.node
            else:
                rest.append(Span(max(span.start, last), span.stop, span.node))
    record.older, record.start, record.stop, record.node = rest, low, high, node
