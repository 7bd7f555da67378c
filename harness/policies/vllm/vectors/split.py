"""Chunk ends: how many tokens a request computes in a step where recurrent states are cached. Blocks have 16 tokens."""

from __future__ import annotations

from typing import Any

from harness.policies.vllm.vectors.groups import full, recurrent
from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import SplitInput


def cases() -> list[Case]:
    """Return every question."""
    return [*_prefill(), *_ends(), *_inside(), *_shared_prefix_boundaries(), *_wide(), *_later(), *_eagle()]


def _case(
    name: str,
    comment: str,
    flags: str,
    span: tuple[int, int],
    prompt: int,
    known: int = 0,
    groups: list[GroupSpec] | None = None,
    shared_prefix_boundary: int = 0,
    **config: Any,
) -> Case:
    groups = groups or [full(), recurrent()]
    asked = SplitInput(span[0], span[1], prompt, known or prompt, groups, shared_prefix_boundary, config)
    return Case(f"split/{name}", comment, flags.split(), asked)


def _prefill() -> list[Case]:
    return [
        _case(f"budget-{asked}", f"a prompt of 100, {asked} tokens offered", "chunk-end put-off", (0, asked), 100)
        for asked in (1, 15, 16, 17, 31, 32, 33, 95, 96, 97, 100)
    ]


def _ends() -> list[Case]:
    return [
        *(
            _case(
                f"whole-{n}",
                f"a prompt of {n} offered whole: it stops where it can be resumed",
                "run-past last-token",
                (0, n),
                n,
            )
            for n in (1, 15, 16, 17, 31, 32, 33, 96, 97)
        ),
        _case("tail-of-four", "from the last boundary to the end", "run-past", (96, 4), 100),
        _case("tail-cut", "the tail in two steps would end inside its block", "put-off", (96, 2), 100),
        _case("tail-of-a-block", "the last block of an aligned prompt", "last-token", (80, 16), 96),
        _case("last-token", "one token is left", "last-token", (99, 1), 100),
    ]


def _inside() -> list[Case]:
    return [
        _case("from-5", "a chunk that starts inside a block stops at its end", "chunk-end", (5, 95), 100),
        _case("from-5-short", "offered less than the rest of the block", "put-off", (5, 8), 100),
        _case("from-5-just", "offered exactly the rest", "chunk-end", (5, 11), 100),
        _case("from-15", "one token before a boundary", "chunk-end", (15, 40), 100),
        _case(
            "hash-4-tail",
            "hits may end inside a block: stop at the tail of the prompt",
            "inside-a-block",
            (96, 4),
            100,
            hash_block_size=4,
        ),
        _case(
            "hash-4-whole", "the boundary before it comes first", "inside-a-block run-past", (0, 100), 100, hash_block_size=4
        ),
        _case(
            "hash-4-tail-of-99",
            "a prompt of 99: its tail is at 96, a boundary",
            "inside-a-block",
            (96, 3),
            99,
            hash_block_size=4,
        ),
        _case("hash-4-tail-of-103", "a prompt of 103: its tail is at 100", "inside-a-block", (96, 7), 103, hash_block_size=4),
        _case("hash-4-behind", "the tail has been passed", "inside-a-block", (100, 3), 103, hash_block_size=4),
    ]


def _shared_prefix_boundaries() -> list[Case]:
    return [
        *(
            _case(
                f"shared-prefix-boundary-{at}",
                f"others leave at {at}: keep the state at {at // 16 * 16}",
                "shared-prefix-boundary",
                (0, 96),
                100,
                shared_prefix_boundary=at,
            )
            for at in (15, 16, 32, 40, 47, 48, 95, 96)
        ),
        _case(
            "shared-prefix-boundary-behind",
            "others left before this chunk",
            "shared-prefix-boundary",
            (48, 48),
            100,
            shared_prefix_boundary=32,
        ),
        _case(
            "shared-prefix-boundary-here",
            "others leave where it starts",
            "shared-prefix-boundary",
            (32, 64),
            100,
            shared_prefix_boundary=32,
        ),
        _case(
            "shared-prefix-boundary-beyond",
            "others leave behind this chunk",
            "shared-prefix-boundary",
            (0, 32),
            100,
            shared_prefix_boundary=64,
        ),
    ]


def _wide() -> list[Case]:
    groups = [full(), recurrent(64)]
    wide = [
        ("first-step", "a block of 64, steps of 32: on the way, on a private state", (0, 32), 200, 32),
        ("second-step", "the block is full", (32, 32), 200, 32),
        ("third-of-24", "steps of 24 stop at the boundary", (48, 24), 200, 24),
        ("step-of-63", "one token short of a block", (0, 63), 200, 63),
        ("step-of-64", "exactly a block", (0, 64), 200, 64),
        ("rest-of-a-step", "steps of 64, but only 32 are left of this one: put off", (0, 32), 200, 64),
    ]
    return [
        _case(f"wide/{name}", comment, "wide-block", span, prompt, groups=groups, max_num_batched_tokens=batch)
        for name, comment, span, prompt, batch in wide
    ]


def _later() -> list[Case]:
    return [
        _case("decode", "a token is decoded", "recomputed-output", (100, 1), 100, known=101),
        _case("decode-at-a-boundary", "a token is decoded into a new block", "recomputed-output", (112, 1), 100, known=113),
        _case(
            "again-from-0",
            "preempted with 30 generated tokens: those are prefill now",
            "recomputed-output",
            (0, 130),
            100,
            known=130,
        ),
        _case("again-tail", "the last of them", "recomputed-output", (128, 2), 100, known=130),
        _case("again-short", "offered less than a block on the way", "recomputed-output put-off", (96, 10), 100, known=130),
    ]


def _eagle() -> list[Case]:
    return [
        _case(
            f"eagle-{n}",
            f"a speculative look-up gives a block back: a prompt of {n} resumes one earlier",
            "eagle-margin run-past",
            (0, n),
            n,
            use_eagle=True,
        )
        for n in (31, 32, 33, 95, 96, 97)
    ]
