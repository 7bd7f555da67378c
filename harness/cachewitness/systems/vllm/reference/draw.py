"""Draws configurations of vLLM: cache groups and options.

One to four groups of different kinds with unequal block sizes, windows on, one before and one
behind a block boundary, retention, hash blocks, drafts, steps in flight, a second tier and how long
a copy from or to it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, lcm
from typing import Any

from cachewitness.core.trace_format import GroupSpec, Layout, Level
from cachewitness.workloads.source import Source

UNIT_MAX = 48
"""The longest scheduler block that is drawn, in tokens: prompts are some times as long."""
_SIZES = (2, 3, 4, 6, 8, 12, 16)
Options = dict[str, Any]

_OLDER: tuple[Options, ...] = (
    {"release": "0.23"},
    {"release": "0.24"},
    {"release": "0.26"},
    {"release": "0.29"},
    {"release": "0.31", "mamba_cache_mode": "all"},
)
"""Releases with other rules. None is drawn with EAGLE: before 0.30 it lost the replay boundary,
which is no news."""


def draw(
    source: Source, layout: Layout | None, level: Level, *, historic: bool
) -> tuple[Layout, Iterator[Options]]:
    """Return the layout that the user chose, or a drawn one, and options to try on it; see
    `cachewitness.engines.drawing.Draw`.
    """
    layout = layout or _layout(source)
    return layout, _options(source, layout, level, historic=historic)


def _layout(source: Source) -> Layout:
    """Draw one to four groups. States of all recurrent groups have one block size, as vLLM wants
    it.
    """
    count = source.choice((1, 2, 2, 2, 3, 3, 3, 4))
    kinds = [source.choice(("full", "full", "sliding", "recurrent")) for _ in range(count)]
    sizes = [source.choice(_SIZES) for _ in range(count)]
    state = source.choice(_SIZES)
    equal = source.chance(35)
    sizes = [
        state if kind == "recurrent" or equal else size
        for kind, size in zip(kinds, sizes, strict=True)
    ]
    if lcm(*sizes) > UNIT_MAX:
        sizes = [max(sizes)] * count
    groups = [_group(source, kind, size) for kind, size in zip(kinds, sizes, strict=True)]
    return Layout(
        name="-".join(map(_named, groups)),
        groups=groups,
        story="drawn",
        source="harness/cachewitness/sessions/fuzz/draw.py",
    )


def _group(source: Source, kind: Any, size: int) -> GroupSpec:
    if kind != "sliding":
        return GroupSpec(kind=kind, block_size=size)
    window = max(source.integer(1, 3) * size + source.integer(-1, 1), 1)
    if source.chance(20):
        window = source.integer(1, size)
    return GroupSpec(kind=kind, block_size=size, window=window)


def _named(group: GroupSpec) -> str:
    return f"{group.kind}{group.block_size}" + (f"w{group.window}" if group.window else "")


def _options(source: Source, layout: Layout, level: Level, *, historic: bool) -> Iterator[Options]:
    sizes = [group.block_size for group in layout.groups]
    unit = lcm(*sizes)
    common = gcd(*sizes)
    # The order of the draws is part of every stored seed: to move one changes the traces of all
    # seeds.
    older = historic and source.chance(20)
    if older:
        yield source.choice(_OLDER)
    if source.chance(2):
        yield {"enable_caching": False, "mamba_cache_mode": "none"}
    if source.chance(75):
        yield {"retention_interval": source.choice((None, 0, 0, unit, 2 * unit, 4 * unit))}
    finest = common
    if source.chance(40):
        finest = source.choice([size for size in range(1, common + 1) if common % size == 0])
        yield {"hash_block_size": finest}
    if (
        not older
        and source.chance(25)
        and all(_beside_eagle(group, unit, finest, layout) for group in layout.groups)
    ):
        yield {"use_eagle": True}
        marked = [index for index in range(len(layout.groups)) if source.chance(50)]
        if marked and source.chance(50):
            yield {"eagle_groups": marked}
    if historic and source.chance(10):
        yield {"pin_shared_prefix_boundary": source.chance(50)}
    if historic and source.chance(15):
        yield {"free_list": source.choice(("fifo", "lifo"))}
    if source.chance(12):
        yield {"watermark": source.choice((0.05, 0.1))}
    if level == "scheduler":
        yield from _scheduling(source, unit)
    if source.chance(15):
        yield {"pages_per_snapshot": source.integer(2, 3)}


def _beside_eagle(group: GroupSpec, unit: int, finest: int, layout: Layout) -> bool:
    """Whether EAGLE is drawn beside a group, which it is not beside all windows.

    Not beside windows of one token, of shorter blocks than other groups, or with states longer than
    the blocks that are hashed, of `finest` tokens: vLLM 0.33.0 loses hits and replay boundaries
    there, or keeps states in vain, and so does its reference. `fixtures/findings` has the traces.
    """
    if group.kind != "sliding":
        return True
    coarse = all(other.kind != "recurrent" or other.block_size == finest for other in layout.groups)
    return group.block_size == unit and group.window > 1 and coarse


def _scheduling(source: Source, unit: int) -> Iterator[Options]:
    draw = source.integer(0, 99)
    if draw < 35:
        yield {"num_speculative_tokens": source.integer(1, 5)}
    elif draw < 55:
        yield {"async_depth": source.integer(1, 2)}
    if source.chance(35):
        yield {"tier_pages": source.choice((4, 16, 48, 96))}
        yield {"tier_delay": source.choice((0, 1, 1, 2, 3))}
    if source.chance(40):
        yield {"max_num_seqs": source.integer(1, 3)}
    if source.chance(40):
        yield {"max_num_batched_tokens": unit * source.choice((1, 2, 3)) + source.choice((0, 0, 1))}
    if source.chance(30):
        yield {"max_model_len": 6 * unit + source.integer(1, unit) + 1}
