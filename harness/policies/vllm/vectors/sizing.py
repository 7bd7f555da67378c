"""Sizes that a configuration leads to, and configurations that are refused.

`config` holds the options of the policy, the `pages` of the pool, and `tokens`, the length of a new request whose need of
blocks is asked. A window's share of that need is capped by what it holds at once: W − 1 tokens, those of a step, and a block
for the offset.
"""

from __future__ import annotations

from typing import Any

from harness.policies.vllm.vectors.groups import full, recurrent, sliding
from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import SizingInput


def cases() -> list[Case]:
    """Return every question."""
    return [*_alignments(), *_admissions(), *_refusals()]


def _case(name: str, comment: str, flag: str, groups: list[GroupSpec], refused: str = "", **config: Any) -> Case:
    return Case(f"sizing/{name}", comment, [flag], SizingInput(config, groups), refused)


def _alignments() -> list[Case]:
    hybrid = [full(), recurrent()]
    return [
        _case("one-group", "one group: hits end on its blocks", "sizing", [full()]),
        _case("equal-blocks", "equal blocks: that is where hits end", "sizing", hybrid, retention_interval=None),
        _case(
            "state-of-four-blocks",
            "a state every four blocks: hits inside a block, 64 to cut chunks by",
            "sizing",
            [full(), recurrent(64)],
        ),
        _case("sixteen-and-twenty-four", "16 and 24: hashes of 8, and hits inside a block", "sizing", [full(), recurrent(24)]),
        _case(
            "windows-of-two-blocks", "a window with blocks of 32: no hits inside a block", "sizing", [full(), sliding(64, 32)]
        ),
        _case("three-sizes", "16, 32 and 48: the multiple of all is 96", "sizing", [full(), sliding(64, 32), recurrent(48)]),
        _case(
            "finer-hashes", "hashes of 4 with states of 16: hits inside a block", "inside-a-block", hybrid, hash_block_size=4
        ),
        _case(
            "finer-hashes-window",
            "hashes of 4 but windows of 16: none inside",
            "inside-a-block",
            [*hybrid, sliding(32)],
            hash_block_size=4,
        ),
        _case("eagle", "a speculative look-up gives a block back", "eagle-margin", hybrid, use_eagle=True),
        _case("sparse-by-default", "since 0.30 reachable boundaries alone are kept", "interval", hybrid),
        _case("dense-before", "in 0.26 everything is kept unless told otherwise", "interval", hybrid, release="0.26"),
        _case("interval-of-one-block", "an interval of one block", "interval", hybrid, retention_interval=16),
        _case("interval-of-eight", "an interval of eight blocks", "interval", hybrid, retention_interval=128),
        _case("caching-off", "without caching nothing is aligned", "caching-off", hybrid, enable_caching=False),
    ]


def _admissions() -> list[Case]:
    window = [full(), sliding(64)]
    return [
        *(
            _case(
                f"needs-{tokens}",
                f"{tokens} tokens over full attention and a state",
                "admission",
                [full(), recurrent()],
                tokens=tokens,
            )
            for tokens in (1, 15, 16, 17, 4096)
        ),
        *(
            _case(
                f"window-64-needs-{tokens}",
                f"{tokens} tokens over a window of 64, steps of 32: at most 95 tokens and an offset are held at once",
                "admission",
                window,
                tokens=tokens,
                max_num_batched_tokens=32,
            )
            for tokens in (63, 64, 65, 95, 96, 97, 112, 113, 1024)
        ),
    ]


def _refusals() -> list[Case]:
    hybrid = [full(), recurrent()]
    return [
        _case("block-of-nothing", "a block of 0 tokens", "bad-config", [full(0)], "block_size"),
        _case("block-below-nothing", "a block of −16 tokens", "bad-config", [recurrent(-16), full()], "block_size"),
        _case("window-of-nothing", "a window of 0 tokens has no query", "bad-config", [full(), sliding(0)], "window"),
        _case(
            "two-state-sizes",
            "states every 16 and every 32 tokens",
            "bad-config",
            [recurrent(16), recurrent(32)],
            "block_size block",
        ),
        _case("one-page", "the null block alone", "bad-config", hybrid, "num_blocks", pages=1),
        _case(
            "interval-off-the-block",
            "24 is no multiple of 16",
            "bad-config",
            hybrid,
            "retention_interval",
            retention_interval=24,
        ),
        _case(
            "interval-off-the-lcm",
            "32 is no multiple of 64",
            "bad-config",
            [full(), recurrent(64)],
            "retention_interval",
            retention_interval=32,
        ),
        _case(
            "interval-below-nothing", "an interval of −16", "bad-config", hybrid, "retention_interval", retention_interval=-16
        ),
        _case(
            "interval-without-effect",
            "full attention keeps everything",
            "bad-config",
            [full()],
            "retention_interval",
            retention_interval=64,
        ),
        _case(
            "hash-off-the-block",
            "5 does not divide 16",
            "bad-config",
            hybrid,
            "hash_block_size prefix_match_unit",
            hash_block_size=5,
        ),
        _case("hash-of-nothing", "hashes of 0 tokens", "bad-config", hybrid, "hash_block_size", hash_block_size=0),
        _case(
            "states-without-a-place",
            "mode none keeps no states to cache",
            "bad-config",
            hybrid,
            "mamba_cache_mode",
            mamba_cache_mode="none",
        ),
        _case("watermark-of-all", "nothing of the pool may be used", "bad-config", hybrid, "watermark", watermark=1),
        _case("no-batch", "a step of 0 tokens", "bad-config", hybrid, "max_num_batched_tokens", max_num_batched_tokens=0),
        _case("not-a-number", "an interval in words", "bad-config", hybrid, "retention_interval", retention_interval="often"),
        _case("misspelt", "an option that there is not", "bad-config", hybrid, "retention_intervall", retention_intervall=64),
    ]
