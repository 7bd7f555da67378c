"""What a router has to foresee, by its own contract: the truth about keys, less what it says
that it leaves out.

The keys are the ledger's, which no event says. What a name stands for a router learns from events
alone: where those of a sparse group have tokens of more blocks than names, nobody can say which
blocks are meant, and less than the keys allow may be foreseen. A router that does not count has a
block no more once one of its pages is gone, so there the events say what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import lcm
from typing import Any, NamedTuple

from cachewitness.core.attention_span import needed_lengths
from cachewitness.core.events import Group, Header
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.sessions.route.wire import KINDS

Identity = tuple[str, str]
"""A salt and an adapter."""
Prefix = tuple[Identity, tuple[int, ...]]
Has = Callable[[Group, int], bool]
"""Whether a group has the block that ends at a length of the prompt in question."""


class Bounds(NamedTuple):
    """What may be foreseen of a prompt, in tokens, and what all groups of the worker could give."""

    least: int
    most: int
    keys: int


class Reported:
    """What the events of one worker say that reached the router: which prefix a name stands for,
    and which blocks a router has that does not count.
    """

    def __init__(self) -> None:
        self._prefixes: dict[int, Prefix] = {}
        self._named: set[Prefix] = set()
        self._set: set[tuple[int, int]] = set()

    def take(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take in a message, of which only the device's blocks count."""
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self._prefixes.clear()
                self._named.clear()
                self._set.clear()
            elif event["medium"] == "GPU":
                blocks = {(event["group_idx"], name) for name in event["block_hashes"]}
                if event["type"] == "BlockRemoved":
                    self._set -= blocks
                else:
                    self._set |= blocks
                    self._learn(event)

    def _learn(self, event: Mapping[str, Any]) -> None:
        """Learn what names stand for, of an event that names each of its blocks behind a prefix
        that was named.
        """
        size: int = event["block_size"]
        names: Sequence[int] = event["block_hashes"]
        tokens: Sequence[int] = event["token_ids"]
        adapter = event["lora_name"] or ""
        first = (event["extra_keys"][0] or [])[bool(adapter) :] if names else []
        behind: Prefix | None = ((first[0] if first else "", adapter), ())
        if event["parent_block_hash"] is not None:
            behind = self._prefixes.get(event["parent_block_hash"])
        if behind is None or len(names) * size != len(tokens):
            return
        identity, before = behind
        for index, name in enumerate(names):
            prefix = (identity, (*before, *tokens[: (index + 1) * size]))
            self._prefixes[name] = prefix
            self._named.add(prefix)

    def names(self, prefix: Prefix) -> bool:
        """Whether some name stands for a prefix."""
        return prefix in self._named

    def uncounted(self, group: int) -> set[Prefix]:
        """Return the prefixes of which a router has a block that does not count pages."""
        return {
            self._prefixes[name]
            for number, name in self._set
            if number == group and name in self._prefixes
        }


def unjudged(header: Header) -> str:
    """Return why nobody can be held to foresee what an engine of this header hits; empty if
    somebody can.
    """
    rules = header.rules
    groups = header.local_groups()
    if not rules.caching:
        return "prefix caching is off"
    if rules.key_events is None:
        return "the engine publishes no key events"
    if len(groups) < len(header.groups) or rules.tier is not None:
        return "a second tier answers too, and its events are not driven here"
    if rules.eagle_drop_tokens:
        return "a speculative look-up gives tokens back, which no event says"
    if rules.alignment != lcm(*(group.block_size for group in groups)):
        return "hits may end inside a block, of which no router can say how many tokens it has"
    if any(group.answer_window for group in groups):
        return "a window over the answer is no kind that events name"
    return ""


def bounds(
    ledger: Ledger,
    reported: Reported,
    nodes: Sequence[int],
    prompt: Prefix,
    *,
    counts: bool,
    all_groups: bool,
) -> Bounds:
    """Return what may be foreseen of a prompt of which `nodes` are the prefixes by length.

    `counts`, `all_groups`: what the router declares.
    """
    published = ledger.keys.published
    identity, tokens = prompt
    every = ledger.local
    full = [group for group in every if KINDS[group.kind] == KINDS["full"]]
    sets = {} if counts else {group.id: reported.uncounted(group.id) for group in full}

    def key(group: Group, length: int) -> bool:
        return nodes[length] in published[group.id]

    def has(group: Group, length: int) -> bool:
        uncounted = sets.get(group.id)
        return key(group, length) if uncounted is None else _prefix(length) in uncounted

    def surely(group: Group, length: int) -> bool:
        if not counts and group.id not in sets:
            return False
        return has(group, length) and reported.names(_prefix(length))

    def _prefix(length: int) -> Prefix:
        return identity, tokens[:length]

    looked_at = every if all_groups else full
    return Bounds(
        least=longest(looked_at, len(tokens), surely),
        most=longest(looked_at, len(tokens), has),
        keys=longest(every, len(tokens), key),
    )


def longest(groups: Sequence[Group], tokens: int, has: Has) -> int:
    """Return how many tokens of a prompt all groups have what they need for; its last token is
    always computed.
    """
    if not groups:
        return 0
    unit = lcm(*(group.block_size for group in groups))
    length = (tokens - 1) // unit * unit
    while length > 0:
        if all(has(group, end) for group in groups for end in needed_lengths(group, length)):
            return length
        length -= unit
    return 0
