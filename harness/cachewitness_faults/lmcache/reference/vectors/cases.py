"""What LMCache is asked, and the bugs that the questions hunt."""

from __future__ import annotations

from typing import Any

from cachewitness.core.trace_format import GroupSpec
from cachewitness.vectors import scripts
from cachewitness.vectors.case import Case, case
from cachewitness.vectors.form import Flag, LookupInput, RetentionInput, SizingInput
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

FLAGS: dict[str, Flag] = {
    "block-size": Flag("the unified block is one kernel block too small for a state, or too large"),
    "step-size": Flag("steps that pass over a block boundary, or never reach one, are accepted"),
    "chunk-size": Flag("a chunk ends where some group has no block end"),
    "group-kinds": Flag("a group that cannot be moved, or has no reusable states, is accepted"),
    "window-chunks": Flag(
        "a window is rounded down in chunks, or a state is taken for more than the last one"
    ),
    "object-groups": Flag(
        "groups that need different chunks are stored and looked up as one object"
    ),
    "not-monotone": Flag(
        "the look-up stops at the first length that is not servable, though a longer one is"
    ),
    "hole": Flag("a missing chunk inside a window is passed over"),
    "group-fold": Flag("a length that one group cannot serve is served", "LMCache/LMCache#2845"),
    "last-token": Flag(
        "a state after the last token is resumed one token earlier", "LMCache/LMCache 0.5.4"
    ),
    "partial-chunk": Flag("a chunk that is not full is stored, or served"),
    "retain": Flag("a hit locks, or copies, less than it reads, or more"),
    "tier": Flag("what comes back is not what was stored", "LMCache/LMCache#4247"),
    "vacuous": Flag("a second run is served by the engine's own cache, and nobody notices"),
    "stale": Flag("content of before a reset, or of other weights, is served"),
    "identity": Flag("content of another salt, adapter or image is served"),
    "lost-work": Flag("a preempted request is loaded to where it was, and not to what is there"),
}


# --- sizing ---------------------------------------------------------------------------------------
# Settings that follow from a model, and what is refused when an engine starts. Without groups,
# `config` has the bytes of one layer: of a token in attention and of a state; `kernel_block` in
# tokens, the `release`. With groups it has what the two programs are started with: `chunk_size`,
# `max_num_batched_tokens`, `mamba_cache_mode`, `separate_object_groups`, `release`. Windows are in
# chunks then, −1 for all of them. The state of a gated-delta layer is 3 inputs of a convolution in
# 16 bits, and a matrix for each value head in 32 bits.


LEAST = (
    "require max_num_batched_tokens >= block_size so every prefill step advances at least one full"
    " block; got max_num_batched_tokens=543, block_size=544. Set --max-num-batched-tokens to at"
    " least 544."
)
BETWEEN = (
    "require block_size <= max_num_batched_tokens < 2 * block_size so every prefill step advances"
    " exactly one block and every block boundary gets a state snapshot; got"
    " max_num_batched_tokens={m}, block_size=544. Set --max-num-batched-tokens 544."
)
CHUNK_REFUSED = (
    "LMCache chunk size 543 must be a multiple of 544 (the vLLM block size scaled by"
    " decode_context_parallel_size). Set --chunk-size to a multiple of 544."
)
"""LMCache's own words."""

FULL_544 = GroupSpec("full", 544)
STATE_544 = GroupSpec("recurrent", 544)
"""The groups of a model whose unified block is 544 tokens."""


def sizing_cases() -> list[Case]:
    """Return every question."""
    return [
        *_sizing_models(),
        *_sizing_edges(),
        *_sizing_starts(),
        *_sizing_windows(),
        *_sizing_sizes_refused(),
        *_sizing_groups_refused(),
    ]


def _sizing_model(
    name: str, comment: str, attention: int, state: int, kernel: int, **more: Any
) -> Case:
    config = {
        "attention_bytes_per_token": attention,
        "state_bytes": state,
        "kernel_block": kernel,
        **more,
    }
    return case("sizing", f"model/{name}", comment, "block-size", SizingInput(config))


