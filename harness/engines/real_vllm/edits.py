"""A fault as data: pieces of vLLM's source, each at its place, and what stands there instead."""

from __future__ import annotations

from typing import NamedTuple

from harness.engines.mutant import Mutant, mutant
from harness.engines.real_vllm.patch import Patches, planted
from harness.trace.format import Height


class Edit(NamedTuple):
    """A piece of a function's source (`old`, see `Patches.text`) and what replaces it; `owner` is its class or empty."""

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
    height: Height = "manager",
    built: bool = False,
) -> Mutant:
    """Return the fault that is vLLM's source with these pieces replaced; `what` says in a sentence what goes wrong then.

    `built`: a piece is in what builds vLLM's objects, so they are built with it.
    """

    def plant(patches: Patches) -> None:
        for edit in edits:
            patches.text(*edit)

    plant.__doc__ = what
    made = mutant(name=name, mirrors=mirrors, anomaly=anomaly, checker=checker, group=group, engines=("vllm",), height=height)
    return made(planted(plant, built=built))
