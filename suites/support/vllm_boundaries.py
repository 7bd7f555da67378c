"""What vLLM's groups hold and read at a position, by brute force and without any policy code."""

from __future__ import annotations

import math
from typing import Any

from cachewitness.core.trace_format import GroupSpec


def sizes(groups: list[GroupSpec], config: dict[str, Any]) -> tuple[int, int, int]:
    """Return (alignment, hash block, LCM of blocks): hits are multiples of the LCM, or of the
    hash block inside a block.
    """
    blocks = [group.block_size for group in groups]
    if len(groups) == 1 or not config.get("enable_caching", True):
        return math.lcm(*blocks), math.lcm(*blocks), math.lcm(*blocks)
    unit = config.get("hash_block_size") or math.gcd(*blocks)
    windows = all(group.block_size == unit for group in groups if group.kind == "sliding")
    inside = windows and any(
        group.kind == "recurrent" and group.block_size > unit for group in groups
    )
    inside = inside and config.get("release", "0.33") not in ("0.22", "0.23", "0.24", "0.25")
    return (unit if inside else math.lcm(*blocks)), unit, math.lcm(*blocks)


def read_by(group: GroupSpec, position: int) -> range:
    """Return the tokens that an attention query at `position` reads."""
    first = 0 if group.kind == "full" else max(0, position - group.window + 1)
    return range(first, position)


def holds(group: GroupSpec, cached: list[int], position: int) -> bool:
    """Whether a group can resume at `position`, given the prefixes whose last block, or whose
    state, it has.
    """
    if position == 0:
        return True
    if group.kind == "recurrent":
        return position in cached
    there = {
        token
        for length in cached
        for token in range((length - 1) // group.block_size * group.block_size, length)
    }
    partial = position % group.block_size
    if (
        partial and position not in cached
    ):  # a block that is not full is found under its own length alone
        return False
    return set(read_by(group, position)) <= there