def _sizing_models() -> list[Case]:
    small = (2 * 512 * 2, 3 * 6144 * 2 + 16 * 128 * 128 * 4)
    large = (2 * 1024 * 2, 3 * 10240 * 2 + 48 * 128 * 128 * 4)
    return [
        _sizing_model("qwen3.5-0.8b", "published: N = 544", *small, 16),
        _sizing_model("qwen3.6-27b", "published: N = 784", *large, 16),
        _sizing_model(
            "qwen3.5-0.8b-old",
            "release 0.5.3: a step is shorter than two blocks",
            *small,
            16,
            release="0.5.3",
        ),
        _sizing_model("qwen3.5-0.8b-by-2", "a chunk of two blocks", *small, 16, chunk_multiple=2),
        _sizing_model("kernel-64", "a kernel block of 64", *small, 64),
    ]


def _sizing_edges() -> list[Case]:
    return [
        _sizing_model(
            f"{pages}",
            f"a state of {size} bytes, 16 tokens of 100 bytes a kernel block",
            100,
            size,
            16,
        )
        for pages, size in (
            ("one-byte", 1),
            ("a-byte-less", 1599),
            ("exactly-one", 1600),
            ("a-byte-more", 1601),
            ("exactly-three", 4800),
        )
    ]


def _sizing_start(
    name: str,
    comment: str,
    flag: str,
    groups: list[GroupSpec],
    refused: str = "",
    words: str = "",
    **config: Any,
) -> Case:
    return case(
        "sizing",
        f"start/{name}",
        comment,
        flag,
        SizingInput(config, groups),
        refused=refused,
        words=words,
    )


def _sizing_starts() -> list[Case]:
    hybrid = [FULL_544, STATE_544]
    return [
        *(
            _sizing_start(
                f"budget-{m}",
                f"steps of {m} tokens, N = 544",
                "step-size",
                hybrid,
                chunk_size=544,
                max_num_batched_tokens=m,
            )
            for m in (544, 545, 1087, 1088, 8192)
        ),
        *(
            _sizing_start(
                f"budget-{m}-old",
                f"release 0.5.3: steps of {m} tokens",
                "step-size",
                hybrid,
                chunk_size=544,
                max_num_batched_tokens=m,
                release="0.5.3",
            )
            for m in (544, 1087)
        ),
        _sizing_start(
            "chunk-of-two",
            "a chunk of two blocks",
            "chunk-size",
            hybrid,
            chunk_size=1088,
            max_num_batched_tokens=1087,
        ),
        _sizing_start(
            "attention-alone",
            "no states: any budget",
            "step-size",
            [GroupSpec("full", 16)],
            chunk_size=256,
            max_num_batched_tokens=1,
        ),
        _sizing_start(
            "mode-all",
            "release 0.5.5 takes states of every block too",
            "group-kinds",
            hybrid,
            chunk_size=544,
            max_num_batched_tokens=1,
            mamba_cache_mode="all",
            release="0.5.5",
        ),
        _sizing_start(
            "merged",
            "one object group for all",
            "object-groups",
            hybrid,
            chunk_size=544,
            max_num_batched_tokens=544,
            separate_object_groups=False,
        ),
    ]


def _sizing_windows() -> list[Case]:
    return [
        _sizing_start(
            f"window-{w}",
            f"a window of {w} tokens, chunks of 64, blocks of 16",
            "window-chunks",
            [GroupSpec("full", 16), GroupSpec("sliding", 16, window=w), GroupSpec("recurrent", 64)],
            chunk_size=64,
            max_num_batched_tokens=64,
        )
        for w in (16, 48, 64, 65, 127, 128, 129, 192)
    ]


