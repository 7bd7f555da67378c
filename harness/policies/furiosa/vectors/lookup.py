"""What of a stored prefix a request can reuse: blocks of 16 tokens, a window of 33 unless a name says otherwise.

`cached` of the global group: the ends of its blocks, the last one perhaps inside its block; of the sliding group: the ends of
those blocks that still have a sliding block. `config`: options that the document leaves open.
"""

from __future__ import annotations

from typing import Any

from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import LookupInput

BLOCK = 16


def cases() -> list[Case]:
    """Return every question."""
    return [*_lengths(), *_windows(), *_holes(), *_options()]


def ends(tokens: int) -> list[int]:
    """Return the ends of the blocks of so many tokens, the last one where they end."""
    return [*range(BLOCK, tokens, BLOCK), tokens] if tokens else []


def _case(name: str, comment: str, flags: str, cached: list[list[int]], tokens: int, window: int = 33, **config: Any) -> Case:
    groups = [GroupSpec("full", BLOCK), GroupSpec("sliding", BLOCK, window=window)]
    return Case(f"lookup/{name}", comment, flags.split(), LookupInput(groups, tokens, cached, config))


def _lengths() -> list[Case]:
    return [
        *(
            _case(f"stored-100/{n}", f"100 tokens are stored, the prompt has {n}", "token-match last-token", [ends(100)] * 2, n)
            for n in (1, 2, 16, 17, 99, 100, 101, 112, 200)
        ),
        *(
            _case(
                f"stored-96/{n}",
                f"six whole blocks are stored, the prompt has {n}",
                "token-match last-token",
                [ends(96)] * 2,
                n,
            )
            for n in (95, 96, 97)
        ),
        _case("stored-nothing", "nothing is stored", "token-match", [[], []], 100),
        _case("stored-one", "one token is stored", "token-match", [[1], [1]], 100),
    ]


def _windows() -> list[Case]:
    return [
        _case(
            f"window/{window}-with-{16 * have}",
            f"a window of {window} reads {window - 1} before the query at 96; there are the last {16 * have}",
            "window-edge",
            [ends(96), ends(96)[-have:]],
            200,
            window,
        )
        for window, have in (
            (1, 1),
            (2, 1),
            (16, 1),
            (17, 1),
            (18, 1),
            (18, 2),
            (33, 1),
            (33, 2),
            (34, 2),
            (34, 3),
            (97, 6),
            (98, 5),
            (98, 6),
        )
    ]


def _holes() -> list[Case]:
    return [
        _case("hole/last", "the last sliding block is gone", "hole", [ends(96), [64, 80]], 200),
        _case("hole/last-but-one", "the one before it is gone: nothing later is of use", "hole", [ends(96), [48, 64, 96]], 200),
        _case(
            "hole/all-but-first",
            "only the first block's is there: less than a window",
            "hole window-edge",
            [ends(96), [16]],
            200,
        ),
        _case("hole/first-two", "the first two: a window from the start", "hole window-edge", [ends(96), [16, 32]], 200),
        _case("hole/middle", "an earlier window is whole", "hole", [ends(96), [32, 48, 96]], 200),
        _case("hole/all", "no sliding block is left", "hole", [ends(96), []], 200),
        _case("hole/prompt-ends-before", "the hole lies behind the prompt", "hole last-token", [ends(96), [16, 32, 48]], 50),
        _case(
            "hole/inside-the-last",
            "the prompt ends inside the last block that has one",
            "hole token-match",
            [ends(96), [32, 48, 64]],
            60,
        ),
    ]


def _options() -> list[Case]:
    return [
        *(
            _case(
                f"by-block/{n}",
                f"hits end with blocks: 100 are stored, the prompt has {n}",
                "token-match",
                [ends(100)] * 2,
                n,
                hit_granularity="block",
            )
            for n in (96, 97, 98, 200)
        ),
        *(
            _case(
                f"tail-of-w/{have}",
                f"W tokens are kept behind a boundary, not W − 1: there are {16 * have}",
                "window-edge",
                [ends(96), ends(96)[-have:]],
                200,
                33,
                window_tail="W",
            )
            for have in (2, 3)
        ),
        _case("caching-off", "caching is off", "token-match", [[], []], 100, enable_caching=False),
    ]
