"""Settings that follow from a model, and what is refused when an engine starts.

Without groups, `config` has the bytes of one layer: of a token in attention and of a state; `kernel_block` in tokens, the
`release`. With groups it has what the two programs are started with: `chunk_size`, `max_num_batched_tokens`,
`mamba_cache_mode`, `separate_object_groups`, `release`. Windows are in chunks then, −1 for all of them.

The state of a gated-delta layer is 3 inputs of a convolution in 16 bits, and a matrix for each value head in 32 bits.
"""

from __future__ import annotations

from typing import Any

from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import SizingInput

LEAST = (
    "require max_num_batched_tokens >= block_size so every prefill step advances at least one full block; "
    "got max_num_batched_tokens=543, block_size=544. Set --max-num-batched-tokens to at least 544."
)
BETWEEN = (
    "require block_size <= max_num_batched_tokens < 2 * block_size so every prefill step advances exactly one block and every "
    "block boundary gets a state snapshot; got max_num_batched_tokens={m}, block_size=544. Set --max-num-batched-tokens 544."
)
CHUNK = (
    "LMCache chunk size 543 must be a multiple of 544 (the vLLM block size scaled by decode_context_parallel_size). "
    "Set --chunk-size to a multiple of 544."
)
"""LMCache's own words."""

FULL, STATE = GroupSpec("full", 544), GroupSpec("recurrent", 544)
"""The groups of a model whose unified block is 544 tokens."""


def cases() -> list[Case]:
    """Return every question."""
    return [*_models(), *_edges(), *_starts(), *_windows(), *_sizes_refused(), *_groups_refused()]


def _model(name: str, comment: str, attention: int, state: int, kernel: int, **more: Any) -> Case:
    config = {"attention_bytes_per_token": attention, "state_bytes": state, "kernel_block": kernel, **more}
    return Case(f"sizing/model/{name}", comment, ["block-size"], SizingInput(config))


def _models() -> list[Case]:
    small = (2 * 512 * 2, 3 * 6144 * 2 + 16 * 128 * 128 * 4)
    large = (2 * 1024 * 2, 3 * 10240 * 2 + 48 * 128 * 128 * 4)
    return [
        _model("qwen3.5-0.8b", "published: N = 544", *small, 16),
        _model("qwen3.6-27b", "published: N = 784", *large, 16),
        _model("qwen3.5-0.8b-old", "release 0.5.3: a step is shorter than two blocks", *small, 16, release="0.5.3"),
        _model("qwen3.5-0.8b-by-2", "a chunk of two blocks", *small, 16, chunk_multiple=2),
        _model("kernel-64", "a kernel block of 64", *small, 64),
    ]


def _edges() -> list[Case]:
    return [
        _model(f"{pages}", f"a state of {size} bytes, 16 tokens of 100 bytes a kernel block", 100, size, 16)
        for pages, size in (
            ("one-byte", 1),
            ("a-byte-less", 1599),
            ("exactly-one", 1600),
            ("a-byte-more", 1601),
            ("exactly-three", 4800),
        )
    ]


def _start(
    name: str, comment: str, flag: str, groups: list[GroupSpec], refused: str = "", words: str = "", **config: Any
) -> Case:
    return Case(f"sizing/start/{name}", comment, [flag], SizingInput(config, groups), refused=refused, words=words)


def _starts() -> list[Case]:
    hybrid = [FULL, STATE]
    return [
        *(
            _start(
                f"budget-{m}", f"steps of {m} tokens, N = 544", "step-size", hybrid, chunk_size=544, max_num_batched_tokens=m
            )
            for m in (544, 545, 1087, 1088, 8192)
        ),
        *(
            _start(
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
        _start("chunk-of-two", "a chunk of two blocks", "chunk-size", hybrid, chunk_size=1088, max_num_batched_tokens=1087),
        _start(
            "attention-alone",
            "no states: any budget",
            "step-size",
            [GroupSpec("full", 16)],
            chunk_size=256,
            max_num_batched_tokens=1,
        ),
        _start(
            "mode-all",
            "release 0.5.5 takes states of every block too",
            "group-kinds",
            hybrid,
            chunk_size=544,
            max_num_batched_tokens=1,
            mamba_cache_mode="all",
            release="0.5.5",
        ),
        _start(
            "merged",
            "one object group for all",
            "object-groups",
            hybrid,
            chunk_size=544,
            max_num_batched_tokens=544,
            separate_object_groups=False,
        ),
    ]


def _windows() -> list[Case]:
    return [
        _start(
            f"window-{w}",
            f"a window of {w} tokens, chunks of 64, blocks of 16",
            "window-chunks",
            [GroupSpec("full", 16), GroupSpec("sliding", 16, window=w), GroupSpec("recurrent", 64)],
            chunk_size=64,
            max_num_batched_tokens=64,
        )
        for w in (16, 48, 64, 65, 127, 128, 129, 192)
    ]


def _sizes_refused() -> list[Case]:
    hybrid, field = [FULL, STATE], "max_num_batched_tokens"
    unequal = [GroupSpec("full", 16), GroupSpec("full", 24)]
    return [
        _start(
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
            _start(
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
        _start(
            "chunk-543",
            "a chunk that is no multiple of the block",
            "chunk-size",
            hybrid,
            "chunk size",
            CHUNK,
            chunk_size=543,
            max_num_batched_tokens=544,
        ),
        _start(
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


def _groups_refused() -> list[Case]:
    hybrid = [FULL, STATE]
    return [
        _start(
            "window-inside-a-chunk",
            "a window of 17 in a chunk of 64, blocks of 16",
            "window-chunks",
            [GroupSpec("full", 16), GroupSpec("sliding", 16, window=17)],
            "sliding window size",
            "group 1: sub-chunk sliding window size 17 must be a multiple of tokens_per_block 16",
            chunk_size=64,
            max_num_batched_tokens=64,
        ),
        _start(
            "mode-none",
            "no reusable states",
            "group-kinds",
            hybrid,
            "mamba_cache_mode",
            "group 1: MambaSpec with mamba_cache_mode='none' (only 'align' and 'all' keep reusable state snapshots)",
            chunk_size=544,
            max_num_batched_tokens=544,
            mamba_cache_mode="none",
        ),
        _start(
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
        _start(
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
