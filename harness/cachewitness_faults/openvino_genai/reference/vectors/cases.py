"""What OpenVINO GenAI is asked, and the bugs that the questions hunt."""

from __future__ import annotations

from typing import Any

from cachewitness.core.trace_format import GroupSpec
from cachewitness.vectors import scripts
from cachewitness.vectors.case import Case, case
from cachewitness.vectors.form import Flag, LookupInput, SizingInput, SplitInput
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

FLAGS: dict[str, Flag] = {
    "interval-rounding": Flag(
        "checkpoints are counted with a floor where a started interval needs one too"
    ),
    "adaptive-multiplier": Flag(
        "an unset multiplier is taken as 8 where the release derives it", "openvino.genai#4050"
    ),
    "shared-budget": Flag(
        "the two pools together are larger than the budget, or leave room for another block of both"
    ),
    "manual-states": Flag(
        "a number of states that was set is kept, or discarded, where the other is the rule"
    ),
    "client-or-server": Flag(
        "states are sized for a server where one stream is served, or the other way round"
    ),
    "dynamic": Flag("a pool of no blocks is taken for a pool that is full"),
    "overflow": Flag(
        "a product wraps around, or a count is cut off to 32 bits, and the pool is empty"
    ),
    "bad-config": Flag("a configuration that contradicts itself is accepted"),
    "memory-check": Flag("more is asked for than the machine has, and not refused"),
    "common-position": Flag("a prompt resumes where one of the two caches has nothing"),
    "checkpoint-edge": Flag(
        "a checkpoint at a multiple of the interval is missed, or used one token early or late"
    ),
    "last-token": Flag(
        "a prompt that is cached whole leaves no token, or applies its last one to the state twice"
    ),
    "tail-checkpoint": Flag(
        "the state that a finished request leaves inside an interval is not found, or found where"
        " KV ends before"
    ),
    "hole": Flag("a missing block in the middle is passed over"),
    "room": Flag("a chunk takes more than one of the pools has, or less than both have"),
    "stale": Flag("content of before a reset, or of other weights, is restored"),
    "identity": Flag("content of another salt, adapter or image is restored"),
    "lost-work": Flag("a preempted request goes on from a state that is not the one of its tokens"),
    "counts": Flag("blocks are lost, or given back twice"),
    "shared-write": Flag("a block that others hold is written without a copy"),
}


# --- sizing ---------------------------------------------------------------------------------------
# How many blocks each pool gets. `config` has the fields of `SchedulerConfig`, the bytes of a KV
# block and of a linear- attention block (`kv_block_bytes`, `la_block_bytes`), the tokens of a KV
# block (`kv_block_size`, 32 if left out), the `release`, and the machine's memory in bytes
# (`total_memory_bytes`, not looked at if left out). Figures called measured were taken on release
# 2026.4.1.


KV, LA = 8192, 835584
"""Bytes of the two kinds of block in the measured model: 102 KV blocks weigh what a state weighs.
"""
UNLIMITED = 2**64 - 1
PREFIX = {"kv_block_bytes": KV, "la_block_bytes": LA, "enable_prefix_caching": True}
PLAIN = {"kv_block_bytes": KV, "la_block_bytes": LA}


def sizing_cases() -> list[Case]:
    """Return every question."""
    return [
        *_sizing_explicit(),
        *_sizing_adaptive(),
        *_sizing_both(),
        *_sizing_budgets(),
        *_sizing_without_checkpoints(),
        *_sizing_dynamic(),
        *_sizing_refusals(),
        *_sizing_overflows(),
    ]


def _sizing(name: str, comment: str, flag: str, config: dict[str, Any], **more: Any) -> Case:
    return case("sizing", name, comment, flag, SizingInput(config | more))


def _sizing_refused(
    name: str, comment: str, flag: str, field: str, words: str, config: dict[str, Any], **more: Any
) -> Case:
    return case(
        "sizing", name, comment, flag, SizingInput(config | more), refused=field, words=words
    )


def _sizing_explicit() -> list[Case]:
    return [
        *(
            _sizing(
                f"explicit/{kv}-by-8",
                f"{kv} KV blocks, a checkpoint in 8",
                "interval-rounding",
                PREFIX,
                num_kv_blocks=kv,
                cache_interval_multiplier=8,
            )
            for kv in (1, 7, 8, 9, 16, 17, 1024)
        ),
        *(
            _sizing(
                f"explicit/1024-by-{m}",
                f"1024 KV blocks, a checkpoint in {m}: measured",
                "interval-rounding",
                PREFIX,
                num_kv_blocks=1024,
                cache_interval_multiplier=m,
            )
            for m in (1, 3, 7, 64, 100)
        ),
    ]