def _sizing_sizes_refused() -> list[Case]:
    hybrid = [FULL_544, STATE_544]
    field = "max_num_batched_tokens"
    unequal = [GroupSpec("full", 16), GroupSpec("full", 24)]
    return [
        _sizing_start(
            "budget-543",
            "a token less than a block",
            "step-size",
            hybrid,
            field,
            LEAST,
            chunk_size=544,
            max_num_batched_tokens=543,
        ),
        *(
            _sizing_start(
                f"budget-{m}-refused",
                f"release 0.5.3: steps of {m}",
                "step-size",
                hybrid,
                field,
                BETWEEN.format(m=m),
                chunk_size=544,
                max_num_batched_tokens=m,
                release="0.5.3",
            )
            for m in (543, 1088)
        ),
        _sizing_start(
            "chunk-543",
            "a chunk that is no multiple of the block",
            "chunk-size",
            hybrid,
            "chunk size",
            CHUNK_REFUSED,
            chunk_size=543,
            max_num_batched_tokens=544,
        ),
        _sizing_start(
            "chunk-32-of-48",
            "a multiple of one group's block and not of the other's",
            "chunk-size",
            unequal,
            "chunk size",
            "LMCache chunk size 32 must be a multiple of 48",
            chunk_size=32,
            max_num_batched_tokens=64,
        ),
    ]


def _sizing_groups_refused() -> list[Case]:
    hybrid = [FULL_544, STATE_544]
    return [
        _sizing_start(
            "window-inside-a-chunk",
            "a window of 17 in a chunk of 64, blocks of 16",
            "window-chunks",
            [GroupSpec("full", 16), GroupSpec("sliding", 16, window=17)],
            "sliding window size",
            "group 1: sub-chunk sliding window size 17 must be a multiple of tokens_per_block 16",
            chunk_size=64,
            max_num_batched_tokens=64,
        ),
        _sizing_start(
            "mode-none",
            "no reusable states",
            "group-kinds",
            hybrid,
            "mamba_cache_mode",
            "group 1: MambaSpec with mamba_cache_mode='none' (only 'align' and 'all' keep reusable"
            " state snapshots)",
            chunk_size=544,
            max_num_batched_tokens=544,
            mamba_cache_mode="none",
        ),
        _sizing_start(
            "mode-all-old",
            "release 0.5.4 takes aligned states alone",
            "group-kinds",
            hybrid,
            "mamba_cache_mode",
            "(only 'align' keeps reusable state snapshots)",
            chunk_size=544,
            max_num_batched_tokens=544,
            mamba_cache_mode="all",
            release="0.5.4",
        ),
        _sizing_start(
            "two-state-sizes",
            "states of 16 and of 32 tokens",
            "step-size",
            [GroupSpec("recurrent", 16), GroupSpec("recurrent", 32)],
            "block size",
            "All Mamba KV cache groups must use one physical block size; got [16, 32].",
            chunk_size=32,
            max_num_batched_tokens=64,
        ),
        Case(
            "sizing/refused/state-of-nothing",
            "a state of no bytes",
            ["block-size"],
            SizingInput({"attention_bytes_per_token": 100, "state_bytes": 0}),
            refused="state_bytes",
        ),
        Case(
            "sizing/refused/release",
            "a release that there is not",
            ["block-size"],
            SizingInput({"attention_bytes_per_token": 100, "state_bytes": 1, "release": "1.0"}),
            refused="release",
        ),
    ]


# --- lookup ---------------------------------------------------------------------------------------
# How much is served: the fold over object groups. Chunks have 16 tokens, as all blocks, unless a
# name says otherwise. `cached`, by group: the ends of the chunks that are there. Expected columns
# are chunks: those that a hit needs of each group. Nothing is in the engine's own cache.


CHUNK = 16
FULL = GroupSpec("full", CHUNK)
STATE = GroupSpec("recurrent", CHUNK)


def lookup_cases() -> list[Case]:
    """Return every question."""
    return [
        *_lookup_attention(),
        *_lookup_states(),
        *_lookup_windows(),
        *_lookup_merged(),
        *_lookup_large_chunks(),
    ]


def ends(chunks: int, size: int = CHUNK) -> list[int]:
    """Return the ends of the first `chunks` chunks."""
    return [size * (index + 1) for index in range(chunks)]


def window(tokens: int) -> GroupSpec:
    """Return a sliding-window group; the window counts the query."""
    return GroupSpec("sliding", CHUNK, window=tokens)


