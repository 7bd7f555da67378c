"""How much is served: the fold over object groups. Chunks have 16 tokens, as all blocks, unless a name says otherwise.

`cached`, by group: the ends of the chunks that are there. Expected columns are chunks: those that a hit needs of each group.
Nothing is in the engine's own cache.
"""

from __future__ import annotations

from typing import Any

from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import LookupInput

CHUNK = 16
FULL, STATE = GroupSpec("full", CHUNK), GroupSpec("recurrent", CHUNK)


def cases() -> list[Case]:
    """Return every question."""
    return [*_attention(), *_states(), *_windows(), *_merged(), *_large_chunks()]


def ends(chunks: int, size: int = CHUNK) -> list[int]:
    """Return the ends of the first `chunks` chunks."""
    return [size * (index + 1) for index in range(chunks)]


def window(tokens: int) -> GroupSpec:
    """Return a sliding-window group; the window counts the query."""
    return GroupSpec("sliding", CHUNK, window=tokens)


def _case(
    name: str, comment: str, flags: str, groups: list[GroupSpec], cached: list[list[int]], tokens: int, **config: Any
) -> Case:
    asked = LookupInput(groups, tokens, cached, {"chunk_size": CHUNK, **config})
    return Case(f"lookup/{name}", comment, flags.split(), asked)


def _attention() -> list[Case]:
    return [
        *(
            _case(
                f"full/three-of-{n}",
                f"three chunks are there, the prompt has {n} tokens",
                "partial-chunk last-token",
                [FULL],
                [ends(3)],
                n,
            )
            for n in (1, 15, 16, 17, 47, 48, 49, 64)
        ),
        _case("full/hole", "the second chunk is missing", "hole", [FULL], [[16, 48]], 64),
        _case("full/nothing", "nothing is there", "partial-chunk", [FULL], [[]], 64),
    ]


def _states() -> list[Case]:
    groups = [FULL, STATE]
    return [
        *(
            _case(
                f"state/three-of-{n}",
                f"three chunks with their states, a prompt of {n}: the last token is left out",
                "last-token",
                groups,
                [ends(3), ends(3)],
                n,
            )
            for n in (16, 17, 47, 48, 49, 64)
        ),
        _case(
            "state/two-and-five",
            "states at 2 and 5: 5 is servable, 4 and 3 are not",
            "not-monotone",
            groups,
            [ends(6), [32, 80]],
            200,
        ),
        _case("state/two-alone", "the later state is gone", "not-monotone", groups, [ends(6), [32]], 200),
        _case("state/beyond-attention", "a state at 5, attention to 4", "group-fold", groups, [ends(4), [32, 80]], 200),
        _case("state/none", "attention without states", "group-fold", groups, [ends(6), []], 200),
        _case("state/alone", "states without attention", "group-fold", groups, [[], ends(6)], 200),
        _case(
            "state/hole-in-attention",
            "an attention chunk is missing before the state",
            "hole",
            groups,
            [[16, 32, 64, 80], [32, 80]],
            200,
        ),
        _case(
            "state/two-groups",
            "two recurrent groups are one object group: both at 2 alone",
            "group-fold",
            [FULL, STATE, STATE],
            [ends(6), [32, 80], [32, 64]],
            200,
        ),
        _case(
            "state/before-the-reserve",
            "release 0.5.4 does not leave the last token out",
            "last-token",
            groups,
            [ends(3), ends(3)],
            49,
            release="0.5.4",
        ),
    ]


def _windows() -> list[Case]:
    deep = ends(6)
    return [
        *(
            _case(
                f"window/{w}-with-{have}",
                f"a window of {w} tokens, the last {have} chunks before 96 are there",
                "window-chunks",
                [FULL, window(w)],
                [deep, deep[-have:]],
                200,
            )
            for w, have in ((16, 1), (17, 1), (17, 2), (32, 1), (32, 2), (33, 2), (33, 3), (96, 5), (96, 6), (97, 6))
        ),
        _case(
            "window/short-prefix",
            "a prefix shorter than the window needs all of itself",
            "window-chunks",
            [FULL, window(64)],
            [deep, [16, 32]],
            200,
        ),
        _case(
            "window/short-with-a-gap",
            "the same without its first chunk",
            "window-chunks hole",
            [FULL, window(64)],
            [deep, [32]],
            200,
        ),
        _case(
            "window/hole-outside",
            "a hole that the window does not reach",
            "hole not-monotone",
            [FULL, window(32)],
            [deep, [16, 80, 96]],
            200,
        ),
        _case(
            "window/hole-inside",
            "a hole in the window: an earlier length is served",
            "hole not-monotone",
            [FULL, window(32)],
            [deep, [32, 48, 96]],
            200,
        ),
        _case(
            "window/three",
            "window and state agree at 3 alone",
            "group-fold not-monotone",
            [FULL, window(32), STATE],
            [deep, [32, 48, 80, 96], [48, 64]],
            200,
        ),
        _case(
            "window/two",
            "windows of 17 and 64",
            "group-fold window-chunks",
            [FULL, window(17), window(64)],
            [deep, [64, 80, 96], ends(5)],
            200,
        ),
    ]


def _merged() -> list[Case]:
    groups, config = [FULL, STATE], {"separate_object_groups": False}
    return [
        _case("merged/all-there", "one object for all groups", "object-groups", groups, [ends(3), ends(3)], 64, **config),
        _case(
            "merged/state-skipped",
            "a chunk without a state was not stored, and ends the hit",
            "object-groups",
            groups,
            [ends(3), [16, 48]],
            64,
            **config,
        ),
        _case(
            "merged/window",
            "a window counts as everything",
            "object-groups",
            [FULL, window(32)],
            [ends(4), [48, 64]],
            100,
            **config,
        ),
    ]


def _large_chunks() -> list[Case]:
    groups = [GroupSpec("full", 16), GroupSpec("recurrent", 32)]
    return [
        *(
            _case(
                f"chunk-64/{n}",
                f"chunks of 64, three are there, a prompt of {n}",
                "partial-chunk last-token",
                groups,
                [ends(3, 64), ends(3, 64)],
                n,
                chunk_size=64,
            )
            for n in (64, 65, 191, 192, 193)
        ),
        _case(
            "chunk-64/last-state",
            "of a state a chunk keeps the last block: the last chunk's is there",
            "window-chunks",
            groups,
            [ends(3, 64), [192]],
            200,
            chunk_size=64,
        ),
    ]
