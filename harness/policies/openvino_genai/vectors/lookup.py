"""Where a prompt resumes: KV blocks of 32 tokens, checkpoints every 128 unless a name says otherwise.

`cached` of the KV group: prefixes that end a full block, or a tail inside one; of the recurrent group: checkpoints,
those at multiples of the interval and tails. Which earlier checkpoints are held is free, so no columns are expected.
"""

from __future__ import annotations

from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import LookupInput

BLOCK, INTERVAL = 32, 128
GROUPS = [GroupSpec("full", BLOCK), GroupSpec("recurrent", INTERVAL)]


def cases() -> list[Case]:
    """Return every question."""
    return [*_edges(), *_common(), *_tails(), *_plain()]


def blocks(tokens: int) -> list[int]:
    """Return every prefix of full KV blocks up to so many tokens."""
    return list(range(BLOCK, tokens + 1, BLOCK))


def _case(name: str, comment: str, flags: str, cached: list[list[int]], tokens: int, groups: list[GroupSpec] = GROUPS) -> Case:
    return Case(f"lookup/{name}", comment, flags.split(), LookupInput(groups, tokens, cached))


def _edges() -> list[Case]:
    deep = [blocks(384), [128, 256, 384]]
    return [
        *(
            _case(
                f"edge/prompt-{n}", f"checkpoints at 128, 256 and 384; a prompt of {n}", "checkpoint-edge last-token", deep, n
            )
            for n in (1, 127, 128, 129, 255, 256, 257, 383, 384, 385, 1000)
        ),
        _case("edge/nothing", "nothing is cached", "checkpoint-edge", [[], []], 500),
    ]


def _common() -> list[Case]:
    return [
        _case(
            "common/kv-short", "KV ends a block before the second checkpoint", "common-position", [blocks(224), [128, 256]], 500
        ),
        _case("common/kv-just", "KV ends at it", "common-position", [blocks(256), [128, 256]], 500),
        _case("common/kv-alone", "KV without a checkpoint", "common-position", [blocks(256), []], 500),
        _case("common/states-alone", "checkpoints without KV", "common-position", [[], [128, 256]], 500),
        _case(
            "common/hole",
            "a KV block is missing before the second checkpoint",
            "hole",
            [[*blocks(160), *range(224, 385, 32)], [128, 256, 384]],
            500,
        ),
        _case("common/no-beginning", "the first KV block is missing", "hole", [blocks(384)[1:], [128, 256]], 500),
        _case(
            "common/later-alone",
            "the first checkpoint is gone, the second is there",
            "checkpoint-edge",
            [blocks(384), [256]],
            500,
        ),
        _case("common/earlier-alone", "the second checkpoint is gone", "checkpoint-edge", [blocks(384), [128]], 500),
    ]


def _tails() -> list[Case]:
    return [
        *(
            _case(
                f"tail/200-of-{n}",
                f"a request of 200 tokens left its state; this prompt has {n}",
                "tail-checkpoint last-token",
                [[*blocks(192), 200], [128, 200]],
                n,
            )
            for n in (199, 200, 201, 300)
        ),
        _case("tail/kv-gone", "the state at 200 without the KV behind 192", "tail-checkpoint", [blocks(192), [128, 200]], 300),
        _case("tail/state-gone", "the KV tail without its state", "tail-checkpoint", [[*blocks(192), 200], [128]], 300),
        _case("tail/at-a-block", "a tail at a KV boundary", "tail-checkpoint", [blocks(192), [128, 192]], 300),
        _case(
            "tail/two",
            "two tails behind one block: the longer one has no state",
            "tail-checkpoint",
            [[*blocks(192), 200, 210], [128, 200]],
            300,
        ),
        _case(
            "tail/two-states",
            "two tails, both with states",
            "tail-checkpoint",
            [[*blocks(192), 200, 210], [128, 200, 210]],
            300,
        ),
        _case(
            "tail/behind-a-hole",
            "the block before the tail is gone",
            "hole tail-checkpoint",
            [[*blocks(160), 200], [128, 200]],
            300,
        ),
    ]


def _plain() -> list[Case]:
    groups = [GroupSpec("full", BLOCK)]
    return [
        *(
            _case(
                f"plain/96-of-{n}",
                f"attention alone: three blocks are cached, the prompt has {n}",
                "last-token",
                [blocks(96)],
                n,
                groups,
            )
            for n in (95, 96, 97, 128)
        ),
        _case("plain/tail", "attention alone: and a tail of 4", "tail-checkpoint", [[*blocks(96), 100]], 128, groups),
        _case("plain/hole", "attention alone: the second block is gone", "hole", [[32, 96]], 128, groups),
    ]
