"""Look-ups at the lengths where they go wrong. Blocks have 16 tokens unless a name says
otherwise.
"""

from __future__ import annotations

from typing import Any

from cachewitness.core.attention_span import needed_lengths
from cachewitness.core.events import Group
from cachewitness.core.trace_format import GroupSpec
from cachewitness.vectors.case import Case, case
from cachewitness.vectors.form import LookupInput
from cachewitness_faults.vllm.reference.vectors.cases import full, recurrent, sliding, upto


def lookup_cases() -> list[Case]:
    """Return every question."""
    return [
        *_full(),
        *_states(),
        *_states_and_attention(),
        *_windows(),
        *_three(),
        *_unequal(),
        *_inside(),
        *_eagle(),
    ]


def _case(
    name: str,
    comment: str,
    flags: str,
    groups: list[GroupSpec],
    cached: list[list[int]],
    tokens: int,
    **config: Any,
) -> Case:
    return case("lookup", name, comment, flags, LookupInput(groups, tokens, cached, config))


def _full() -> list[Case]:
    groups = [full()]
    return [
        _case("full/empty", "nothing is cached", "block-boundary", groups, [[]], 64),
        *(
            _case(
                f"full/48-of-{n}",
                f"three blocks are cached, the prompt has {n} tokens",
                "block-boundary last-token",
                groups,
                [upto(48)],
                n,
            )
            for n in (1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64)
        ),
        _case(
            "full/hole",
            "the second block is missing: the third is out of reach",
            "hole",
            groups,
            [[16, 48]],
            64,
        ),
        _case("full/no-beginning", "the first block is missing", "hole", groups, [[32, 48]], 64),
        _case(
            "full/caching-off",
            "caching is off",
            "caching-off",
            groups,
            [[]],
            64,
            enable_caching=False,
        ),
    ]


def _states() -> list[Case]:
    groups = [full(), recurrent()]
    deep = upto(96)
    return [
        _case(
            "state/at-the-end",
            "the prompt ends at the only state: one token would be missing",
            "last-token",
            groups,
            [deep, [96]],
            96,
        ),
        _case(
            "state/one-behind",
            "one token behind the only state",
            "last-token",
            groups,
            [deep, [96]],
            97,
        ),
        _case(
            "state/earlier-one",
            "the last state is out of reach, the one before is not",
            "last-token",
            groups,
            [deep, [48, 96]],
            96,
        ),
        _case(
            "state/one-before",
            "one token before the only state",
            "block-boundary",
            groups,
            [deep, [48]],
            48,
        ),
        _case(
            "state/just-reached", "one token behind it", "block-boundary", groups, [deep, [48]], 49
        ),
        _case(
            "state/none",
            "attention alone: nothing can be resumed, six blocks are shared",
            "shared-prefix-boundary",
            groups,
            [deep, []],
            200,
        ),
    ]


def _states_and_attention() -> list[Case]:
    groups = [full(), recurrent()]
    deep = upto(96)
    return [
        _case(
            "state/beyond-attention",
            "a state whose attention blocks are gone",
            "state-without-attention",
            groups,
            [upto(32), [48]],
            200,
        ),
        _case(
            "state/two-beyond",
            "the later state is out of reach of attention",
            "state-without-attention",
            groups,
            [upto(64), [32, 96]],
            200,
        ),
        _case(
            "state/shared-prefix-boundary",
            "resumes at 32; what others share goes on to 96",
            "shared-prefix-boundary",
            groups,
            [deep, [32]],
            200,
        ),
        _case(
            "state/no-shared-prefix-boundary",
            "resumes where attention ends: nobody goes on",
            "shared-prefix-boundary",
            groups,
            [upto(32), [32]],
            200,
        ),
        _case(
            "state/unpinned",
            "before 0.26 shared-prefix boundaries were not noticed",
            "shared-prefix-boundary",
            groups,
            [deep, [32]],
            200,
            release="0.25",
        ),
        _case("state/every-block", "dense states", "block-boundary", groups, [deep, deep], 81),
        _case(
            "state/two-groups",
            "two recurrent groups agree at 32 alone",
            "group-fixpoint",
            [full(), recurrent(), recurrent()],
            [deep, [32, 64], [32, 96]],
            200,
        ),
        _case(
            "state/two-groups-apart",
            "two recurrent groups agree nowhere",
            "group-fixpoint",
            [full(), recurrent(), recurrent()],
            [deep, [64], [96]],
            200,
        ),
    ]


