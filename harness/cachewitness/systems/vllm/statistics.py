"""What vLLM's scheduler tells operators and clients with the answer to a step, as an event of a
history.

A look-up is counted when its request is admitted, and in releases whose cache manager has no
`record_prefix_cache_stats` (0.26) whenever it is made (vllm-project/vllm#43736): of those only the
share of the pool that is in use is read. Of a connector's look-ups, which are counted with them, it
tells the same.

Sources: vLLM 0.29.0 to 0.33.0, `v1/core/sched/scheduler.py`, `make_stats`; `v1/metrics/stats.py`.
"""

from __future__ import annotations

from typing import Any

from cachewitness.core.events import Stats


def counts_admissions(manager: Any) -> bool:
    """Whether look-ups are counted by vLLM's cache manager when their requests are admitted."""
    return hasattr(manager, "record_prefix_cache_stats")


def statistics_of(outputs: Any, step: int, pool: int, *, admissions: bool) -> list[Stats]:
    """Return what is told with the answer to a step, by client: the statistics come with one of
    them.

    `pool` is the one whose use they tell. `admissions`: look-ups are counted when their requests
    are admitted.
    """
    found = [
        output.scheduler_stats for output in outputs.values() if output.scheduler_stats is not None
    ]
    return [_event(stats, outputs, step, pool, admissions=admissions) for stats in found]


def _event(stats: Any, outputs: Any, step: int, pool: int, *, admissions: bool) -> Stats:
    event = Stats(step=step, pool=pool, usage=stats.kv_cache_usage)
    if not admissions:
        return event
    caching = stats.prefix_cache_stats
    event.requests = caching.requests
    event.looked_up = caching.queries
    event.found = caching.hits
    event.again = _lost(caching)
    if (behind := stats.connector_prefix_cache_stats) is not None:
        again = _lost(behind)
        event.tier = (
            behind.requests + again[0],
            behind.queries + again[1],
            behind.hits + again[2],
        )
    answers = [
        answer
        for output in outputs.values()
        for answer in output.outputs
        if answer.prefill_stats is not None
    ]
    event.restored = [
        (answer.request_id, answer.prefill_stats.num_cached_tokens) for answer in answers
    ]
    return event


def _lost(caching: Any) -> tuple[int, int, int]:
    """Return the look-ups of requests that had been preempted."""
    return (caching.preempted_requests, caching.preempted_queries, caching.preempted_hits)
