"""The arms: how requests are answered, and what must have happened for an arm to count as
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

DRAFTS = 3
TIER_PAGES = 512
EVERYWHERE = ("prefix-end", "replay")


class Happened(msgspec.Struct):
    """What one run of a trace did. Tokens of lookups `asked` and, by group kind, `restored`; all
    others are counts.

    `mid_prefill` and `mid_decode` count preemptions, `from_tier` pages brought back, `stood` and
    `fell` steps with such drafts, `in_flight` steps scheduled before an earlier one had run;
    `unanswered` names requests whose prompt was never computed to its end.
    """

    lookups: int = 0
    hits: int = 0
    asked: int = 0
    restored: dict[str, int] = {}
    restored_rows: int = 0
    mid_prefill: int = 0
    mid_decode: int = 0
    from_tier: int = 0
    stood: int = 0
    fell: int = 0
    in_flight: int = 0
    unanswered: list[str] = []


Missing = Callable[[Happened], str]


@dataclass(frozen=True)
class Arm:
    """An arm by name. `options` are added to those of the configuration; `missing` says what did
    not happen, if anything.

    `places` are the stories that it is told in, the two where faults differ most in every arm.
    `salted`: every request has a salt of its own. `evicts`: the device's cache is reset between
    producer and consumer. `preempts`: requests lose their pages in prefill and in decode.
    `odd_chunks`: steps have budgets of many sizes. `again`: the trace is run twice, and the second
    time must repeat every bit.
    """

    name: str
    summary: str
    missing: Missing
    options: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = (*EVERYWHERE, "together")
    salted: bool = False
    evicts: bool = False
    preempts: bool = False
    odd_chunks: bool = False
    again: bool = False


def _first(*conditions: tuple[bool, str]) -> str:
    return next((why for happened, why in conditions if not happened), "")


def _nothing_restored(h: Happened) -> str:
    return _first((h.hits == 0, "something was restored although nothing may be"))


def _missed(h: Happened) -> str:
    return _first(
        (h.lookups > 0, "nobody looked anything up"),
        (h.hits == 0, "somebody hit in spite of salts"),
    )


def _hit(h: Happened) -> str:
    empty = [kind for kind, tokens in h.restored.items() if tokens == 0]
    return _first(
        (h.hits > 0, "nobody hit anything"),
        (not empty, f"nothing was restored in the {', '.join(empty)} group"),
        (h.restored_rows > 0, "no row that was compared depends on restored pages"),
    )


def _from_tier(h: Happened) -> str:
    return _hit(h) or _first((h.from_tier > 0, "nothing was brought back from the second tier"))


def _preempted(h: Happened) -> str:
    return _hit(h) or _first(
        (h.mid_prefill > 0, "nobody was preempted in its prefill"),
        (h.mid_decode > 0, "nobody was preempted in its decode"),
    )


def _drafted(h: Happened) -> str:
    return _hit(h) or _first((h.stood > 0, "no draft stood"), (h.fell > 0, "no draft fell"))


def _in_flight(h: Happened) -> str:
    return _hit(h) or _first((h.in_flight > 0, "no step was scheduled while another was in flight"))


ARMS: tuple[Arm, ...] = (
    Arm("off", "no caching", _nothing_restored, {"enable_caching": False}, places=EVERYWHERE),
    Arm(
        "off-again",
        "no caching, twice: every bit must be repeated",
        _nothing_restored,
        {"enable_caching": False},
        again=True,
    ),
    Arm("miss", "caching, a salt of its own for every request", _missed, salted=True),
    Arm(
        "hit",
        "warm: consumers find what producers left",
        _hit,
        places=(*EVERYWHERE, "together", "siblings", "turns", "alike", "interrupted", "pressure"),
    ),
    Arm(
        "tier",
        "the device's cache is reset, the second tier is kept",
        _from_tier,
        {"tier_pages": TIER_PAGES},
        evicts=True,
        places=(*EVERYWHERE, "together", "turns", "alike"),
    ),
    Arm(
        "preempted",
        "warm, and everybody loses its pages in prefill and in decode",
        _preempted,
        preempts=True,
        places=(*EVERYWHERE, "together", "turns", "pressure"),
    ),
    Arm(
        "chunked",
        "warm, in chunks of other sizes",
        _hit,
        odd_chunks=True,
        places=(*EVERYWHERE, "siblings", "interrupted"),
    ),
    Arm(
        "drafts",
        "warm, with drafts that stand and fall",
        _drafted,
        {"num_speculative_tokens": DRAFTS},
        places=(*EVERYWHERE, "turns", "guessed"),
    ),
    Arm(
        "async",
        "warm, each step scheduled before the one before has run",
        _in_flight,
        {"async_depth": 1},
        places=(*EVERYWHERE, "together", "pressure"),
    ),
)
BY_NAME = {arm.name: arm for arm in ARMS}


def arm_of(trace_name: str) -> Arm | None:
    """Return the arm that a trace is named after (`hit/replay`); None for any other trace."""
    return BY_NAME.get(trace_name.partition("/")[0])