def _sizing_adaptive() -> list[Case]:
    return [
        *(
            _sizing(
                f"adaptive/{kv}",
                f"{kv} KV blocks, the multiplier follows from the bytes: measured 102",
                "adaptive-multiplier",
                PREFIX,
                num_kv_blocks=kv,
            )
            for kv in (102, 103, 204, 205, 1024)
        ),
        _sizing(
            "adaptive/before",
            "release 2026.2 takes 8",
            "adaptive-multiplier",
            PREFIX,
            num_kv_blocks=1024,
            release="2026.2",
        ),
        *(
            _sizing(
                f"adaptive/state-of-{blocks}",
                f"a state weighs {blocks} KV blocks",
                "adaptive-multiplier",
                PREFIX,
                num_kv_blocks=1024,
                la_block_bytes=size,
            )
            for blocks, size in (
                ("7", 7 * KV),
                ("8", 8 * KV),
                ("8-and-a-byte", 8 * KV + 1),
                ("256", 256 * KV),
                ("257", 257 * KV),
            )
        ),
    ]


def _sizing_both() -> list[Case]:
    return [
        _sizing(
            "explicit/states-too",
            "both are set",
            "manual-states",
            PREFIX,
            num_kv_blocks=64,
            num_linear_attention_blocks=20,
        ),
        _sizing(
            "explicit/wins",
            "KV blocks win over a budget",
            "shared-budget",
            PREFIX,
            num_kv_blocks=64,
            cache_size=1,
            cache_interval_multiplier=8,
        ),
        _sizing(
            "explicit/no-states",
            "a model without linear attention",
            "interval-rounding",
            {"kv_block_bytes": KV},
            num_kv_blocks=64,
            enable_prefix_caching=True,
        ),
        _sizing(
            "explicit/on-gpu",
            "blocks of 16 tokens",
            "interval-rounding",
            PREFIX,
            num_kv_blocks=65,
            cache_interval_multiplier=8,
            kv_block_size=16,
        ),
    ]


def _sizing_budgets() -> list[Case]:
    tight = {"kv_block_bytes": 2**27, "la_block_bytes": 2**27, "enable_prefix_caching": True}
    return [
        _sizing(
            "budget/1-gib",
            "1 GiB: measured",
            "shared-budget",
            PREFIX,
            cache_size=1,
            cache_interval_multiplier=8,
        ),
        _sizing(
            "budget/states-discarded",
            "an explicit number of states is discarded: measured",
            "manual-states",
            PREFIX,
            cache_size=1,
            cache_interval_multiplier=8,
            num_linear_attention_blocks=20,
        ),
        _sizing(
            "budget/adaptive",
            "1 GiB, the multiplier from the bytes",
            "shared-budget",
            PREFIX,
            cache_size=1,
        ),
        *(
            _sizing(
                f"budget/eight-blocks-by-{m}",
                f"room for eight blocks of either kind, a state in {m}",
                "shared-budget",
                tight,
                cache_size=1,
                cache_interval_multiplier=m,
            )
            for m in (1, 2, 3, 6, 7, 8)
        ),
        _sizing(
            "budget/one-pair",
            "room for a block of each kind exactly",
            "shared-budget",
            tight,
            cache_size=1,
            cache_interval_multiplier=8,
            kv_block_bytes=2**29,
            la_block_bytes=2**29,
        ),
        _sizing(
            "budget/no-pair",
            "a byte less: no block at all",
            "shared-budget",
            tight,
            cache_size=1,
            cache_interval_multiplier=8,
            kv_block_bytes=2**29,
            la_block_bytes=2**29 + 1,
        ),
        _sizing(
            "budget/attention-alone",
            "a model without linear attention",
            "shared-budget",
            {"kv_block_bytes": KV},
            cache_size=1,
        ),
    ]


