"""The configurations that exllamav3's generator is run on: attention alone and with recurrent
states, in pages that a short prompt fills, and in its own.
"""

from __future__ import annotations

from functools import partial

from cachewitness.core.trace_format import GroupSpec
from cachewitness.workloads.configurations import Configuration, of_groups

SOURCE = "exllamav3 1.6.5, generator"
_of = partial(of_groups, SOURCE)


def configurations() -> list[Configuration]:
    """Return them."""
    return [
        _of("exllamav3-full", "full attention, pages of 16", GroupSpec("full", 16)),
        _of(
            "exllamav3-chunks",
            "chunks of 48 tokens, and answers that are queued again behind every page",
            GroupSpec("full", 16),
            max_chunk_size=48,
            max_rq_tokens=16,
        ),
        _of(
            "exllamav3-state",
            "a state at the end of each prompt and of every second page of an answer",
            GroupSpec("full", 16),
            GroupSpec("recurrent", 16),
            max_chunk_size=48,
            max_rq_tokens=32,
            checkpoint_interval=32,
            checkpoint_interval_pp=96,
            max_batch_size=8,
        ),
        _of(
            "exllamav3-cpu",
            "full attention with a CPU page cache of 24 pages",
            GroupSpec("full", 16),
            max_chunk_size=48,
            max_rq_tokens=16,
            cpu_pages=24,
        ),
        _of("exllamav3-256", "full attention, pages of 256", GroupSpec("full", 256)),
    ]
