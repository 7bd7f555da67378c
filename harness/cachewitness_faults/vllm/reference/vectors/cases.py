"""What vLLM is asked, and the bugs that the questions hunt."""

from __future__ import annotations

from typing import Any

from cachewitness.core.trace_format import GroupSpec
from cachewitness.vectors import scripts
from cachewitness.vectors.case import Case, case
from cachewitness.vectors.form import Flag, RetentionInput, SizingInput, SplitInput
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

FLAGS: dict[str, Flag] = {
    "block-boundary": Flag("a length at a multiple of the block is rounded to the wrong side"),
    "last-token": Flag(
        "a prompt that is cached whole leaves nothing to compute, so there are no logits"
    ),
    "hole": Flag(
        "a missing block in the middle is passed over, and what follows it is hit all the same"
    ),
    "window-edge": Flag(
        "the window is counted without its query, or with one block too few",
        "vllm-project/vllm#43090",
    ),
    "one-token-window": Flag(
        "a window that needs no earlier block is treated as one that needs some"
    ),
    "group-fixpoint": Flag(
        "one group's shorter hit is not told to the others", "local-inference-lab/vllm#403"
    ),
    "state-without-attention": Flag("a state is resumed where the attention blocks do not reach"),
    "shared-prefix-boundary": Flag(
        "the prefix that others share goes on, and nobody is told to keep a state there",
        "vllm-project/vllm#37898",
    ),
    "inside-a-block": Flag(
        "a hit inside a block is rounded to the block, or not found", "vllm-project/vllm#45238"
    ),
    "eagle-margin": Flag(
        "the block that a speculative look-up gives back is counted as hit, or not asked for",
        "vllm-project/vllm#52216",
    ),
    "unequal-blocks": Flag(
        "groups with blocks of different sizes are aligned to one of them and not to all"
    ),
    "caching-off": Flag("something is hit although caching is off"),
    "replay-boundary": Flag(
        "the boundary at which the same prompt resumes is not kept", "vllm-project/vllm#53504"
    ),
    "interval": Flag(
        "more or less is kept than one boundary in an interval", "vllm-project/vllm#45845"
    ),
    "dense": Flag("an interval that the window or the block fills is thinned out all the same"),
    "mask-offset": Flag(
        "a mask is computed from the start of the chunk and not of the request",
        "vllm-project/vllm#45845",
    ),
    "chunk-end": Flag(
        "a chunk ends inside a block, so that no state lies on a boundary",
        "vllm-project/vllm#53084",
    ),
    "run-past": Flag(
        "a chunk runs past the last boundary at which the prompt can be resumed",
        "vllm-project/vllm#48402",
    ),
    "put-off": Flag(
        "a chunk too short for a block is computed all the same, or stalls a request that could"
        " go on"
    ),
    "wide-block": Flag("a block wider than a step never fills, or its private state is published"),
    "recomputed-output": Flag(
        "what was generated before a preemption is not treated as prefill",
        "vllm-project/vllm#31583",
    ),
    "sizing": Flag("sizes that depend on all groups are taken from one of them"),
    "admission": Flag(
        "a request is admitted that cannot finish, or refused although blocks are recycled"
    ),
    "bad-config": Flag("a configuration that contradicts itself is accepted"),
    "stale": Flag(
        "content of before a reset, or of other weights, is hit", "vllm-project/vllm#34382"
    ),
    "identity": Flag("content of another salt, adapter or image is hit", "vllm-project/vllm#3263"),
    "same-step": Flag("a state is hit in the step that writes it", "vllm-project/vllm#29387"),
    "never-written": Flag(
        "a key outlives the step that should have written its block", "vllm-project/vllm#57580"
    ),
    "lost-work": Flag(
        "a request that lost its blocks counts tokens that it does not hold",
        "vllm-project/vllm#31583",
    ),
    "counts": Flag("blocks are lost, or given back twice, when a request ends"),
    "evicts-what-it-hit": Flag("making room evicts what was just hit", "vllm-project/vllm#10507"),
    "drafts": Flag(
        "a rejected draft's state is kept as if the draft stood", "vllm-project/vllm#53912"
    ),
    "in-flight": Flag("a step is scheduled on tokens that an earlier one has not produced"),
    "tier": Flag(
        "what comes back from the second tier is not what was stored", "LMCache/LMCache#4247"
    ),
}


