"""How many pages a request takes at most, and how long a prompt the pools of an engine hold beyond
doubt.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness.core.events import Group, Header


def pages_of(groups: Sequence[Group], tokens: int, drafts: int) -> int:
    """Return a bound on the pages of one pool that a request takes up to so many tokens: one spare
    block for every group.

    Drafts take pages ahead, and a page of their own each where a state is written after every
    token.
    """
    pages = 0
    for group in groups:
        recurrent = group.kind == "recurrent"
        upto = tokens if recurrent else tokens + 2 * drafts
        pages += -(-upto // group.block_size) + 1 + drafts * recurrent
    return pages


def longest_held(header: Header, limit: int) -> int:
    """Return how many tokens a prompt may have, `limit` at most, so that the pools hold it beyond
    doubt, with a token more; 0 if they hold none so.
    """
    rooms = [
        (pool.pages - len(pool.null), [g for g in header.local_groups() if g.pool == pool.id])
        for pool in header.pools
        if not pool.grows
    ]
    least = 0
    most = limit
    while least < most:
        middle = (least + most + 1) // 2
        if all(
            pages_of(groups, middle + 1, header.rules.drafts) <= room
            for room, groups in rooms
            if groups
        ):
            least = middle
        else:
            most = middle - 1
    return least
