"""Masks: which of the columns that a chunk filled are kept.

`reachable` are positions as the manager gets them: the replay boundary of a prompt of n tokens is n − 1, not yet rounded down.
"""

from __future__ import annotations

from typing import Any

from harness.policies.vllm.vectors.groups import full, recurrent, sliding
from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import RetentionInput


def cases() -> list[Case]:
    """Return every question."""
    return [*_states(), *_windows(), *_unequal(), *_eagle()]


def _case(
    name: str,
    comment: str,
    flags: str,
    group: GroupSpec,
    columns: tuple[int, int],
    reachable: list[int],
    interval: int | None,
    **config: Any,
) -> Case:
    asked = RetentionInput([full(), group], 1, *columns, reachable=reachable, config={"retention_interval": interval, **config})
    return Case(f"retention/{name}", comment, flags.split(), asked)


def _states() -> list[Case]:
    state = recurrent()
    return [
        _case("state/dense", "no interval: every state", "dense", state, (0, 8), [100], None),
        *(
            _case(
                f"state/replay-{at}",
                f"reachable boundaries alone; a prompt of {at + 1} tokens resumes at {at // 16 * 16}",
                "replay-boundary",
                state,
                (0, 8),
                [at],
                0,
            )
            for at in (0, 14, 15, 16, 17, 31, 32, 63, 64, 126, 127, 128)
        ),
        _case("state/nothing-reachable", "reachable boundaries alone, and there are none", "interval", state, (0, 8), [], 0),
        _case(
            "state/two-reachable",
            "a replay boundary and a shared-prefix boundary",
            "replay-boundary shared-prefix-boundary",
            state,
            (0, 8),
            [100, 40],
            0,
        ),
        *(
            _case(f"state/interval-{interval}", f"one state in {interval} tokens", "interval", state, (0, 12), [], interval)
            for interval in (16, 32, 48, 64, 192, 256)
        ),
        *(
            _case(
                f"state/interval-64-replay-{at}",
                f"one in 64, and a prompt of {at + 1} tokens",
                "interval replay-boundary",
                state,
                (0, 8),
                [at],
                64,
            )
            for at in (62, 63, 64, 79, 80)
        ),
        *(
            _case(
                f"state/chunk-{first}-{stop}",
                f"columns {first} to {stop - 1} of a longer prompt, one state in 64",
                "mask-offset",
                state,
                (first, stop),
                [150],
                64,
            )
            for first, stop in ((0, 3), (0, 4), (3, 4), (3, 5), (4, 8), (5, 7), (7, 8), (8, 12))
        ),
        _case("state/empty-chunk", "no column was filled", "mask-offset", state, (4, 4), [64], 64),
        _case(
            "state/reachable-elsewhere",
            "the reachable boundary lies in another chunk",
            "mask-offset replay-boundary",
            state,
            (4, 8),
            [40],
            0,
        ),
    ]


def _windows() -> list[Case]:
    return [
        *(
            _case(
                f"window/{window}-replay-{at}",
                f"a window of {window}: kept is what the query at {at // 16 * 16} reads",
                "window-edge replay-boundary",
                sliding(window),
                (0, 8),
                [at],
                0,
            )
            for window, at in (
                (1, 100),
                (2, 100),
                (16, 100),
                (17, 100),
                (18, 100),
                (33, 95),
                (33, 96),
                (33, 97),
                (34, 96),
                (97, 96),
                (98, 96),
            )
        ),
        *(
            _case(
                f"window/{window}-interval-64",
                f"a window of {window}, a tail in 64",
                "interval window-edge",
                sliding(window),
                (0, 12),
                [],
                64,
            )
            for window in (17, 33, 48, 49, 50, 64, 65)
        ),
        _case(
            "window/interval-is-the-window",
            "the window fills the interval: everything is kept",
            "dense",
            sliding(65),
            (0, 8),
            [70],
            64,
        ),
        _case("window/unset", "no interval", "dense", sliding(33), (0, 8), [70], None),
        _case(
            "window/at-the-start", "the reachable boundary is nearer than a window", "window-edge", sliding(65), (0, 8), [40], 0
        ),
        _case("window/chunk", "the tail lies across two chunks", "mask-offset window-edge", sliding(34), (4, 6), [96], 0),
        _case(
            "window/shared-prefix-boundary",
            "tails at a shared-prefix boundary and at the replay boundary",
            "shared-prefix-boundary window-edge",
            sliding(33),
            (0, 8),
            [120, 48],
            0,
        ),
    ]


def _unequal() -> list[Case]:
    three = [full(), sliding(17), recurrent(64)]
    whole = [full(), recurrent(64)]

    def ask(
        name: str, comment: str, groups: list[GroupSpec], group: int, stop: int, reachable: list[int], interval: int | None
    ) -> Case:
        asked = RetentionInput(
            groups, group, 0, stop, reachable=reachable, config={"retention_interval": interval, "hash_block_size": 16}
        )
        return Case(f"retention/{name}", comment, ["unequal-blocks"], asked)

    return [
        ask("unequal/window-dense", "hits inside a block, so a window tail at each of its blocks", three, 1, 12, [], None),
        ask("unequal/window-sparse", "a tail at the last block before 150", three, 1, 12, [150], 0),
        ask("unequal/state-sparse", "the state at 128", three, 2, 3, [150], 0),
        ask("unequal/state-inside", "a prompt that resumes at 48, inside the first state's block", whole, 1, 3, [48], 0),
        ask("unequal/state-at-the-block", "one that resumes at 64", whole, 1, 3, [64], 0),
        ask("unequal/state-interval", "one state in two", whole, 1, 4, [], 128),
    ]


def _eagle() -> list[Case]:
    return [
        _case(
            "eagle/window",
            "a tail and the block that is given back",
            "eagle-margin window-edge",
            sliding(33),
            (0, 8),
            [80],
            0,
            use_eagle=True,
        ),
        _case(
            "eagle/window-interval",
            "the same in every 96",
            "eagle-margin interval",
            sliding(33),
            (0, 12),
            [],
            96,
            use_eagle=True,
        ),
        _case(
            "eagle/window-at-the-start",
            "at the first block",
            "eagle-margin window-edge",
            sliding(33),
            (0, 8),
            [16],
            0,
            use_eagle=True,
        ),
        _case(
            "eagle/state",
            "drafters have no states: nothing is shifted",
            "eagle-margin",
            recurrent(),
            (0, 8),
            [80],
            0,
            use_eagle=True,
        ),
    ]
