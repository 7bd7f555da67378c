"""The arms of a comparison: how each opens the engine, salts its requests and warms the cache.

Cold means that nothing can be hit. A run with caching on is warm from its second question on, since
all share their examples, so the cold arms have caching off, or, on a server that always caches, a
salt of its own for every request.

A hit at the end of the shared prefix and an exact replay each see faults that the other misses:
after a replay hardly any token is computed that could repair a wrong state; a shared prefix is
resumed by many different questions.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.parity.scores.restored import Need

Warm = Literal["", "prefix", "replay"]

OFF, AGAIN = "off", "off-again"
USUAL = (OFF, AGAIN, "miss", "hit", "replay")
TIER = "tier"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the same questions.

    `own_salts` gives each request a salt of its own, otherwise all of the arm share one. `warm` is
    what is asked before, without being counted: the shared prefixes, or the very same prompts.
    `reset` then forgets what the engine's own pools hold.
    """

    name: str
    summary: str
    need: Need
    caching: bool = True
    tier: bool = False
    preempt: bool = False
    drafts: bool = False
    scarce: bool = False
    own_salts: bool = False
    warm: Warm = ""
    reset: bool = False


ARMS = {
    arm.name: arm
    for arm in (
        Arm(
            name=OFF,
            summary="no caching: what the others are compared with",
            need="cold",
            caching=False,
            own_salts=True,
        ),
        Arm(
            name=AGAIN,
            summary="no caching once more: the noise floor",
            need="cold",
            caching=False,
            own_salts=True,
        ),
        Arm(
            name="miss",
            summary="caching on, a salt for each request: what is written, nothing read",
            need="cold",
            own_salts=True,
        ),
        Arm(name="hit", summary="the shared prefixes are cached", need="restored", warm="prefix"),
        Arm(
            name="replay",
            summary="the very same prompts are cached",
            need="restored",
            warm="replay",
        ),
        Arm(
            name=TIER,
            summary="the same prompts, each from a second tier after a reset",
            need="tier",
            tier=True,
            own_salts=True,
            warm="replay",
            reset=True,
        ),
        Arm(
            name="preempted",
            summary="requests lose their place and resume",
            need="preempted",
            preempt=True,
        ),
        Arm(
            name="drafts",
            summary="as hit, tokens guessed and verified",
            need="drafted",
            drafts=True,
            warm="prefix",
        ),
        Arm(
            name="scarce",
            summary="as hit, but too little space to keep it",
            need="evicted",
            scarce=True,
            warm="prefix",
        ),
    )
}


def usual(*, tiered: bool) -> str:
    """Return the arms of a run in which the user chose none: where the policy keeps its prefixes
    in a tier, that one too.
    """
    return ",".join((*USUAL, TIER) if tiered else USUAL)


def named(names: str) -> list[Arm]:
    """Return the arms of a list separated by commas, the cold ones first.

    Raises UsageError for an unknown arm, for one that is named twice, and if there is nothing to
    compare.
    """
    from cachewitness._util.names import nearest

    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in ARMS:
            raise UsageError(f"--arms: no arm is called {name!r}{nearest(name, list(ARMS))}")
    if OFF not in chosen or not set(chosen) - {OFF, AGAIN}:
        raise UsageError(
            f"--arms: {names!r} compares nothing; name {OFF} and an arm beside {AGAIN}"
        )
    return [arm for name, arm in ARMS.items() if name in chosen]
