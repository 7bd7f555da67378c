"""How many blocks each pool gets.

`config` has the fields of `SchedulerConfig`, the bytes of a KV block and of a linear-attention block (`kv_block_bytes`,
`la_block_bytes`), the tokens of a KV block (`kv_block_size`, 32 if left out), the `release`, and the machine's memory in bytes
(`total_memory_bytes`, not looked at if left out). Figures called measured were taken on release 2026.4.1.
"""

from __future__ import annotations

from typing import Any

from harness.vectors.case import Case
from harness.vectors.form import SizingInput

KV, LA = 8192, 835584
"""Bytes of the two kinds of block in the measured model: 102 KV blocks weigh what a state weighs."""
UNLIMITED = 2**64 - 1
PREFIX = {"kv_block_bytes": KV, "la_block_bytes": LA, "enable_prefix_caching": True}
PLAIN = {"kv_block_bytes": KV, "la_block_bytes": LA}


def cases() -> list[Case]:
    """Return every question."""
    return [
        *_explicit(),
        *_adaptive(),
        *_both(),
        *_budgets(),
        *_without_checkpoints(),
        *_dynamic(),
        *_refusals(),
        *_overflows(),
    ]


def _case(name: str, comment: str, flag: str, config: dict[str, Any], **more: Any) -> Case:
    return Case(f"sizing/{name}", comment, [flag], SizingInput(config | more))


def _refused(name: str, comment: str, flag: str, field: str, words: str, config: dict[str, Any], **more: Any) -> Case:
    return Case(f"sizing/{name}", comment, [flag], SizingInput(config | more), refused=field, words=words)


