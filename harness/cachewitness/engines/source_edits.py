"""A fault as data: pieces of an engine's source, vLLM's or another's, each at its place, and
what stands there instead.
"""

from __future__ import annotations

from typing import NamedTuple

from cachewitness.core.trace_format import Level
from cachewitness.engines.mutant import Mutant, mutant
from cachewitness.engines.source_patch import ACTIVE, Patches, planted


class Edit(NamedTuple):
    """A piece of a function's source (`old`, see `Patches.text`) and what replaces it; `owner`
    is its class or empty.
    """

    module: str
    owner: str
    name: str
    old: str
    new: str


def edited(
    *edits: Edit,
    name: str,
    what: str,
    mirrors: str = "",
    anomaly: str,
    checker: str,
    group: str,
    level: Level = "manager",
    built: bool = False,
    engine: str = "vllm",
    patches: Patches = ACTIVE,
) -> Mutant:
    """Return the fault that is an engine's source with these pieces replaced; `what` says in a
    sentence what goes wrong then.

    `built`: a piece is in what builds the engine's objects, so they are built with it. `patches`
    are those of its package.
    """

    def plant(patches: Patches) -> None:
        for edit in edits:
            patches.text(*edit)

    plant.__doc__ = what
    made = mutant(
        name=name,
        mirrors=mirrors,
        anomaly=anomaly,
        checker=checker,
        group=group,
        engines=(engine,),
        level=level,
    )
    return made(planted(plant, built=built, patches=patches))
