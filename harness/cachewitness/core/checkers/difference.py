"""Says which token, or which part of an identity, tells what a page holds from what it should hold.

Two prefixes are the same content exactly if they are one node of the ledger's trie, so where they
part is where they differ: at the root if their salt, adapter or weights do, else at the first
position whose token, image or weights do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cachewitness.core.ledger.records import NOTHING, UNKNOWN, Content
from cachewitness.core.ledger.trie import Trie

IDENTITY = ("version of the weights", "salt", "adapter", "version of the adapter", "set of kernels")
"""The parts of what a token is computed with, in the order of
`cachewitness.core.ledger.requests.Identity`."""


def difference(
    trie: Trie, record: Content, nodes: Sequence[int], start: int, stop: int, r: str
) -> str:
    """Return what of tokens [start, stop) of request r the page does not hold, as in `token 3 is 7,
    where the page has 9`.

    `nodes[i]` is r's prefix of i tokens. Of what r wrote itself, a token that is not its own any
    more was a draft. For a recurrent state start == stop: the state after so many tokens. Empty if
    there is no such difference, or the page holds another kind of thing altogether.
    """
    if record.node in (NOTHING, UNKNOWN) or record.state != (start == stop):
        return ""
    draft = ", a draft that was rejected" if record.writer == r and not record.older else ""
    if record.state:
        return _parted(trie, record.node, nodes[stop], stop, draft) if record.stop == stop else ""
    at = start
    spans = record.spans()
    while at < stop:
        covering = [index for index, span in enumerate(spans) if span.start <= at < span.stop]
        if not covering:
            return f"token {at} is not in the page"
        newer = [span.start for span in spans[covering[-1] + 1 :] if span.start > at]
        span = spans[covering[-1]]
        upto = min([span.stop, stop, *newer])
        if detail := _parted(trie, trie.ancestor(span.node, upto), nodes[upto], upto, draft):
            return detail
        at = upto
    return ""


def _parted(trie: Trie, its: int, wanted: int, length: int, draft: str) -> str:
    """Return what tells two prefixes of a length apart; empty if they are the same."""
    if its == wanted:
        return ""
    while length and trie.parent[its] != trie.parent[wanted]:
        its, wanted, length = trie.parent[its], trie.parent[wanted], length - 1
    names = {symbol: mark for mark, symbol in trie.marks()}
    has, asked = (_parts(trie.symbol[node], names.get(trie.symbol[node])) for node in (its, wanted))
    at = length - 1
    if asked.token != has.token:
        return f"token {at} is {asked.token}, where the page has {has.token}{draft}"
    if asked.image != has.image:
        return f"token {at} is of {asked.image}, where the page has {has.image}"
    return _identity(asked.identity, has.identity, f" from token {at} on" if length else "")


class _Parts(NamedTuple):
    """What a symbol of the trie stands for; a root has neither token nor image."""

    token: str
    image: str
    identity: tuple[object, ...]


def _parts(symbol: int, mark: object) -> _Parts:
    if not isinstance(mark, tuple):
        return _Parts(str(symbol), "no image", ())
    if mark[0] == "root":
        return _Parts("", "", mark[1])
    if mark[0] == "unknown":
        return _Parts("one that was never accepted", "no image", ())
    token, image, identity = mark
    return _Parts(str(token), f"image {image!r}" if image else "no image", identity or ())


def _identity(wanted: tuple[object, ...], its: tuple[object, ...], where: str) -> str:
    """Return the first part in which two identities differ."""
    if not (wanted and its):
        return f"weights or adapter{where} are others than the page's"
    name, asked, has = next(
        each for each in zip(IDENTITY, wanted, its, strict=True) if each[1] != each[2]
    )
    return f"{name}{where} is {_format(asked)}, where the page has {_format(has)}"


def _format(value: object) -> str:
    return (
        repr(value) if isinstance(value, str) and value else "none" if value == "" else str(value)
    )