def _windows() -> list[Case]:
    deep = upto(96)
    tails = [
        *(
            _case(
                f"window/{window}-with-{len(tail)}",
                f"a window of {window} reads {window - 1} before the query at 96; cached are the"
                f" last {16 * len(tail)}",
                "window-edge",
                [full(), sliding(window)],
                [deep, tail],
                97,
            )
            for window, tail in (
                *(
                    (2, [96]),
                    (16, [96]),
                    (17, [96]),
                    (18, [96]),
                    (18, [80, 96]),
                    (33, [96]),
                    (33, [80, 96]),
                ),
                *(
                    (34, [80, 96]),
                    (34, [64, 80, 96]),
                    (96, upto(96)[1:]),
                    (97, upto(96)[1:]),
                    (97, upto(96)),
                    (98, upto(96)),
                ),
            )
        )
    ]
    groups = [full(), sliding(33)]
    lone = LookupInput([full(), sliding(1)], 97, [deep, []])
    return [
        *tails,
        _case(
            "window/hole-in-the-tail",
            "the tail has a hole, an earlier tail is whole",
            "hole window-edge",
            groups,
            [deep, [32, 48, 80]],
            200,
        ),
        _case(
            "window/earlier-tail",
            "only an earlier tail is left",
            "window-edge",
            groups,
            [deep, [32, 48]],
            200,
        ),
        _case(
            "window/short-prefix",
            "less than a window from the start on is enough",
            "window-edge",
            [full(), sliding(65)],
            [deep, [16, 32]],
            200,
        ),
        _case(
            "window/short-with-a-gap",
            "the same with its first block gone",
            "hole window-edge",
            [full(), sliding(65)],
            [deep, [32]],
            200,
        ),
        _case(
            "window/tail-beyond-attention",
            "the tail lies where attention ends before",
            "group-fixpoint",
            groups,
            [upto(64), [80, 96]],
            200,
        ),
        _case(
            "window/capped",
            "the prompt ends with the tail",
            "last-token",
            groups,
            [deep, upto(96)],
            96,
        ),
        Case(
            "lookup/window/of-one-token",
            "a window of one token reads nothing behind it, so every length is lawful; vLLM hits"
            " none",
            ["one-token-window"],
            lone,
            acceptable=True,
            legal=_legal(lone, 16),
        ),
    ]


def _three() -> list[Case]:
    groups = [full(), sliding(33), recurrent()]
    deep = upto(128)
    return [
        _case(
            "three/agree",
            "window and state agree at 96",
            "group-fixpoint",
            groups,
            [deep, [80, 96], [96]],
            200,
        ),
        _case(
            "three/state-then-window",
            "the state says 96, the window 64, a state at 64 is there",
            "group-fixpoint",
            groups,
            [deep, [48, 64], [64, 96]],
            200,
        ),
        _case(
            "three/down-the-stairs",
            "each in turn says less, until all agree at 32",
            "group-fixpoint",
            groups,
            [deep, [16, 32, 80, 96], [32, 64, 112]],
            200,
        ),
        _case(
            "three/nowhere",
            "window and state agree nowhere",
            "group-fixpoint",
            groups,
            [deep, [80, 96], [64, 128]],
            200,
        ),
        _case(
            "three/shared-prefix-boundary",
            "they agree at 32, attention goes on to 128",
            "shared-prefix-boundary",
            groups,
            [deep, [16, 32], [32]],
            200,
        ),
        _case(
            "three/one-token", "a prompt of one token", "last-token", groups, [deep, deep, deep], 1
        ),
        _case(
            "three/two-windows",
            "windows of 17 and 49",
            "window-edge",
            [full(), sliding(17), sliding(49)],
            [deep, [64, 96], [32, 48, 64, 96]],
            200,
        ),
    ]


