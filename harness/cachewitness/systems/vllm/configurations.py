"""The configurations that vLLM's own scheduler is run on beside its policy's: with options that
the reference has not.
"""

from __future__ import annotations

from cachewitness.core.trace_format import GroupSpec, Layout
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

CHUNKED = [GroupSpec("full", 16), GroupSpec("chunked", 16, chunk=64)]
"""Chunked local attention beside full, as in Llama 4. No layout has it, because the reference has
no rule for it."""


RING = [GroupSpec("full", 16), GroupSpec("chunked", 16, chunk=4)]
"""Full attention, and beside it the ring of a compressor, as in DeepSeek-V4.1
(`CircularBufferSpec`): see `build.is_ring`."""


_SIBLINGS = {"use_eagle": True, "shared_prefix_checkpoints": True}
_DRAFTED = {"use_eagle": True, "num_speculative_tokens": 2}
_FAR_AHEAD = {"use_eagle": True, "num_speculative_tokens": 9}
SHORT = [GroupSpec("full", 4)]
"""Blocks of which drafts fill several."""
ALONE = [GroupSpec("recurrent", 16)]
"""Recurrent states and nothing else, as in Mamba."""


def further_configurations() -> list[Configuration]:
    """Return them; all are run at scheduler level."""
    full, window, state, unequal = (
        layouts.load(name) for name in ("full", "full-swa", "full-mamba", "full-mamba-unequal")
    )
    three = layouts.load("full-swa-mamba")
    chunked = Layout("full-chunked", CHUNKED, story="chunks of 64", source="Llama 4")
    alone = Layout("mamba", ALONE, story="recurrent states alone", source="Mamba")
    ring = Layout(
        "full-ring", RING, story="a ring of one block beside full attention", source="DeepSeek-V4.1"
    )
    return [
        Configuration(full, {"num_speculative_tokens": 3, "async_depth": 1}),
        Configuration(
            window,
            {
                "retention_interval": 64,
                "use_eagle": True,
                "num_speculative_tokens": 2,
                "async_depth": 2,
            },
        ),
        Configuration(full, {"scheduling_policy": "priority"}),
        Configuration(
            three,
            {"retention_interval": 0, "scheduling_policy": "priority", "num_speculative_tokens": 2},
        ),
        Configuration(
            window,
            {"retention_interval": 0, "structured_output": True, "max_loras": 1, "async_depth": 1},
        ),
        Configuration(
            three, {"retention_interval": None, "structured_output": True, "encoder_budget": 8}
        ),
        Configuration(full, {"encoder_budget": 8, **_DRAFTED}),
        Configuration(full, {"encoder_budget": 8, "scheduling_policy": "priority"}),
        Configuration(
            unequal, {"retention_interval": 32, "num_speculative_tokens": 3, "async_depth": 1}
        ),
        Configuration(
            three,
            {
                "retention_interval": None,
                "use_eagle": True,
                "num_speculative_tokens": 3,
                "async_depth": 2,
            },
        ),
        Configuration(chunked, {"retention_interval": None, "async_depth": 1}),
        Configuration(
            unequal, {"retention_interval": None, "async_depth": 1, "max_num_batched_tokens": 16}
        ),
        Configuration(
            unequal,
            {"scheduling_policy": "priority", "num_speculative_tokens": 3, "async_depth": 1},
        ),
        Configuration(ring, {"retention_interval": None}),
        Configuration(
            ring, {"retention_interval": None, "num_speculative_tokens": 3, "async_depth": 1}
        ),
        Configuration(full, {"sessions": True, "async_depth": 1}),
        Configuration(three, {"retention_interval": 0, "sessions": True}),
        Configuration(
            window, {"retention_interval": None, "sessions": True, "num_speculative_tokens": 3}
        ),
        Configuration(
            state, {"retention_interval": None, "prefill_checkpoints": 1, "async_depth": 1}
        ),
        Configuration(
            three, {"retention_interval": 32, "prefill_checkpoints": 8, "num_speculative_tokens": 2}
        ),
        Configuration(
            state, {"retention_interval": 0, "hash_block_size": 4, "prefill_checkpoints": 1}
        ),
        Configuration(state, {"retention_interval": 0, "hash_block_size": 4, **_SIBLINGS}),
        Configuration(
            state, {"retention_interval": None, "max_model_len": 64, "num_speculative_tokens": 3}
        ),
        Configuration(
            three, {"retention_interval": 32, "prompt_logprobs": True, "num_speculative_tokens": 2}
        ),
        Configuration(alone, {"retention_interval": None}),
        Configuration(full, {"enable_caching": False, "rswa_window": 24, "async_depth": 1}),
        Configuration(full, {"rswa_window": 5, "num_speculative_tokens": 3}),
        Configuration(three, {"retention_interval": None, "rswa_window": 16}),
        Configuration(full, {"adapter_paths": True, "max_loras": 1}),
    ]


def connector_configurations() -> list[Configuration]:
    """Return those on which connectors are run: with memories too small and large enough, and
    copies that take steps.
    """
    full, window, state, three = (
        layouts.load(name) for name in ("full", "full-swa", "full-mamba", "full-swa-mamba")
    )
    smaller = layouts.load("full-swa-unequal")
    short = Layout("full4", SHORT, story="drafts reach beyond the next block", source="made up")
    return [
        Configuration(full, {"tier_pages": 16, "tier_delay": 3}),
        Configuration(window, {"retention_interval": None, "tier_pages": 12, "tier_delay": 2}),
        Configuration(
            state, {"retention_interval": None, "tier_pages": 48, "tier_delay": 2, "async_depth": 1}
        ),
        Configuration(state, {"retention_interval": None, "tier_pages": 96, "tier_delay": 2}),
        Configuration(window, {"retention_interval": 0, "tier_pages": 24}),
        Configuration(three, {"retention_interval": None, "tier_pages": 96, "tier_delay": 2}),
        Configuration(full, {"tier_pages": 32, "num_speculative_tokens": 3}),
        Configuration(full, {"tier_pages": 32, "tier_delay": 2, "async_depth": 1}),
        Configuration(
            state,
            {"retention_interval": None, "tier_pages": 48, "tier_delay": 2, **_DRAFTED},
        ),
        Configuration(full, {"tier_pages": 64, "tier_delay": 2, "use_eagle": True}),
        Configuration(short, {"tier_pages": 64, "tier_delay": 2, **_FAR_AHEAD}),
        Configuration(
            state,
            {"retention_interval": None, "hash_block_size": 4, "tier_pages": 48, "tier_delay": 2},
        ),
        Configuration(smaller, {"retention_interval": None, "tier_pages": 48, "tier_delay": 2}),
        Configuration(window, {"tier_pages": 32, "tier_delay": 2, "prompt_logprobs": True}),
        Configuration(full, {"tier_pages": 48, "tier_delay": 2, "sessions": True}),
        Configuration(window, {"tier_pages": 48, "sessions": True, "async_depth": 1}),
    ]
