"""Which boundaries a prunable group keeps: where a later request can resume.

A hit is the shortest over all groups, so a window tail or a recurrent state is worth its pages only
where hits can end. Two kinds of boundary are *reachable*. The replay boundary: a resend of the
prompt is capped one token short of its end, and its hit ends on the last aligned boundary before.
The shared-prefix boundary: where another group matched further than the prunable one could follow,
somebody else with the same prefix was here, and the next one will want a state there. All other
boundaries are kept once per interval.

The interval has three forms. None is dense: everything at the alignment granularity. 0 keeps
reachable boundaries alone. R > 0 keeps one in R and the reachable ones. What it governs grew with
time: nothing before 0.23, windows in 0.23 (PR 43447), snapshots as well from 0.24 (PR 45845);
shared-prefix boundaries count from 0.26, and from 0.29 the default is 0 (0.29 keeps hybrid models
with EAGLE dense).

A mask only ever subtracts. It can decline to keep a state that exists; it brings none into being,
since a column without a state is null and a null column is never keyed.

Source: vLLM, `v1/core/single_type_kv_cache_manager.py`, `reachable_block_mask`;
`v1/core/kv_cache_coordinator.py`, `replay_boundaries` (0.33.0; earlier forms 0.24.0 and 0.26.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness_reference.primitives import Position
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.request import Request


def replay_boundaries(
    num_prompt_tokens: int, scheduler_block_size: int, use_eagle: bool
) -> tuple[Position, ...]:
    """Return where a later request that repeats a prompt can resume, before rounding down to the
    alignment.

    With EAGLE attention gives a block back, so both a resend and a longer sibling end one unit
    lower.
    """
    if not use_eagle:
        return (Position(num_prompt_tokens - 1),)
    unit = scheduler_block_size
    resend = (num_prompt_tokens - 1) // unit * unit - unit
    extension = num_prompt_tokens // unit * unit - unit
    return tuple(sorted({Position(max(resend, 0)), Position(max(extension, 0))}))


def reachable_boundaries(
    request: Request,
    config: KVCacheConfig,
    replay: Sequence[Position],
    use_eagle: bool,
    block_size: int,
) -> list[Position]:
    """Return every boundary of a request that retention must keep: its replay boundaries and its
    shared-prefix boundary.
    """
    reachable = list(replay)
    shared_prefix_boundary = request.shared_prefix_boundary
    if shared_prefix_boundary and config.pin_shared_prefix_boundary:
        reachable.append(shared_prefix_boundary)
        if use_eagle and config.eagle_replay_boundaries:
            # A sibling that leaves right after the shared-prefix boundary has no block beyond it to
            # give back.
            reachable.append(Position(shared_prefix_boundary - block_size))
    return reachable


def sliding_window_mask(
    columns: range,
    *,
    block_size: int,
    contiguous: int,
    alignment: int,
    use_eagle: bool,
    interval: int | None,
    reachable: Sequence[Position],
) -> list[bool] | None:
    """Return which of these columns of a window group to keep; None keeps them all.

    `contiguous` is how many blocks a hit needs, the one that EAGLE gives back included; with EAGLE
    the run ends one block above the boundary.
    """
    if alignment % block_size:
        return None
    shift = 1 if use_eagle else 0
    start = columns.start
    end = columns.stop
    mask = [False] * len(columns)
    segment = alignment if interval is None else interval
    if segment:
        per_segment = segment // block_size
        if contiguous >= per_segment:
            return None
        for column in columns:
            if column >= shift and (column - shift) % per_segment >= per_segment - contiguous:
                mask[column - start] = True
    if interval is not None:
        for boundary in reachable:
            tail_end = boundary // alignment * alignment // block_size + shift
            for column in range(max(start, tail_end - contiguous), min(end, tail_end)):
                mask[column - start] = True
    return mask


def mamba_mask(
    columns: range,
    *,
    block_size: int,
    alignment: int,
    interval: int | None,
    reachable: Sequence[Position],
) -> list[bool] | None:
    """Return which of these columns of a Mamba group to keep; None keeps them all. Column i ends
    after (i + 1) blocks.
    """
    if interval is None:
        return None
    start = columns.start
    mask = [False] * len(columns)
    if interval:
        per_segment = interval // block_size
        if per_segment <= 1:
            return None
        first = (start + per_segment) // per_segment * per_segment - 1
        for column in range(first, columns.stop, per_segment):
            mask[column - start] = True
    for boundary in reachable:
        column = boundary // alignment * alignment // block_size - 1
        if column in columns:
            mask[column - start] = True
    return mask
