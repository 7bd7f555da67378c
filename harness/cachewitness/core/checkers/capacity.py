"""Room for whole requests: whether the pools hold one beyond doubt, alone or beside others.

What an engine declares that it takes (`max_prompt`), it holds alone. For any other request the
bound below is used, which has a spare block for every group: an engine may need it for a state that
it writes while it still reads another, or for a window that moves.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm

from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.page_bound import pages_of


def promised(ledger: Ledger, r: str) -> bool:
    """Whether the engine declares that it holds the request alone: its prompt is no longer than
    `max_prompt`, and it generated no more than a token beyond that length.
    """
    most = ledger.header.rules.max_prompt
    request = ledger.requests[r]
    return request.prompt_tokens <= most and len(request.tokens) <= most + 1


def fits_alone(ledger: Ledger, r: str, reserved: int = 0) -> bool:
    """Whether a request can run while no other does, by what the engine declares or beyond doubt,
    beside so many reserved pages of each pool.
    """
    return promised(ledger, r) or fits_beyond_doubt(ledger, r, reserved)


def fits_beyond_doubt(ledger: Ledger, r: str, reserved: int) -> bool:
    """Whether a request would fit alone, beside so many reserved pages of each pool, with a spare
    block for every group.
    """
    return _roomy(ledger, r, lambda pool: reserved)


def asks_enough(ledger: Ledger, r: str, tokens: int) -> bool:
    """Whether so many tokens are a whole block of every group, or all that the request lacks."""
    request = ledger.requests[r]
    left = len(request.tokens) - request.computed
    return left > 0 and tokens >= min(left, lcm(*(group.block_size for group in ledger.local)))


def feasible(ledger: Ledger, r: str, tokens: int, reserved: int) -> bool:
    """Whether a request that is asked for so many tokens can be given them now.

    Room is room for all of its tokens, beside what is reserved: an engine may admit a request only
    if the whole of it fits.
    """
    held = ledger.holdings.held
    return asks_enough(ledger, r, tokens) and _roomy(ledger, r, lambda pool: reserved + held[pool])


def owed(ledger: Ledger, r: str, tokens: int, reserved: int) -> bool:
    """Whether it is feasible, or the request has the pools alone and the engine declares that it
    holds it so.
    """
    held = ledger.holdings.held
    alone = sum(held.values()) == ledger.holdings.pages_of.get(r, 0)
    promise = alone and promised(ledger, r) and asks_enough(ledger, r, tokens)
    return promise or feasible(ledger, r, tokens, reserved)


def room_beside(ledger: Ledger, r: str, held: dict[int, int]) -> bool:
    """Whether the whole of a request would fit beyond doubt beside so many held pages of each
    pool.
    """
    return _roomy(ledger, r, lambda pool: held.get(pool, 0))


def _roomy(ledger: Ledger, r: str, taken: Callable[[int], int]) -> bool:
    tokens = len(ledger.requests[r].tokens)
    drafts = ledger.header.rules.drafts
    return all(
        records.grows
        or records.capacity - taken(pool)
        >= pages_of([group for group in ledger.local if group.pool == pool], tokens, drafts)
        for pool, records in ledger.records.items()
    )