def _sizing_without_checkpoints() -> list[Case]:
    return [
        _sizing(
            "fixed/server",
            "bounded batches: a state for each of 256 sequences",
            "client-or-server",
            PLAIN,
            num_kv_blocks=64,
        ),
        _sizing(
            "fixed/server-of-3",
            "bounded batches, 3 sequences",
            "client-or-server",
            PLAIN,
            num_kv_blocks=64,
            max_num_seqs=3,
        ),
        _sizing(
            "fixed/client",
            "unlimited batches: one state",
            "client-or-server",
            PLAIN,
            num_kv_blocks=64,
            max_num_batched_tokens=UNLIMITED,
        ),
        _sizing(
            "fixed/almost-unlimited",
            "one token less is bounded",
            "client-or-server",
            PLAIN,
            num_kv_blocks=64,
            max_num_batched_tokens=UNLIMITED - 1,
        ),
        _sizing(
            "fixed/by-hand",
            "the number of states is set",
            "manual-states",
            PLAIN,
            num_kv_blocks=64,
            num_linear_attention_blocks=5,
        ),
        _sizing(
            "fixed/budget",
            "the states come off the budget first",
            "shared-budget",
            PLAIN,
            cache_size=1,
            max_num_seqs=4,
        ),
        _sizing(
            "fixed/budget-client",
            "one state comes off",
            "shared-budget",
            PLAIN,
            cache_size=1,
            max_num_batched_tokens=UNLIMITED,
        ),
        _sizing(
            "fixed/budget-full",
            "states that fill the budget exactly leave no KV",
            "shared-budget",
            PLAIN,
            cache_size=1,
            max_num_seqs=4,
            la_block_bytes=2**28,
        ),
    ]


def _sizing_dynamic() -> list[Case]:
    return [
        _sizing("dynamic/nothing-set", "neither blocks nor a budget", "dynamic", PREFIX),
        _sizing(
            "dynamic/states-set",
            "states alone are set",
            "dynamic",
            PREFIX,
            num_linear_attention_blocks=20,
        ),
        _sizing(
            "dynamic/no-sequences",
            "KV blocks for no sequences: measured dynamic",
            "dynamic",
            PLAIN,
            num_kv_blocks=16,
            max_num_seqs=0,
        ),
    ]


def _sizing_refusals() -> list[Case]:
    return [
        _sizing_refused(
            "refused/multiplier-0",
            "no interval at all",
            "bad-config",
            "cache_interval_multiplier",
            "SchedulerConfig cache_interval_multiplier must be greater than 0 when prefix caching"
            " is enabled",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=0,
        ),
        _sizing_refused(
            "refused/states-of-a-plain-model",
            "states for a model that has none",
            "bad-config",
            "num_linear_attention_blocks",
            "SchedulerConfig num_linear_attention_blocks can be set only for models with linear"
            " attention cache inputs",
            {"kv_block_bytes": KV},
            num_linear_attention_blocks=1,
        ),
        _sizing_refused(
            "refused/budget-beyond-memory",
            "1000 GiB on a machine of 24",
            "memory-check",
            "cache size",
            "Requested cache size is larger than available memory size on the system.",
            PREFIX,
            cache_size=1000,
            total_memory_bytes=24 * 2**30,
        ),
        _sizing_refused(
            "refused/blocks-beyond-memory",
            "2 000 000 blocks on a machine of 1 GiB",
            "memory-check",
            "cache blocks",
            "Requested cache blocks require more memory than available on the system.",
            PREFIX,
            num_kv_blocks=2_000_000,
            total_memory_bytes=2**30,
        ),
        _sizing_refused(
            "refused/states-beyond-budget",
            "20 000 sequences in 1 GiB",
            "shared-budget",
            "linear attention",
            "Requested linear attention cache allocation exceeds the configured cache size.",
            PLAIN,
            cache_size=1,
            max_num_seqs=20_000,
        ),
    ]


def _sizing_overflows() -> list[Case]:
    multiplier = "cache_interval_multiplier"
    return [
        _sizing_refused(
            "refused/multiplier-2-60",
            "an interval beyond 64 bits",
            "overflow",
            multiplier,
            "SchedulerConfig cache_interval_multiplier is too large for KV cache block size.",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=2**60,
        ),
        _sizing_refused(
            "refused/multiplier-2-58",
            "an interval of 2^63 tokens",
            "overflow",
            multiplier,
            "",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=2**58,
        ),
        _sizing_refused(
            "refused/multiplier-2-26",
            "an interval of 2^31 tokens",
            "overflow",
            multiplier,
            "",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=2**26,
        ),
        _sizing_refused(
            "refused/blocks-2-49",
            "2^49 blocks",
            "overflow",
            "num_kv_blocks",
            "",
            PREFIX,
            num_kv_blocks=2**49,
            cache_interval_multiplier=8,
        ),
        _sizing_refused(
            "refused/negative",
            "−1 blocks",
            "bad-config",
            "num_kv_blocks",
            "",
            PREFIX,
            num_kv_blocks=-1,
        ),
        _sizing_refused(
            "refused/half-a-gib",
            "half a GiB",
            "bad-config",
            "cache_size",
            "",
            PREFIX,
            cache_size="0.5",
        ),
        _sizing_refused(
            "refused/block-of-no-bytes",
            "a KV block of no bytes",
            "bad-config",
            "kv_block_bytes",
            "",
            PREFIX,
            kv_block_bytes=0,
        ),
        _sizing_refused(
            "refused/release",
            "a release that there is not",
            "bad-config",
            "version",
            "",
            PREFIX,
            num_kv_blocks=8,
            release="2025.0",
        ),
    ]