B = 16
"""Tokens in a block, unless said otherwise."""


def full(block_size: int = B) -> GroupSpec:
    """Return a full-attention group."""
    return GroupSpec("full", block_size)


def sliding(window: int, block_size: int = B) -> GroupSpec:
    """Return a sliding-window group; the window counts the query."""
    return GroupSpec("sliding", block_size, window=window)


def recurrent(block_size: int = B) -> GroupSpec:
    """Return a recurrent group."""
    return GroupSpec("recurrent", block_size)


def upto(tokens: int, block_size: int = B) -> list[int]:
    """Return every prefix of whole blocks up to so many tokens."""
    return list(range(block_size, tokens + 1, block_size))


# --- sizing ---------------------------------------------------------------------------------------
# Sizes that a configuration leads to, and configurations that are refused. `config` holds the
# options of the policy, the `pages` of the pool, and `tokens`, the length of a new request whose
# need of blocks is asked. A window's share of that need is capped by what it holds at once: W − 1
# tokens, those of a step, and a block for the offset.


def sizing_cases() -> list[Case]:
    """Return every question."""
    return [*_sizing_alignments(), *_sizing_admissions(), *_sizing_refusals()]


def _sizing(
    name: str, comment: str, flag: str, groups: list[GroupSpec], refused: str = "", **config: Any
) -> Case:
    return case("sizing", name, comment, flag, SizingInput(config, groups), refused=refused)


def _sizing_alignments() -> list[Case]:
    hybrid = [full(), recurrent()]
    return [
        _sizing("one-group", "one group: hits end on its blocks", "sizing", [full()]),
        _sizing(
            "equal-blocks",
            "equal blocks: that is where hits end",
            "sizing",
            hybrid,
            retention_interval=None,
        ),
        _sizing(
            "state-of-four-blocks",
            "a state every four blocks: hits inside a block, 64 to cut chunks by",
            "sizing",
            [full(), recurrent(64)],
        ),
        _sizing(
            "sixteen-and-twenty-four",
            "16 and 24: hashes of 8, and hits inside a block",
            "sizing",
            [full(), recurrent(24)],
        ),
        _sizing(
            "windows-of-two-blocks",
            "a window with blocks of 32: no hits inside a block",
            "sizing",
            [full(), sliding(64, 32)],
        ),
        _sizing(
            "three-sizes",
            "16, 32 and 48: the multiple of all is 96",
            "sizing",
            [full(), sliding(64, 32), recurrent(48)],
        ),
        _sizing(
            "finer-hashes",
            "hashes of 4 with states of 16: hits inside a block",
            "inside-a-block",
            hybrid,
            hash_block_size=4,
        ),
        _sizing(
            "finer-hashes-window",
            "hashes of 4 but windows of 16: none inside",
            "inside-a-block",
            [*hybrid, sliding(32)],
            hash_block_size=4,
        ),
        _sizing(
            "eagle",
            "a speculative look-up gives a block back",
            "eagle-margin",
            hybrid,
            use_eagle=True,
        ),
        _sizing(
            "sparse-by-default",
            "since 0.30 reachable boundaries alone are kept",
            "interval",
            hybrid,
        ),
        _sizing(
            "dense-before",
            "in 0.26 everything is kept unless told otherwise",
            "interval",
            hybrid,
            release="0.26",
        ),
        _sizing(
            "interval-of-one-block",
            "an interval of one block",
            "interval",
            hybrid,
            retention_interval=16,
        ),
        _sizing(
            "interval-of-eight",
            "an interval of eight blocks",
            "interval",
            hybrid,
            retention_interval=128,
        ),
        _sizing(
            "caching-off",
            "without caching nothing is aligned",
            "caching-off",
            hybrid,
            enable_caching=False,
        ),
    ]


