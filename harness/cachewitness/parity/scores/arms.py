"""The arms of a comparison: how each opens the engine, salts its requests and warms the cache.

Cold means that nothing can be hit. A run with caching on is warm from its second question on, since
all share their examples, so the cold arms have caching off, or, on a server that always caches, a
salt of its own for every request.

A hit at the end of the shared prefix and an exact replay each see faults that the other misses:
after a replay hardly any token is computed that could repair a wrong state; a shared prefix is
resumed by many different questions. What an answer left is read behind it alone, so there is an arm
of two turns; its prompts are its own, and so are its cold runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.parity.scores.restored import Need

Warm = Literal["", "prefix", "replay", "turn"]

OFF, AGAIN = "off", "off-again"
USUAL = (OFF, AGAIN, "miss", "hit", "replay")
TIER = "tier"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the same questions.

    `own_salts` gives each request a salt of its own, otherwise all of the arm share one. `warm` is
    what is asked before, without being counted: the shared prefixes, the very same prompts, or the
    first turns of conversations whose second turns count. `reset` then forgets what the engine's
    own pools hold. `turns_of` is, of an arm that asks second turns, the one that asks the first
    turns: itself, or the one that a cold run repeats.
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
    turns_of: str = ""


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
        Arm(
            name="turns",
            summary="each question behind another one and the engine's own answer to that",
            need="turns",
            warm="turn",
            turns_of="turns",
        ),
        Arm(
            name="turns-drafts",
            summary="as turns, tokens guessed and verified",
            need="drafted turns",
            drafts=True,
            warm="turn",
            turns_of="turns-drafts",
        ),
    )
}


def usual(*, tiered: bool) -> str:
    """Return the arms of a run in which the user chose none: where the policy keeps its prefixes
    in a tier, that one too.
    """
    return ",".join((*USUAL, TIER) if tiered else USUAL)


def is_noise(name: str) -> bool:
    """Whether an arm is a cold one that is run once more."""
    return name == AGAIN or name.endswith(f"-{AGAIN}")


def is_cold(name: str) -> bool:
    """Whether an arm is one that others are compared with."""
    return name == OFF or name.endswith(f"-{OFF}") or is_noise(name)


def cold_of(name: str) -> tuple[str, str]:
    """Return the cold arm that an arm is compared with, and the one that repeats that."""
    before = f"{name}-" if ARMS[name].turns_of else ""
    return f"{before}{OFF}", f"{before}{AGAIN}"


def named(names: str) -> list[Arm]:
    """Return the arms of a list separated by commas, the cold ones first. An arm of turns is
    followed by cold runs of its own.

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
    arms = [arm for name, arm in ARMS.items() if name in chosen]
    return [one for arm in arms for one in (arm, *_own_cold(arm, again=AGAIN in chosen))]


def refuse_turns(arms: Sequence[Arm], policy: str) -> None:
    """Raise UsageError if any of the arms asks second turns, which a policy that keeps nothing of
    answers cannot restore.
    """
    for arm in arms:
        if arm.turns_of:
            raise UsageError(
                f"--arms: policy {policy} keeps nothing of answers, so a second turn reads nothing"
                f" of them; leave `{arm.name}` out"
            )


def _own_cold(arm: Arm, *, again: bool) -> list[Arm]:
    """Return the cold runs that an arm of turns has for itself, since its prompts are its own."""
    if not arm.turns_of:
        return []
    names = cold_of(arm.name)
    return [
        msgspec.structs.replace(ARMS[kind], name=name, turns_of=arm.name)
        for kind, name in zip((OFF, AGAIN)[: 1 + again], names, strict=False)
    ]
