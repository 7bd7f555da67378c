"""Two prefixes are one node if and only if they are the same tokens under the same identity,
position by position.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cachewitness.core.events import Group, Header, Pool, Submitted, Version
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.trie import Trie
from cachewitness.core.trace_format import Media

HEADER = Header("test", "manager", [Pool(0, 4, [0])], [Group(0, "full", 4)])

tokens = st.lists(st.integers(1, 2), min_size=1, max_size=6)
media = st.lists(
    st.builds(Media, st.integers(0, 5), st.integers(1, 3), st.sampled_from(["cat", "dog"])),
    max_size=1,
)
requests = st.tuples(
    tokens, st.sampled_from(["", "x"]), st.sampled_from(["", "tuned"]), media, st.booleans()
)
Drawn = tuple[list[int], str, str, list[Media], bool]


def _spelled(request: Drawn) -> list[object]:
    """Return what the prefix of each length is, written out."""
    text, salt, adapter, items, late = request
    shown = [
        (
            token,
            next((item.hash for item in items if item.at <= position < item.at + item.length), ""),
        )
        for position, token in enumerate(text)
    ]
    return [(salt, adapter, late, tuple(shown[:length])) for length in range(len(text) + 1)]


@settings(max_examples=200, deadline=None)
@given(st.lists(requests, min_size=2, max_size=5))
def test_prefixes_share_nodes_exactly_up_to_where_they_differ(
    drawn: list[tuple[list[int], str, str, list[Media], bool]],
) -> None:
    """Salt and adapter divide from the start, an image from its first position; half of the
    requests come after new weights.
    """
    drawn.sort(key=lambda request: request[4])
    ledger = Ledger(HEADER)
    nodes = []
    for index, (text, salt, adapter, items, late) in enumerate(drawn):
        if late and ledger.requests.weights == 0:
            ledger.apply(Version(weights=1))
        ledger.apply(Submitted(r=str(index), tokens=text, salt=salt, adapter=adapter, media=items))
        nodes.append(
            (_spelled((text, salt, adapter, items, late)), ledger.requests[str(index)].nodes)
        )
    for spelled, mine in nodes:
        assert len(mine) == len(spelled)
        for others, its in nodes:
            for length in range(min(len(mine), len(its))):
                assert (mine[length] == its[length]) == (spelled[length] == others[length])


@settings(max_examples=100, deadline=None)
@given(tokens, tokens, st.integers(0, 6))
def test_an_ancestor_is_the_prefix_of_that_length(
    one: list[int], other: list[int], depth: int
) -> None:
    """Walking up from any node meets the node of each shorter prefix; a node no longer than
    asked is its own.
    """
    trie = Trie()
    root = trie.root("id")
    for text in (one, other):
        nodes = [root, *trie.extend(root, text)]
        assert [trie.depth[node] for node in nodes] == list(range(len(text) + 1))
        assert trie.ancestor(nodes[-1], depth) == nodes[min(depth, len(text))]


def test_extending_in_two_goes_is_extending_in_one() -> None:
    """Nodes depend on what they spell, not on how it was said."""
    trie = Trie()
    root = trie.root("id")
    first = trie.extend(root, [1, 2])
    assert first + trie.extend(first[-1], [3, 4]) == trie.extend(root, [1, 2, 3, 4])


def test_marks_are_no_tokens() -> None:
    """A marked symbol is never equal to a token id, however large the vocabulary."""
    trie = Trie()
    root = trie.root("id")
    marked = trie.marked((7, "cat"))
    assert trie.extend(root, [7]) != trie.extend(root, [marked])
    assert trie.marked((7, "cat")) == marked != trie.marked((7, "dog"))
    assert marked > 1 << 42


def test_same_tokens_sees_past_identity_only() -> None:
    """It tells prefixes that differ in identity from prefixes that differ in tokens."""
    trie = Trie()
    plain = trie.extend(trie.root("one"), [1, 2, 3])[-1]
    salted = trie.extend(trie.root("two"), [1, 2, 3])[-1]
    image = trie.extend(trie.root("one"), [1, trie.marked((2, "cat", 0)), 3])[-1]
    other = trie.extend(trie.root("two"), [1, 2, 4])[-1]
    longer = trie.extend(plain, [4])[-1]
    assert trie.same_tokens(plain, salted) and trie.same_tokens(salted, image)
    assert not trie.same_tokens(plain, other) and not trie.same_tokens(plain, longer)