def _sizing_admissions() -> list[Case]:
    window = [full(), sliding(64)]
    return [
        *(
            _sizing(
                f"needs-{tokens}",
                f"{tokens} tokens over full attention and a state",
                "admission",
                [full(), recurrent()],
                tokens=tokens,
            )
            for tokens in (1, 15, 16, 17, 4096)
        ),
        *(
            _sizing(
                f"window-64-needs-{tokens}",
                f"{tokens} tokens over a window of 64, steps of 32: at most 95 tokens and an offset"
                " are held at once",
                "admission",
                window,
                tokens=tokens,
                max_num_batched_tokens=32,
            )
            for tokens in (63, 64, 65, 95, 96, 97, 112, 113, 1024)
        ),
    ]


def _sizing_refusals() -> list[Case]:
    hybrid = [full(), recurrent()]
    return [
        _sizing("block-of-nothing", "a block of 0 tokens", "bad-config", [full(0)], "block_size"),
        _sizing(
            "block-below-nothing",
            "a block of −16 tokens",
            "bad-config",
            [recurrent(-16), full()],
            "block_size",
        ),
        _sizing(
            "window-of-nothing",
            "a window of 0 tokens has no query",
            "bad-config",
            [full(), sliding(0)],
            "window",
        ),
        _sizing(
            "two-state-sizes",
            "states every 16 and every 32 tokens",
            "bad-config",
            [recurrent(16), recurrent(32)],
            "block_size block",
        ),
        _sizing("one-page", "the null block alone", "bad-config", hybrid, "num_blocks", pages=1),
        _sizing(
            "interval-off-the-block",
            "24 is no multiple of 16",
            "bad-config",
            hybrid,
            "retention_interval",
            retention_interval=24,
        ),
        _sizing(
            "interval-off-the-lcm",
            "32 is no multiple of 64",
            "bad-config",
            [full(), recurrent(64)],
            "retention_interval",
            retention_interval=32,
        ),
        _sizing(
            "interval-below-nothing",
            "an interval of −16",
            "bad-config",
            hybrid,
            "retention_interval",
            retention_interval=-16,
        ),
        _sizing(
            "interval-without-effect",
            "full attention keeps everything",
            "bad-config",
            [full()],
            "retention_interval",
            retention_interval=64,
        ),
        _sizing(
            "hash-off-the-block",
            "5 does not divide 16",
            "bad-config",
            hybrid,
            "hash_block_size prefix_match_unit",
            hash_block_size=5,
        ),
        _sizing(
            "hash-of-nothing",
            "hashes of 0 tokens",
            "bad-config",
            hybrid,
            "hash_block_size",
            hash_block_size=0,
        ),
        _sizing(
            "states-without-a-place",
            "mode none keeps no states to cache",
            "bad-config",
            hybrid,
            "mamba_cache_mode",
            mamba_cache_mode="none",
        ),
        _sizing(
            "watermark-of-all",
            "nothing of the pool may be used",
            "bad-config",
            hybrid,
            "watermark",
            watermark=1,
        ),
        _sizing(
            "no-batch",
            "a step of 0 tokens",
            "bad-config",
            hybrid,
            "max_num_batched_tokens",
            max_num_batched_tokens=0,
        ),
        _sizing(
            "not-a-number",
            "an interval in words",
            "bad-config",
            hybrid,
            "retention_interval",
            retention_interval="often",
        ),
        _sizing(
            "misspelt",
            "an option that there is not",
            "bad-config",
            hybrid,
            "retention_intervall",
            retention_intervall=64,
        ),
    ]


