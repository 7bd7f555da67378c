"""The configurations that lmdeploy's scheduler is run on: each kind of group, and limits that are
met often.
"""

from __future__ import annotations

from functools import partial

from cachewitness.core.trace_format import GroupSpec
from cachewitness.workloads.configurations import Configuration, of_groups

SOURCE = "lmdeploy 0.18.0, pytorch/paging"
_of = partial(of_groups, SOURCE)


def configurations() -> list[Configuration]:
    """Return them."""
    return [
        _of("lmdeploy-full", "full attention, blocks of 16", GroupSpec("full", 16)),
        _of(
            "lmdeploy-state",
            "a state at the end of each prompt or chunk, blocks of 16",
            GroupSpec("full", 16),
            GroupSpec("recurrent", 16),
            max_prefill_token_num=48,
        ),
        _of(
            "lmdeploy-state-scarce",
            "the same for two requests at a time and one state that is kept",
            GroupSpec("full", 16),
            GroupSpec("recurrent", 16),
            max_prefill_token_num=48,
            max_batches=2,
            state_budget=1,
        ),
        _of(
            "lmdeploy-answer-state",
            "as well one of every 32 tokens of an answer",
            GroupSpec("full", 16),
            GroupSpec("recurrent", 16),
            decode_state_interval=32,
        ),
        _of(
            "lmdeploy-window",
            "a sliding window, blocks of 16, which lmdeploy does not cache",
            GroupSpec("sliding", 16, window=40),
            max_prefill_token_num=48,
        ),
    ]
