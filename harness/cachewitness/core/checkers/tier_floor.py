"""The longest prefix that an engine can serve if device and second tier are looked up separately
(`Rules.tier`).

Such an engine does not fetch single keys that the device lacks: it resumes at what the device holds
alone, or at what the tier holds alone, whichever is longer. In the tier a window takes the whole
chunks that it reaches into, and where all groups of a chunk are one object, every chunk of the
prefix is needed for every group.

Where a request is looked up there once (`once`), that is after it came, and nothing says when: so
what counts was keyed before.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachewitness.core.checkers.lookup import Lookup
from cachewitness.core.events import Group, TierRules
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.requests import RequestRecord

ANY_TIME = 1 << 62
"""Later than any operation."""
NO_TIME = -1
"""Before any operation."""


def longest_apart(
    ledger: Ledger, request: RequestRecord, tier: TierRules, before: int = ANY_TIME
) -> int:
    """Return the longest length, in tokens, that the device alone or the tier alone serves; 0 if
    there is none.

    What the tier adds counts if it is as much as the engine declares that it loads, and was keyed
    `before` an operation, and if it loads behind such a hit of the device at all.
    """
    device = Lookup(ledger, request, device_alone=True).longest_common()
    chunks = [group.chunk for group in ledger.local if group.kind == "chunked"]
    if tier.whole_chunks and any(device % chunk for chunk in chunks):
        return device
    stored = longest_in_tier(ledger, request, tier, before)
    return stored if stored - device >= max(tier.least, 1) else device


def longest_in_tier(
    ledger: Ledger, request: RequestRecord, tier: TierRules, before: int = ANY_TIME
) -> int:
    """Return what the tier alone serves; a speculative look-up there gives back what one on the
    device does.
    """
    limit = len(request.tokens) - 1
    for position in range(limit // tier.chunk * tier.chunk, 0, -tier.chunk):
        if all(
            _all_held(
                ledger, ledger.stored[g.id], request, needed_in_tier(g, position, tier), before
            )
            for g in ledger.local
        ):
            return max(position - ledger.header.rules.eagle_drop_tokens, 0)
    return 0


def needed_in_tier(group: Group, position: int, tier: TierRules) -> Iterable[int]:
    """Return the lengths whose keys a group needs in the tier for a hit that ends with a chunk."""
    size = group.block_size
    chunk = tier.chunk
    if group.kind == "full":
        return range(size, position + 1, size)
    ends = range(chunk, position + 1, chunk) if tier.together else [position]
    if group.kind == "recurrent":
        return ends
    kept = (
        group.window
        if group.window < chunk
        else chunk
        if tier.together
        else -(-group.window // chunk) * chunk
    )
    return {
        length
        for end in ends
        for length in range(max(end - kept, 0) // size * size + size, end + 1, size)
    }


def _all_held(
    ledger: Ledger,
    groups: Iterable[int],
    request: RequestRecord,
    lengths: Iterable[int],
    before: int,
) -> bool:
    keys = [
        (ledger.keys.published[group], ledger.records[ledger.groups[group].pool])
        for group in groups
    ]
    return all(
        any(
            key.usable and records[key.page].keyed < before
            for pages, records in keys
            for key in pages.get(request.nodes[length], {}).values()
        )
        for length in lengths
    )