def _explicit() -> list[Case]:
    return [
        *(
            _case(
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
            _case(
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


def _adaptive() -> list[Case]:
    return [
        *(
            _case(
                f"adaptive/{kv}",
                f"{kv} KV blocks, the multiplier follows from the bytes: measured 102",
                "adaptive-multiplier",
                PREFIX,
                num_kv_blocks=kv,
            )
            for kv in (102, 103, 204, 205, 1024)
        ),
        _case("adaptive/before", "release 2026.2 takes 8", "adaptive-multiplier", PREFIX, num_kv_blocks=1024, release="2026.2"),
        *(
            _case(
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


def _both() -> list[Case]:
    return [
        _case("explicit/states-too", "both are set", "manual-states", PREFIX, num_kv_blocks=64, num_linear_attention_blocks=20),
        _case(
            "explicit/wins",
            "KV blocks win over a budget",
            "shared-budget",
            PREFIX,
            num_kv_blocks=64,
            cache_size=1,
            cache_interval_multiplier=8,
        ),
        _case(
            "explicit/no-states",
            "a model without linear attention",
            "interval-rounding",
            {"kv_block_bytes": KV},
            num_kv_blocks=64,
            enable_prefix_caching=True,
        ),
        _case(
            "explicit/on-gpu",
            "blocks of 16 tokens",
            "interval-rounding",
            PREFIX,
            num_kv_blocks=65,
            cache_interval_multiplier=8,
            kv_block_size=16,
        ),
    ]


def _budgets() -> list[Case]:
    tight = {"kv_block_bytes": 2**27, "la_block_bytes": 2**27, "enable_prefix_caching": True}
    return [
        _case("budget/1-gib", "1 GiB: measured", "shared-budget", PREFIX, cache_size=1, cache_interval_multiplier=8),
        _case(
            "budget/states-discarded",
            "an explicit number of states is discarded: measured",
            "manual-states",
            PREFIX,
            cache_size=1,
            cache_interval_multiplier=8,
            num_linear_attention_blocks=20,
        ),
        _case("budget/adaptive", "1 GiB, the multiplier from the bytes", "shared-budget", PREFIX, cache_size=1),
        *(
            _case(
                f"budget/eight-blocks-by-{m}",
                f"room for eight blocks of either kind, a state in {m}",
                "shared-budget",
                tight,
                cache_size=1,
                cache_interval_multiplier=m,
            )
            for m in (1, 2, 3, 6, 7, 8)
        ),
        _case(
            "budget/one-pair",
            "room for a block of each kind exactly",
            "shared-budget",
            tight,
            cache_size=1,
            cache_interval_multiplier=8,
            kv_block_bytes=2**29,
            la_block_bytes=2**29,
        ),
        _case(
            "budget/no-pair",
            "a byte less: no block at all",
            "shared-budget",
            tight,
            cache_size=1,
            cache_interval_multiplier=8,
            kv_block_bytes=2**29,
            la_block_bytes=2**29 + 1,
        ),
        _case(
            "budget/attention-alone", "a model without linear attention", "shared-budget", {"kv_block_bytes": KV}, cache_size=1
        ),
    ]


def _without_checkpoints() -> list[Case]:
    return [
        _case(
            "fixed/server", "bounded batches: a state for each of 256 sequences", "client-or-server", PLAIN, num_kv_blocks=64
        ),
        _case("fixed/server-of-3", "bounded batches, 3 sequences", "client-or-server", PLAIN, num_kv_blocks=64, max_num_seqs=3),
        _case(
            "fixed/client",
            "unlimited batches: one state",
            "client-or-server",
            PLAIN,
            num_kv_blocks=64,
            max_num_batched_tokens=UNLIMITED,
        ),
        _case(
            "fixed/almost-unlimited",
            "one token less is bounded",
            "client-or-server",
            PLAIN,
            num_kv_blocks=64,
            max_num_batched_tokens=UNLIMITED - 1,
        ),
        _case(
            "fixed/by-hand",
            "the number of states is set",
            "manual-states",
            PLAIN,
            num_kv_blocks=64,
            num_linear_attention_blocks=5,
        ),
        _case("fixed/budget", "the states come off the budget first", "shared-budget", PLAIN, cache_size=1, max_num_seqs=4),
        _case(
            "fixed/budget-client", "one state comes off", "shared-budget", PLAIN, cache_size=1, max_num_batched_tokens=UNLIMITED
        ),
        _case(
            "fixed/budget-full",
            "states that fill the budget exactly leave no KV",
            "shared-budget",
            PLAIN,
            cache_size=1,
            max_num_seqs=4,
            la_block_bytes=2**28,
        ),
    ]


def _dynamic() -> list[Case]:
    return [
        _case("dynamic/nothing-set", "neither blocks nor a budget", "dynamic", PREFIX),
        _case("dynamic/states-set", "states alone are set", "dynamic", PREFIX, num_linear_attention_blocks=20),
        _case(
            "dynamic/no-sequences",
            "KV blocks for no sequences: measured dynamic",
            "dynamic",
            PLAIN,
            num_kv_blocks=16,
            max_num_seqs=0,
        ),
    ]


def _refusals() -> list[Case]:
    return [
        _refused(
            "refused/multiplier-0",
            "no interval at all",
            "bad-config",
            "cache_interval_multiplier",
            "SchedulerConfig cache_interval_multiplier must be greater than 0 when prefix caching is enabled",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=0,
        ),
        _refused(
            "refused/states-of-a-plain-model",
            "states for a model that has none",
            "bad-config",
            "num_linear_attention_blocks",
            "SchedulerConfig num_linear_attention_blocks can be set only for models with linear attention cache inputs",
            {"kv_block_bytes": KV},
            num_linear_attention_blocks=1,
        ),
        _refused(
            "refused/budget-beyond-memory",
            "1000 GiB on a machine of 24",
            "memory-check",
            "cache size",
            "Requested cache size is larger than available memory size on the system.",
            PREFIX,
            cache_size=1000,
            total_memory_bytes=24 * 2**30,
        ),
        _refused(
            "refused/blocks-beyond-memory",
            "2 000 000 blocks on a machine of 1 GiB",
            "memory-check",
            "cache blocks",
            "Requested cache blocks require more memory than available on the system.",
            PREFIX,
            num_kv_blocks=2_000_000,
            total_memory_bytes=2**30,
        ),
        _refused(
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


def _overflows() -> list[Case]:
    multiplier = "cache_interval_multiplier"
    return [
        _refused(
            "refused/multiplier-2-60",
            "an interval beyond 64 bits",
            "overflow",
            multiplier,
            "SchedulerConfig cache_interval_multiplier is too large for KV cache block size.",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=2**60,
        ),
        _refused(
            "refused/multiplier-2-58",
            "an interval of 2^63 tokens",
            "overflow",
            multiplier,
            "",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=2**58,
        ),
        _refused(
            "refused/multiplier-2-26",
            "an interval of 2^31 tokens",
            "overflow",
            multiplier,
            "",
            PREFIX,
            num_kv_blocks=8,
            cache_interval_multiplier=2**26,
        ),
        _refused(
            "refused/blocks-2-49",
            "2^49 blocks",
            "overflow",
            "num_kv_blocks",
            "",
            PREFIX,
            num_kv_blocks=2**49,
            cache_interval_multiplier=8,
        ),
        _refused("refused/negative", "−1 blocks", "bad-config", "num_kv_blocks", "", PREFIX, num_kv_blocks=-1),
        _refused("refused/half-a-gib", "half a GiB", "bad-config", "cache_size", "", PREFIX, cache_size="0.5"),
        _refused(
            "refused/block-of-no-bytes", "a KV block of no bytes", "bad-config", "kv_block_bytes", "", PREFIX, kv_block_bytes=0
        ),
        _refused(
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