def _unequal() -> list[Case]:
    wide = [full(), recurrent(64)]
    fine = upto(192)
    return [
        _case(
            "unequal/aligned",
            "states every 64: hits end there",
            "unequal-blocks",
            wide,
            [fine, [64, 128]],
            200,
            hash_block_size=16,
        ),
        *(
            _case(
                f"unequal/attention-{have}",
                f"attention reaches {have}",
                "unequal-blocks",
                wide,
                [upto(have), [64, 128]],
                200,
                retention_interval=None,
            )
            for have in (112, 128, 144)
        ),
        _case(
            "unequal/windows-of-32",
            "a window with blocks of 32",
            "unequal-blocks",
            [full(), sliding(33, 32)],
            [fine, [64, 96]],
            200,
        ),
        _case(
            "unequal/windows-odd",
            "attention ends inside a window block",
            "unequal-blocks",
            [full(), sliding(33, 32)],
            [upto(80), [64, 96]],
            200,
        ),
    ]


def _inside() -> list[Case]:
    groups = [full(), recurrent()]
    config = {"hash_block_size": 4}
    tail = [16, 20]
    return [
        *(
            _case(
                f"inside/20-of-{n}",
                f"a prompt of 21 was cached up to 20; this one has {n}",
                "inside-a-block last-token",
                groups,
                [tail, tail],
                n,
                **config,
            )
            for n in (17, 20, 21, 24)
        ),
        _case(
            "inside/state-alone",
            "the state at 20 without attention there",
            "inside-a-block",
            groups,
            [[16], [20]],
            64,
            **config,
        ),
        _case(
            "inside/attention-alone",
            "attention to 20, the state at 16",
            "inside-a-block shared-prefix-boundary",
            groups,
            [tail, [16]],
            64,
            **config,
        ),
        _case(
            "inside/two-tails",
            "tails of two prompts in one block",
            "inside-a-block",
            groups,
            [[16, 20, 28], [20, 28]],
            64,
            **config,
        ),
        _case(
            "inside/finer-than-any",
            "without finer hashes the block counts",
            "inside-a-block",
            groups,
            [[16], [16]],
            21,
        ),
    ]


def _eagle() -> list[Case]:
    groups = [full(), recurrent()]
    config = {"use_eagle": True, "retention_interval": None}
    return [
        _case(
            "eagle/gives-back",
            "attention to 64 gives a block back; the state at 48 is hit",
            "eagle-margin",
            groups,
            [upto(64), [48]],
            200,
            **config,
        ),
        _case(
            "eagle/no-margin",
            "attention to 48 gives a block back; 48 is out of reach",
            "eagle-margin",
            groups,
            [upto(48), [48]],
            200,
            **config,
        ),
        _case(
            "eagle/both",
            "states at 32 and 48",
            "eagle-margin",
            groups,
            [upto(48), [32, 48]],
            200,
            **config,
        ),
        _case(
            "eagle/one-block",
            "one block, given back",
            "eagle-margin",
            groups,
            [upto(16), [16]],
            200,
            **config,
        ),
        _case(
            "eagle/alone",
            "full attention alone",
            "eagle-margin",
            [full()],
            [upto(64)],
            200,
            use_eagle=True,
        ),
        _case(
            "eagle/alone-at-the-end",
            "the prompt ends with the cached blocks",
            "eagle-margin last-token",
            [full()],
            [upto(64)],
            64,
            use_eagle=True,
        ),
        _case(
            "eagle/window",
            "a window of 33 and its margin",
            "eagle-margin window-edge",
            [full(), sliding(33)],
            [upto(96), [64, 80, 96]],
            200,
            **config,
        ),
        _case(
            "eagle/window-too-short",
            "the margin's block is missing",
            "eagle-margin window-edge",
            [full(), sliding(33)],
            [upto(96), [64, 80]],
            200,
            **config,
        ),
    ]


def _legal(question: LookupInput, alignment: int) -> list[int]:
    """Return every aligned length at which the law lets the request resume."""
    found = []
    for resume in range(0, question.tokens, alignment):
        needed = [
            set(
                needed_lengths(Group(index, spec.kind, spec.block_size, window=spec.window), resume)
            )
            <= set(lengths)
            for index, (spec, lengths) in enumerate(
                zip(question.groups, question.cached, strict=True)
            )
        ]
        if all(needed):
            found.append(resume)
    return found
