"""Which list of known findings belongs to a release of vLLM, and to the connectors behind it."""

from __future__ import annotations

from collections.abc import Mapping

from cachewitness.systems.vllm.source import FIRST, LAST, release_of

LISTED = ("0.30", "0.31", "0.32", "0.33")
"""The releases that have a list of their own; those before share one."""
LISTED_CONNECTORS = ("lmcache-chunks", "lmcache-strict", "offloading-sync")
"""The connectors of the newest release that have a list beside that of their system."""


def known_lists(version: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files of a release, and those of its connector if one is behind it.

    A tree that does not know its version counts as the newest release, as it does elsewhere.
    """
    release = release_of(version)
    name = "{}.{}".format(*release) if release else LAST
    if name in LISTED:
        listed = [f"vllm-{name}.txt"]
    else:
        first = tuple(map(int, FIRST.split(".")))
        earlier = release is not None and first <= release < (0, 30)
        listed = ["vllm-before-0.30.txt"] if earlier else []
    connector = options.get("connector", "")
    if connector and name == LAST:
        behind = "lmcache" if connector.startswith("lmcache") else "connectors"
        listed.append(f"vllm-{name}-{behind}.txt")
        if connector.startswith("offloading") or connector == "multi":
            listed.append(f"vllm-{name}-offloading.txt")
        if connector in LISTED_CONNECTORS:
            listed.append(f"vllm-{name}-{connector}.txt")
    return tuple(listed)