def _lookup(
    name: str,
    comment: str,
    flags: str,
    groups: list[GroupSpec],
    cached: list[list[int]],
    tokens: int,
    **config: Any,
) -> Case:
    asked = LookupInput(groups, tokens, cached, {"chunk_size": CHUNK, **config})
    return case("lookup", name, comment, flags, asked)


def _lookup_attention() -> list[Case]:
    return [
        *(
            _lookup(
                f"full/three-of-{n}",
                f"three chunks are there, the prompt has {n} tokens",
                "partial-chunk last-token",
                [FULL],
                [ends(3)],
                n,
            )
            for n in (1, 15, 16, 17, 47, 48, 49, 64)
        ),
        _lookup("full/hole", "the second chunk is missing", "hole", [FULL], [[16, 48]], 64),
        _lookup("full/nothing", "nothing is there", "partial-chunk", [FULL], [[]], 64),
    ]


def _lookup_states() -> list[Case]:
    groups = [FULL, STATE]
    return [
        *(
            _lookup(
                f"state/three-of-{n}",
                f"three chunks with their states, a prompt of {n}: the last token is left out",
                "last-token",
                groups,
                [ends(3), ends(3)],
                n,
            )
            for n in (16, 17, 47, 48, 49, 64)
        ),
        _lookup(
            "state/two-and-five",
            "states at 2 and 5: 5 is servable, 4 and 3 are not",
            "not-monotone",
            groups,
            [ends(6), [32, 80]],
            200,
        ),
        _lookup(
            "state/two-alone",
            "the later state is gone",
            "not-monotone",
            groups,
            [ends(6), [32]],
            200,
        ),
        _lookup(
            "state/beyond-attention",
            "a state at 5, attention to 4",
            "group-fold",
            groups,
            [ends(4), [32, 80]],
            200,
        ),
        _lookup("state/none", "attention without states", "group-fold", groups, [ends(6), []], 200),
        _lookup(
            "state/alone", "states without attention", "group-fold", groups, [[], ends(6)], 200
        ),
        _lookup(
            "state/hole-in-attention",
            "an attention chunk is missing before the state",
            "hole",
            groups,
            [[16, 32, 64, 80], [32, 80]],
            200,
        ),
        _lookup(
            "state/two-groups",
            "two recurrent groups are one object group: both at 2 alone",
            "group-fold",
            [FULL, STATE, STATE],
            [ends(6), [32, 80], [32, 64]],
            200,
        ),
        _lookup(
            "state/before-the-reserve",
            "release 0.5.4 does not leave the last token out",
            "last-token",
            groups,
            [ends(3), ends(3)],
            49,
            release="0.5.4",
        ),
    ]


def _lookup_windows() -> list[Case]:
    deep = ends(6)
    return [
        *(
            _lookup(
                f"window/{w}-with-{have}",
                f"a window of {w} tokens, the last {have} chunks before 96 are there",
                "window-chunks",
                [FULL, window(w)],
                [deep, deep[-have:]],
                200,
            )
            for w, have in (
                (16, 1),
                (17, 1),
                (17, 2),
                (32, 1),
                (32, 2),
                (33, 2),
                (33, 3),
                (96, 5),
                (96, 6),
                (97, 6),
            )
        ),
        _lookup(
            "window/short-prefix",
            "a prefix shorter than the window needs all of itself",
            "window-chunks",
            [FULL, window(64)],
            [deep, [16, 32]],
            200,
        ),
        _lookup(
            "window/short-with-a-gap",
            "the same without its first chunk",
            "window-chunks hole",
            [FULL, window(64)],
            [deep, [32]],
            200,
        ),
        _lookup(
            "window/hole-outside",
            "a hole that the window does not reach",
            "hole not-monotone",
            [FULL, window(32)],
            [deep, [16, 80, 96]],
            200,
        ),
        _lookup(
            "window/hole-inside",
            "a hole in the window: an earlier length is served",
            "hole not-monotone",
            [FULL, window(32)],
            [deep, [32, 48, 96]],
            200,
        ),
        _lookup(
            "window/three",
            "window and state agree at 3 alone",
            "group-fold not-monotone",
            [FULL, window(32), STATE],
            [deep, [32, 48, 80, 96], [48, 64]],
            200,
        ),
        _lookup(
            "window/two",
            "windows of 17 and 64",
            "group-fold window-chunks",
            [FULL, window(17), window(64)],
            [deep, [64, 80, 96], ends(5)],
            200,
        ),
    ]