# --- lookup ---------------------------------------------------------------------------------------
# Where a prompt resumes: KV blocks of 32 tokens, checkpoints every 128 unless a name says
# otherwise. `cached` of the KV group: prefixes that end a full block, or a tail inside one; of the
# recurrent group: checkpoints, those at multiples of the interval and tails. Which earlier
# checkpoints are held is free, so no columns are expected.


BLOCK, INTERVAL = 32, 128
GROUPS = [GroupSpec("full", BLOCK), GroupSpec("recurrent", INTERVAL)]


def lookup_cases() -> list[Case]:
    """Return every question."""
    return [*_lookup_edges(), *_lookup_common(), *_lookup_tails(), *_lookup_plain()]


def blocks(tokens: int) -> list[int]:
    """Return every prefix of full KV blocks up to so many tokens."""
    return list(range(BLOCK, tokens + 1, BLOCK))


def _lookup(
    name: str,
    comment: str,
    flags: str,
    cached: list[list[int]],
    tokens: int,
    groups: list[GroupSpec] = GROUPS,
) -> Case:
    return case("lookup", name, comment, flags, LookupInput(groups, tokens, cached))


def _lookup_edges() -> list[Case]:
    deep = [blocks(384), [128, 256, 384]]
    return [
        *(
            _lookup(
                f"edge/prompt-{n}",
                f"checkpoints at 128, 256 and 384; a prompt of {n}",
                "checkpoint-edge last-token",
                deep,
                n,
            )
            for n in (1, 127, 128, 129, 255, 256, 257, 383, 384, 385, 1000)
        ),
        _lookup("edge/nothing", "nothing is cached", "checkpoint-edge", [[], []], 500),
    ]


def _lookup_common() -> list[Case]:
    return [
        _lookup(
            "common/kv-short",
            "KV ends a block before the second checkpoint",
            "common-position",
            [blocks(224), [128, 256]],
            500,
        ),
        _lookup(
            "common/kv-just", "KV ends at it", "common-position", [blocks(256), [128, 256]], 500
        ),
        _lookup(
            "common/kv-alone", "KV without a checkpoint", "common-position", [blocks(256), []], 500
        ),
        _lookup(
            "common/states-alone",
            "checkpoints without KV",
            "common-position",
            [[], [128, 256]],
            500,
        ),
        _lookup(
            "common/hole",
            "a KV block is missing before the second checkpoint",
            "hole",
            [[*blocks(160), *range(224, 385, 32)], [128, 256, 384]],
            500,
        ),
        _lookup(
            "common/no-beginning",
            "the first KV block is missing",
            "hole",
            [blocks(384)[1:], [128, 256]],
            500,
        ),
        _lookup(
            "common/later-alone",
            "the first checkpoint is gone, the second is there",
            "checkpoint-edge",
            [blocks(384), [256]],
            500,
        ),
        _lookup(
            "common/earlier-alone",
            "the second checkpoint is gone",
            "checkpoint-edge",
            [blocks(384), [128]],
            500,
        ),
    ]


def _lookup_tails() -> list[Case]:
    return [
        *(
            _lookup(
                f"tail/200-of-{n}",
                f"a request of 200 tokens left its state; this prompt has {n}",
                "tail-checkpoint last-token",
                [[*blocks(192), 200], [128, 200]],
                n,
            )
            for n in (199, 200, 201, 300)
        ),
        _lookup(
            "tail/kv-gone",
            "the state at 200 without the KV behind 192",
            "tail-checkpoint",
            [blocks(192), [128, 200]],
            300,
        ),
        _lookup(
            "tail/state-gone",
            "the KV tail without its state",
            "tail-checkpoint",
            [[*blocks(192), 200], [128]],
            300,
        ),
        _lookup(
            "tail/at-a-block",
            "a tail at a KV boundary",
            "tail-checkpoint",
            [blocks(192), [128, 192]],
            300,
        ),
        _lookup(
            "tail/two",
            "two tails behind one block: the longer one has no state",
            "tail-checkpoint",
            [[*blocks(192), 200, 210], [128, 200]],
            300,
        ),
        _lookup(
            "tail/two-states",
            "two tails, both with states",
            "tail-checkpoint",
            [[*blocks(192), 200, 210], [128, 200, 210]],
            300,
        ),
        _lookup(
            "tail/behind-a-hole",
            "the block before the tail is gone",
            "hole tail-checkpoint",
            [[*blocks(160), 200], [128, 200]],
            300,
        ),
    ]


