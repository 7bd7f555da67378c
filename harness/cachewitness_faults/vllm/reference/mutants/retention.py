"""Faults in what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, bound, core, groups, wrap
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="boundary-kept-too-high",
    mirrors="vllm-project/vllm#53504",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=REFERENCE,
)
def boundary_kept_too_high(engine: Driver) -> None:
    """The state that is kept for a replay lies above what a speculative look-up may use.

    Keep the boundary of a plain replay, which a speculative look-up gives back.
    """
    coordinator = core(engine).coordinator

    def plant(manager: Any) -> None:
        def cache_blocks(original: Any, request: Any, num_tokens: int, replay: Any) -> Any:
            plain = (
                (request.num_prompt_tokens - 1)
                // coordinator.scheduler_block_size
                * coordinator.scheduler_block_size
            )
            return original(request, num_tokens, (plain,))

        wrap(manager, "cache_blocks", cache_blocks)

    for manager in groups(engine, "Mamba") + groups(engine, "SlidingWindow"):
        plant(manager)


@mutant(
    name="window-kept-on-its-own-grid",
    mirrors="vllm-project/vllm#53504 (the mask of windows whose blocks are finer than hits)",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=REFERENCE,
)
def window_kept_on_its_own_grid(engine: Driver) -> None:
    """The window that is kept for a replay ends at a block of its own group, where no hit ends.

    Align the boundary to a window group's blocks and not to where hits of all groups end.
    """

    def plant(manager: Any) -> None:
        def cache_blocks(original: Any, request: Any, num_tokens: int, replay: Any) -> Any:
            last = (request.num_prompt_tokens - 1) // manager.block_size * manager.block_size
            return original(request, num_tokens, (last,))

        def reachable_block_mask(original: Any, columns: range, reachable: Any) -> Any:
            aligned = manager.cache_hit_alignment_tokens
            if manager.config.prefix_cache_retention_interval is not None:
                manager.cache_hit_alignment_tokens = manager.block_size
            try:
                return original(columns, reachable)
            finally:
                manager.cache_hit_alignment_tokens = aligned

        wrap(manager, "cache_blocks", cache_blocks)
        wrap(manager, "reachable_block_mask", reachable_block_mask)

    for manager in groups(engine, "SlidingWindow"):
        plant(manager)


@mutant(
    name="interval-in-anothers-units",
    mirrors="vllm-project/vllm#45845",
    anomaly="over-dense-retention",
    checker="interval-sparsity",
    group="M",
    engines=REFERENCE,
)
def interval_in_anothers_units(engine: Driver) -> None:
    """A retention interval is counted in units of half its own.

    Take the retention interval, which is in tokens, for one of half its length.
    """
    _keep_by(engine, lambda interval: interval // 2)


@mutant(
    name="interval-not-kept",
    mirrors="vllm-project/vllm#44082 (of a window what is needed for a hit is not kept)",
    anomaly="key-owed",
    checker="keys",
    group="N",
    engines=BOTH,
)
def interval_not_kept(engine: Driver) -> None:
    """Reachable boundaries alone are kept, whatever the retention interval.

    Ask for an interval of 0 where there is one.
    """
    _keep_by(engine, lambda interval: 0)


@mutant(
    name="every-second-interval-kept",
    mirrors="vllm-project/vllm#45845 (an interval in other units)",
    anomaly="key-owed",
    checker="keys",
    group="N",
    engines=BOTH,
)
def every_second_interval_kept(engine: Driver) -> None:
    """Of the boundaries that the retention interval keeps every second one is left out.

    Take the retention interval, which is in tokens, for one of twice its length.
    """
    _keep_by(engine, lambda interval: 2 * interval)


def _keep_by(engine: Driver, other: Callable[[int], int]) -> None:
    """Let groups that are thinned out keep what another retention interval keeps, where there is
    one.
    """

    def plant(manager: Any) -> None:
        def reachable_block_mask(original: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = bound(original, args, kwargs)
            if "retention_interval" in arguments:  # of vLLM itself
                interval = arguments["retention_interval"]
                return original(**{**arguments, "retention_interval": interval and other(interval)})
            config = manager.config
            if interval := config.prefix_cache_retention_interval:
                manager.config = replace(config, prefix_cache_retention_interval=other(interval))
            try:
                return original(**arguments)
            finally:
                manager.config = config

        wrap(manager, "reachable_block_mask", reachable_block_mask)

    for manager in groups(engine, "Mamba") + groups(engine, "SlidingWindow"):
        plant(manager)


MUTANTS = declared(globals())