def _lookup_merged() -> list[Case]:
    groups = [FULL, STATE]
    config = {"separate_object_groups": False}
    return [
        _lookup(
            "merged/all-there",
            "one object for all groups",
            "object-groups",
            groups,
            [ends(3), ends(3)],
            64,
            **config,
        ),
        _lookup(
            "merged/state-skipped",
            "a chunk without a state was not stored, and ends the hit",
            "object-groups",
            groups,
            [ends(3), [16, 48]],
            64,
            **config,
        ),
        _lookup(
            "merged/window",
            "a window counts as everything",
            "object-groups",
            [FULL, window(32)],
            [ends(4), [48, 64]],
            100,
            **config,
        ),
    ]


def _lookup_large_chunks() -> list[Case]:
    groups = [GroupSpec("full", 16), GroupSpec("recurrent", 32)]
    return [
        *(
            _lookup(
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
        _lookup(
            "chunk-64/last-state",
            "of a state a chunk keeps the last block: the last chunk's is there",
            "window-chunks",
            groups,
            [ends(3, 64), [192]],
            200,
            chunk_size=64,
        ),
    ]


# --- retention ------------------------------------------------------------------------------------
# What a hit needs: of each group the chunks that a look-up locks and a retrieve reads; the others
# may go. `stop` is the length of the hit in chunks, `config.chunk_size` in tokens; columns are
# chunks.


def retention_cases() -> list[Case]:
    """Return every question."""
    asked = [("full", FULL, hit) for hit in (0, 1, 6)] + [
        ("state", STATE, hit) for hit in (0, 1, 6)
    ]
    asked += [(f"window-{w}", window(w), 6) for w in (16, 17, 32, 33, 95, 96, 97)]
    asked += [("window-48", window(48), hit) for hit in (2, 3, 4)]
    return [
        Case(
            f"retention/{name}-{hit}",
            f"a hit of {hit} chunks: what the group {name} needs of it",
            ["retain", "window-chunks"],
            RetentionInput([FULL, group], 1, 0, hit, config={"chunk_size": CHUNK}),
        )
        for name, group, hit in asked
    ]


# --- lifecycle ------------------------------------------------------------------------------------
# Whole lives behind vLLM's scheduler: a prompt is served, the engine's cache is reset, and the tier
# serves it again.


STORIES: dict[str, list[str]] = {
    "second-tier": ["tier", "vacuous"],
    "siblings-at-a-block": ["not-monotone"],
    "preempt-and-resume": ["lost-work"],
    "identities": ["identity"],
    "new-weights": ["stale"],
    "reset-with-running": ["stale"],
    "reset-while-one-waits": ["stale"],
}
"""What each scenario hunts."""


def lifecycle_cases() -> list[Case]:
    """Return every question."""
    flags = ["tier", "vacuous", "last-token", "partial-chunk"]
    return [
        *scripts.returns(_configuration("full"), (15, 16, 17, 32, 33), flags),
        *scripts.returns(
            _configuration("full-mamba", retention_interval=None),
            (16, 17, 31, 32, 33, 48, 49),
            flags,
        ),
        *scripts.returns(
            _configuration("full-mamba", retention_interval=None, chunk_size=32),
            (32, 33, 64, 65),
            flags,
        ),
        *scripts.returns(
            _configuration("full-swa", retention_interval=None), (32, 33, 48, 49), flags
        ),
        *scripts.stories(
            _configuration("full-mamba", retention_interval=None), "scheduler", STORIES
        ),
        *scripts.stories(
            _configuration("full-swa", retention_interval=None),
            "scheduler",
            STORIES,
            ("second-tier", "identities"),
        ),
    ]


def _configuration(layout: str, **options: Any) -> Configuration:
    apart = {"separate_object_groups": True, "tier_pages": 96}
    return Configuration(layouts.load(layout), apart | options, "lmcache")