# --- retention ------------------------------------------------------------------------------------
# Masks: which of the columns that a chunk filled are kept. `reachable` are positions as the manager
# gets them: the replay boundary of a prompt of n tokens is n − 1, not yet rounded down.


def retention_cases() -> list[Case]:
    """Return every question."""
    return [*_retention_states(), *_retention_windows(), *_retention_unequal(), *_retention_eagle()]


def _retention(
    name: str,
    comment: str,
    flags: str,
    group: GroupSpec,
    columns: tuple[int, int],
    reachable: list[int],
    interval: int | None,
    **config: Any,
) -> Case:
    asked = RetentionInput(
        [full(), group],
        1,
        *columns,
        reachable=reachable,
        config={"retention_interval": interval, **config},
    )
    return case("retention", name, comment, flags, asked)


def _retention_states() -> list[Case]:
    state = recurrent()
    return [
        _retention("state/dense", "no interval: every state", "dense", state, (0, 8), [100], None),
        *(
            _retention(
                f"state/replay-{at}",
                f"reachable boundaries alone; a prompt of {at + 1} tokens resumes at"
                f" {at // 16 * 16}",
                "replay-boundary",
                state,
                (0, 8),
                [at],
                0,
            )
            for at in (0, 14, 15, 16, 17, 31, 32, 63, 64, 126, 127, 128)
        ),
        _retention(
            "state/nothing-reachable",
            "reachable boundaries alone, and there are none",
            "interval",
            state,
            (0, 8),
            [],
            0,
        ),
        _retention(
            "state/two-reachable",
            "a replay boundary and a shared-prefix boundary",
            "replay-boundary shared-prefix-boundary",
            state,
            (0, 8),
            [100, 40],
            0,
        ),
        *(
            _retention(
                f"state/interval-{interval}",
                f"one state in {interval} tokens",
                "interval",
                state,
                (0, 12),
                [],
                interval,
            )
            for interval in (16, 32, 48, 64, 192, 256)
        ),
        *(
            _retention(
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
            _retention(
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
        _retention(
            "state/empty-chunk", "no column was filled", "mask-offset", state, (4, 4), [64], 64
        ),
        _retention(
            "state/reachable-elsewhere",
            "the reachable boundary lies in another chunk",
            "mask-offset replay-boundary",
            state,
            (4, 8),
            [40],
            0,
        ),
    ]


def _retention_windows() -> list[Case]:
    return [
        *(
            _retention(
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
            _retention(
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
        _retention(
            "window/interval-is-the-window",
            "the window fills the interval: everything is kept",
            "dense",
            sliding(65),
            (0, 8),
            [70],
            64,
        ),
        _retention("window/unset", "no interval", "dense", sliding(33), (0, 8), [70], None),
        _retention(
            "window/at-the-start",
            "the reachable boundary is nearer than a window",
            "window-edge",
            sliding(65),
            (0, 8),
            [40],
            0,
        ),
        _retention(
            "window/chunk",
            "the tail lies across two chunks",
            "mask-offset window-edge",
            sliding(34),
            (4, 6),
            [96],
            0,
        ),
        _retention(
            "window/shared-prefix-boundary",
            "tails at a shared-prefix boundary and at the replay boundary",
            "shared-prefix-boundary window-edge",
            sliding(33),
            (0, 8),
            [120, 48],
            0,
        ),
    ]


def _retention_unequal() -> list[Case]:
    three = [full(), sliding(17), recurrent(64)]
    whole = [full(), recurrent(64)]

    def ask(
        name: str,
        comment: str,
        groups: list[GroupSpec],
        group: int,
        stop: int,
        reachable: list[int],
        interval: int | None,
    ) -> Case:
        asked = RetentionInput(
            groups,
            group,
            0,
            stop,
            reachable=reachable,
            config={"retention_interval": interval, "hash_block_size": 16},
        )
        return case("retention", name, comment, "unequal-blocks", asked)

    return [
        ask(
            "unequal/window-dense",
            "hits inside a block, so a window tail at each of its blocks",
            three,
            1,
            12,
            [],
            None,
        ),
        ask("unequal/window-sparse", "a tail at the last block before 150", three, 1, 12, [150], 0),
        ask("unequal/state-sparse", "the state at 128", three, 2, 3, [150], 0),
        ask(
            "unequal/state-inside",
            "a prompt that resumes at 48, inside the first state's block",
            whole,
            1,
            3,
            [48],
            0,
        ),
        ask("unequal/state-at-the-block", "one that resumes at 64", whole, 1, 3, [64], 0),
        ask("unequal/state-interval", "one state in two", whole, 1, 4, [], 128),
    ]


def _retention_eagle() -> list[Case]:
    return [
        _retention(
            "eagle/window",
            "a tail and the block that is given back",
            "eagle-margin window-edge",
            sliding(33),
            (0, 8),
            [80],
            0,
            use_eagle=True,
        ),
        _retention(
            "eagle/window-interval",
            "the same in every 96",
            "eagle-margin interval",
            sliding(33),
            (0, 12),
            [],
            96,
            use_eagle=True,
        ),
        _retention(
            "eagle/window-at-the-start",
            "at the first block",
            "eagle-margin window-edge",
            sliding(33),
            (0, 8),
            [16],
            0,
            use_eagle=True,
        ),
        _retention(
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


# --- split ----------------------------------------------------------------------------------------
# Chunk ends: how many tokens a request computes in a step where recurrent states are cached. Blocks
# have 16 tokens.


def split_cases() -> list[Case]:
    """Return every question."""
    return [
        *_split_prefill(),
        *_split_ends(),
        *_split_inside(),
        *_split_shared_prefix_boundaries(),
        *_split_wide(),
        *_split_later(),
        *_split_eagle(),
    ]


def _split(
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
    asked = SplitInput(
        span[0], span[1], prompt, known or prompt, groups, shared_prefix_boundary, config
    )
    return case("split", name, comment, flags, asked)


def _split_prefill() -> list[Case]:
    return [
        _split(
            f"budget-{asked}",
            f"a prompt of 100, {asked} tokens offered",
            "chunk-end put-off",
            (0, asked),
            100,
        )
        for asked in (1, 15, 16, 17, 31, 32, 33, 95, 96, 97, 100)
    ]


def _split_ends() -> list[Case]:
    return [
        *(
            _split(
                f"whole-{n}",
                f"a prompt of {n} offered whole: it stops where it can be resumed",
                "run-past last-token",
                (0, n),
                n,
            )
            for n in (1, 15, 16, 17, 31, 32, 33, 96, 97)
        ),
        _split("tail-of-four", "from the last boundary to the end", "run-past", (96, 4), 100),
        _split(
            "tail-cut", "the tail in two steps would end inside its block", "put-off", (96, 2), 100
        ),
        _split(
            "tail-of-a-block", "the last block of an aligned prompt", "last-token", (80, 16), 96
        ),
        _split("last-token", "one token is left", "last-token", (99, 1), 100),
    ]


def _split_inside() -> list[Case]:
    return [
        _split(
            "from-5",
            "a chunk that starts inside a block stops at its end",
            "chunk-end",
            (5, 95),
            100,
        ),
        _split("from-5-short", "offered less than the rest of the block", "put-off", (5, 8), 100),
        _split("from-5-just", "offered exactly the rest", "chunk-end", (5, 11), 100),
        _split("from-15", "one token before a boundary", "chunk-end", (15, 40), 100),
        _split(
            "hash-4-tail",
            "hits may end inside a block: stop at the tail of the prompt",
            "inside-a-block",
            (96, 4),
            100,
            hash_block_size=4,
        ),
        _split(
            "hash-4-whole",
            "the boundary before it comes first",
            "inside-a-block run-past",
            (0, 100),
            100,
            hash_block_size=4,
        ),
        _split(
            "hash-4-tail-of-99",
            "a prompt of 99: its tail is at 96, a boundary",
            "inside-a-block",
            (96, 3),
            99,
            hash_block_size=4,
        ),
        _split(
            "hash-4-tail-of-103",
            "a prompt of 103: its tail is at 100",
            "inside-a-block",
            (96, 7),
            103,
            hash_block_size=4,
        ),
        _split(
            "hash-4-behind",
            "the tail has been passed",
            "inside-a-block",
            (100, 3),
            103,
            hash_block_size=4,
        ),
    ]


def _split_shared_prefix_boundaries() -> list[Case]:
    return [
        *(
            _split(
                f"shared-prefix-boundary-{at}",
                f"others leave at {at}: keep the state at {at // 16 * 16}",
                "shared-prefix-boundary",
                (0, 96),
                100,
                shared_prefix_boundary=at,
            )
            for at in (15, 16, 32, 40, 47, 48, 95, 96)
        ),
        _split(
            "shared-prefix-boundary-behind",
            "others left before this chunk",
            "shared-prefix-boundary",
            (48, 48),
            100,
            shared_prefix_boundary=32,
        ),
        _split(
            "shared-prefix-boundary-here",
            "others leave where it starts",
            "shared-prefix-boundary",
            (32, 64),
            100,
            shared_prefix_boundary=32,
        ),
        _split(
            "shared-prefix-boundary-beyond",
            "others leave behind this chunk",
            "shared-prefix-boundary",
            (0, 32),
            100,
            shared_prefix_boundary=64,
        ),
    ]


def _split_wide() -> list[Case]:
    groups = [full(), recurrent(64)]
    wide = [
        (
            "first-step",
            "a block of 64, steps of 32: on the way, on a private state",
            (0, 32),
            200,
            32,
        ),
        ("second-step", "the block is full", (32, 32), 200, 32),
        ("third-of-24", "steps of 24 stop at the boundary", (48, 24), 200, 24),
        ("step-of-63", "one token short of a block", (0, 63), 200, 63),
        ("step-of-64", "exactly a block", (0, 64), 200, 64),
        (
            "rest-of-a-step",
            "steps of 64, but only 32 are left of this one: put off",
            (0, 32),
            200,
            64,
        ),
    ]
    return [
        _split(
            f"wide/{name}",
            comment,
            "wide-block",
            span,
            prompt,
            groups=groups,
            max_num_batched_tokens=batch,
        )
        for name, comment, span, prompt, batch in wide
    ]


def _split_later() -> list[Case]:
    return [
        _split("decode", "a token is decoded", "recomputed-output", (100, 1), 100, known=101),
        _split(
            "decode-at-a-boundary",
            "a token is decoded into a new block",
            "recomputed-output",
            (112, 1),
            100,
            known=113,
        ),
        _split(
            "again-from-0",
            "preempted with 30 generated tokens: those are prefill now",
            "recomputed-output",
            (0, 130),
            100,
            known=130,
        ),
        _split("again-tail", "the last of them", "recomputed-output", (128, 2), 100, known=130),
        _split(
            "again-short",
            "offered less than a block on the way",
            "recomputed-output put-off",
            (96, 10),
            100,
            known=130,
        ),
    ]


def _split_eagle() -> list[Case]:
    return [
        _split(
            f"eagle-{n}",
            f"a speculative look-up gives a block back: a prompt of {n} resumes one earlier",
            "eagle-margin run-past",
            (0, n),
            n,
            use_eagle=True,
        )
        for n in (31, 32, 33, 95, 96, 97)
    ]


# --- lifecycle ------------------------------------------------------------------------------------
# Whole lives: prompts served twice at lengths around the block, the interval and the window, and
# the told scenarios.


REPLAYS: tuple[tuple[str, dict[str, Any], tuple[int, ...]], ...] = (
    ("full", {}, (1, 15, 16, 17, 32, 33)),
    ("full-mamba", {"retention_interval": 0}, (1, 15, 16, 17, 31, 32, 33, 48)),
    ("full-mamba", {"retention_interval": 64}, (63, 64, 65, 127, 128, 129)),
    ("full-mamba", {"retention_interval": 0, "hash_block_size": 4}, (20, 21, 33)),
    ("full-mamba", {"retention_interval": 0, "use_eagle": True}, (32, 33, 48, 49)),
    ("full-swa", {"retention_interval": 0}, (16, 17, 31, 32, 33, 47, 48, 49)),
    ("full-swa-mamba", {"retention_interval": None}, (16, 17, 48, 49)),
    ("full-mamba-unequal", {"retention_interval": 0}, (63, 64, 65, 80, 81)),
)

STORIES: dict[str, list[str]] = {
    "exact-replay": ["replay-boundary", "last-token"],
    "siblings-in-a-block": ["shared-prefix-boundary"],
    "siblings-at-a-block": ["shared-prefix-boundary", "block-boundary"],
    "siblings-in-one-step": ["same-step"],
    "generated-and-shared": ["drafts"],
    "second-tier": ["tier"],
    "multi-turn": ["counts"],
    "preempt-and-resume": ["lost-work", "recomputed-output"],
    "abort-and-retry": ["counts", "never-written", "drafts"],
    "withdrawn": ["never-written"],
    "one-group-evicted": ["state-without-attention"],
    "reset-with-running": ["stale", "in-flight"],
    "new-weights": ["stale", "tier"],
    "identities": ["identity"],
    "long-decode": ["interval", "window-edge", "in-flight"],
    "long-chunks": ["chunk-end", "shared-prefix-boundary"],
    "crowded": ["evicts-what-it-hit", "admission"],
}
"""What each scenario hunts."""

MANAGER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-mamba", {"retention_interval": 0}),
    ("full-swa", {"retention_interval": 64}),
)
"""On these every scenario that applies is told at manager level."""

SCHEDULER: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    (
        "full-mamba",
        {"retention_interval": 0},
        ("siblings-in-one-step", "preempt-and-resume", "crowded", "long-chunks", "new-weights"),
    ),
    (
        "full-mamba",
        {"retention_interval": 0, "num_speculative_tokens": 3},
        ("generated-and-shared", "exact-replay"),
    ),
    (
        "full-swa-mamba",
        {"retention_interval": None, "num_speculative_tokens": 4},
        ("long-decode", "abort-and-retry"),
    ),
    (
        "full-swa-mamba",
        {"retention_interval": None, "async_depth": 1},
        ("long-decode", "reset-with-running"),
    ),
    (
        "full-swa-mamba",
        {"retention_interval": None, "tier_pages": 96},
        ("second-tier", "new-weights"),
    ),
)
"""And on these the named ones at scheduler level: plain, with drafts, with a step in flight, with
a second tier."""


def lifecycle_cases() -> list[Case]:
    """Return every question."""
    out = []
    for layout, options, lengths in REPLAYS:
        out += scripts.replays(
            _configuration(layout, options),
            "manager",
            lengths,
            ["replay-boundary", "last-token", "block-boundary"],
        )
    for layout, interval in (("full-mamba", None), ("full-swa", 64)):
        configuration = _configuration(layout, {"retention_interval": interval})
        out += scripts.turns(
            configuration, "manager", (15, 16, 17, 32), ["block-boundary", "interval"]
        )
    for layout, options in MANAGER:
        out += scripts.stories(_configuration(layout, options), "manager", STORIES)
    for layout, options, names in SCHEDULER:
        out += scripts.stories(_configuration(layout, options), "scheduler", STORIES, names)
    return out


def _configuration(layout: str, options: dict[str, Any]) -> Configuration:
    return Configuration(layouts.load(layout), options)
