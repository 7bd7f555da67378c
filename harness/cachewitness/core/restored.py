"""How many tokens each group restored on a hit.

The engine reports the position at which a request resumes. A group without a page in the last
column before that position (the null block, or no column at all) restored nothing, whatever the
look-up reported. Kinds of group are counted apart, because a hit that restores only some of them is
the fault to find.
"""

from __future__ import annotations

from cachewitness.core.attention_span import columns
from cachewitness.core.events import Copy, Header, Hit

NOWHERE = -1
"""What a hit says of a column that another tier did not fill."""


def restored(header: Header, hit: Hit) -> dict[str, int]:
    """Return by group kind how many tokens were restored: those of the group of that kind that
    got least.
    """
    null = {pool.id: pool.null for pool in header.pools}
    least: dict[str, int] = {}
    for group in header.local_groups():
        _, column = columns(group, 0, hit.resume)
        pages = hit.pages[group.id]
        there = (
            0 < column <= len(pages)
            and pages[column - 1] >= 0
            and pages[column - 1] not in null[group.pool]
        )
        least[group.kind] = min(least.get(group.kind, hit.resume), hit.resume if there else 0)
    return least


def from_tier(header: Header, hit: Hit) -> dict[str, int]:
    """Return by group kind how many tokens another tier restored: those of the group of that kind
    that got least from there.

    A group has a hit from another tier if the last column before the resume position was fetched
    from one of its copies.
    """
    least: dict[str, int] = {}
    for group in header.local_groups():
        _, column = columns(group, 0, hit.resume)
        copies = [hit.pages[other.id] for other in header.groups if other.source_group == group.id]
        there = any(0 < column <= len(pages) and pages[column - 1] != NOWHERE for pages in copies)
        least[group.kind] = min(least.get(group.kind, hit.resume), hit.resume if there else 0)
    return least


def load_failed(header: Header, copy: Copy) -> bool:
    """Whether a copy is a load from another tier, and fails."""
    device = {group.pool for group in header.local_groups()} if copy.phase == "fail" else ()
    return any(move.dst_pool in device for move in copy.moves)


def loaded(header: Header, hit: Hit, stop: int) -> int:
    """Return how many of the first `stop` tokens of a hit lie in blocks of which some group's page
    was fetched from another tier.
    """
    local = header.local_groups()
    spans = {
        (column * group.block_size, min((column + 1) * group.block_size, stop))
        for group in header.groups
        if group not in local
        for column, page in enumerate(hit.pages[group.id])
        if page != NOWHERE
    }
    total = reached = 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
