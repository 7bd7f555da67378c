"""Cuts chunks where a recurrent state has to be kept, by the rule of the vLLM under test.

Where a chunk may end belongs to the scheduler, but which states exist, and so which can be cached
at all, depends on it; and the rule changed from release to release together with the cache manager.
So it is not ours to play: the method of vLLM's own Scheduler is called on a stand-in that has the
few attributes that it reads.

Source: `v1/core/sched/scheduler.py`, `Scheduler._mamba_block_aligned_split` (0.24.0 to 0.33.0).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.manager_adapter import Split
from cachewitness.engines.version_check import takes
from cachewitness.systems.vllm.build import base_block_size
from cachewitness.systems.vllm.source import KNOWN, Source
from cachewitness_reference.vllm.config import Options

RULE = "_mamba_block_aligned_split"


def chunk_split(
    source: Source, header: TraceHeader, options: Options, core: Any, sizes: tuple[int, int]
) -> Split | None:
    """Return vLLM's rule bound to a configuration; None where no recurrent state is cached, so
    nothing is cut.

    `core` is the cache manager, `sizes` its (scheduler block size, hash block size) in tokens.
    """
    if options.mamba_cache_mode != "align" or all(
        group.kind != "recurrent" for group in header.layout.groups
    ):
        return None
    scheduler = source.part("v1.core.sched.scheduler", "Scheduler")
    rule = getattr(scheduler, RULE, None)
    if rule is None:
        raise UsageError(
            f"vLLM {source.version}: its Scheduler has no {RULE}; this adapter knows {KNOWN}"
        )
    hinted = takes(rule, "num_uncached_common_prefix_tokens")
    stand_in = _stand_in(header, options, core, sizes)

    def split(request: Any, tokens: int, hit: int) -> int:
        hint = {}
        if hinted:
            beyond = request.shared_prefix_boundary - request.num_computed_tokens - hit
            hint["num_uncached_common_prefix_tokens"] = max(beyond, 0)
        try:
            count: int = getattr(scheduler, RULE)(stand_in, request, tokens, hit, **hint)
        except AttributeError as error:
            if error.obj is not stand_in:
                raise
            raise UsageError(
                f"vLLM {source.version}: {RULE} reads {error.name!r} of the scheduler, which this"
                " adapter does not know"
            ) from None
        return count

    return split


def _stand_in(
    header: TraceHeader, options: Options, core: Any, sizes: tuple[int, int]
) -> SimpleNamespace:
    partial_hits = getattr(core.coordinator, "enable_partial_hash_hits", False)
    return SimpleNamespace(
        block_size=sizes[0],
        hash_block_size=sizes[1],
        cache_config=SimpleNamespace(block_size=base_block_size(header)),
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        max_num_scheduled_tokens=options.max_num_batched_tokens,
        use_eagle=options.use_eagle,
        use_eagle_block_drop=options.use_eagle,
        num_hash_lookahead_tokens=0,
        mamba_partial_cache_hit=bool(partial_hits) and sizes[1] < sizes[0],
        mamba_has_prefill_checkpoint_blocks=False,
        mamba_prefill_checkpoint_alignment=None,
        mamba_fine_grained_prefix_cache=False,
        mamba_shared_prefix_checkpoint=False,
    )