def _lookup_plain() -> list[Case]:
    groups = [GroupSpec("full", BLOCK)]
    return [
        *(
            _lookup(
                f"plain/96-of-{n}",
                f"attention alone: three blocks are cached, the prompt has {n}",
                "last-token",
                [blocks(96)],
                n,
                groups,
            )
            for n in (95, 96, 97, 128)
        ),
        _lookup(
            "plain/tail",
            "attention alone: and a tail of 4",
            "tail-checkpoint",
            [[*blocks(96), 100]],
            128,
            groups,
        ),
        _lookup(
            "plain/hole",
            "attention alone: the second block is gone",
            "hole",
            [[32, 96]],
            128,
            groups,
        ),
    ]


# --- split ----------------------------------------------------------------------------------------
# How many tokens of a prompt a step takes: what is offered, what is left, and what both pools have
# room for. `config`: blocks that are free beside those that the request holds for its first `start`
# tokens (`kv_free`, `la_free`).


def split_cases() -> list[Case]:
    """Return every question."""
    return [
        *(
            _split(
                f"offered-{asked}",
                f"a prompt of 100, {asked} tokens offered, room for all",
                0,
                asked,
                100,
            )
            for asked in (1, 31, 32, 33, 99, 100, 101, 256)
        ),
        *(
            _split(
                f"kv-{blocks}-blocks",
                f"{blocks} KV blocks are free: room for {32 * blocks} tokens",
                0,
                256,
                100,
                kv=blocks,
            )
            for blocks in (0, 1, 3, 4)
        ),
        *(
            _split(
                f"states-{blocks}-blocks",
                f"{blocks} intervals are free: room for {128 * blocks} tokens",
                0,
                512,
                300,
                la=blocks,
            )
            for blocks in (0, 1, 2, 3)
        ),
        _split("rest", "the rest of a prompt, in a block that it holds", 64, 256, 90, kv=1, la=1),
        _split("rest-beyond-kv", "the same with too few KV blocks left", 64, 256, 190, kv=1, la=2),
        _split(
            "inside-a-block",
            "it stands inside its last block and no other is free",
            40,
            256,
            190,
            kv=0,
            la=1,
        ),
    ]


def _split(
    name: str, comment: str, start: int, asked: int, prompt: int, kv: int = 8, la: int = 4
) -> Case:
    question = SplitInput(
        start, asked, prompt, prompt, GROUPS, config={"kv_free": kv, "la_free": la}
    )
    return case("split", name, comment, "room", question)


# --- lifecycle ------------------------------------------------------------------------------------
# Whole lives: prompts served twice around blocks of 16 tokens and intervals of 32, tails continued,
# and scenarios.


STORIES: dict[str, list[str]] = {
    "exact-replay": ["last-token", "checkpoint-edge"],
    "siblings-in-a-block": ["common-position", "shared-write"],
    "siblings-at-a-block": ["checkpoint-edge"],
    "preempt-and-resume": ["lost-work"],
    "abort-and-retry": ["counts", "lost-work"],
    "reset-with-running": ["stale"],
    "new-weights": ["stale"],
    "identities": ["identity"],
    "long-decode": ["tail-checkpoint", "shared-write"],
    "crowded": ["counts", "lost-work", "room"],
}
"""What each scenario hunts."""


def lifecycle_cases() -> list[Case]:
    """Return every question."""
    mamba = layouts.load("full-mamba")
    by_two = Configuration(mamba, {"cache_interval_multiplier": 2}, "openvino_genai")
    plain = Configuration(layouts.load("full"), {}, "openvino_genai")
    off = Configuration(mamba, {"enable_prefix_caching": False}, "openvino_genai")
    edges = ["checkpoint-edge", "last-token"]
    return [
        *scripts.replays(by_two, "manager", (1, 16, 31, 32, 33, 63, 64, 65), edges),
        *scripts.replays(plain, "manager", (15, 16, 17, 32), edges),
        *scripts.replays(off, "manager", (33,), ["counts"]),
        *scripts.turns(by_two, "manager", (1, 15, 31, 32), ["tail-checkpoint"]),
        *scripts.continued_twice(by_two, "manager", (7, 15), ["shared-write", "tail-checkpoint"]),
        *scripts.stories(by_two, "manager", STORIES),
        *scripts.stories(
            by_two, "scheduler", STORIES, ("crowded", "exact-replay", "preempt-and-resume")
        ),
    ]
