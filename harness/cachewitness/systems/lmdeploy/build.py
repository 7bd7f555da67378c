"""Puts lmdeploy's own objects together: its scheduler over blocks and states, and what makes the
inputs of each forward. The tensors that they address, and the executor, are not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cachewitness.engines.pinned_package import PinnedPackage
from cachewitness.systems.lmdeploy.options import Asked

STATE_SHAPE = [((1,), "float32")]
"""Any shape: its being there tells lmdeploy that the model has recurrent states."""


class Executor:
    """Stands in for the workers: a forward that is sent is taken note of by the adapter."""

    device_type = "cpu"

    async def forward_async(self, inputs: dict[str, Any]) -> None:
        """Do nothing: `InputsMakerAsync` returns the same inputs to the adapter."""


@dataclass(frozen=True)
class Built:
    """lmdeploy's objects of one engine."""

    scheduler: Any
    maker: Any
    """`InputsMakerAsync`: decides whether a forward prefills, goes on with a chunk or decodes."""
    asked: Asked
    caching: bool


def build(source: PinnedPackage, asked: Asked, *, caching: bool = True) -> Built:
    """Return lmdeploy's scheduler for what a trace asks, all its pools empty; without `caching` as
    with `enable_prefix_caching=False`, which is lmdeploy's default.
    """
    scheduler_config = source.part("config", "SchedulerConfig")(
        max_batches=asked.max_batches,
        max_session_len=asked.longest,
        prefill_interval=asked.prefill_interval,
    )
    cache_config = source.part("config", "CacheConfig")(
        max_batches=asked.max_batches,
        block_size=asked.block_size,
        num_cpu_blocks=0,
        num_gpu_blocks=asked.pages,
        window_size=asked.window or -1,
        max_prefill_token_num=asked.max_prefill_token_num,
        enable_prefix_caching=caching,
        device_type="cpu",
        num_state_caches=asked.states or None,
        prefix_cache_state_budget=asked.state_budget,
        prefix_cache_decode_state_interval=asked.decode_state_interval,
        states_shapes=STATE_SHAPE if asked.recurrent else [],
        num_reserved_gpu_blocks=1,
    )
    strategy = source.part("strategies.ar.sequence", "ARSequenceStrategy")()
    scheduler = source.part("paging", "Scheduler")(
        scheduler_config,
        cache_config,
        seq_meta=source.part("messages", "SequenceMeta")(asked.block_size, strategy=strategy),
    )
    return Built(
        scheduler,
        _maker(source, asked, scheduler, cache_config),
        asked,
        scheduler.block_trie.enabled,
    )


def _maker(source: PinnedPackage, asked: Asked, scheduler: Any, cache_config: Any) -> Any:
    config = source.part("engine.inputs_maker", "InputsMakerConfig")(
        max_batches=asked.max_batches,
        max_prefill_token_num=asked.max_prefill_token_num,
        role=cache_config.role,
        block_size=asked.block_size,
        kernel_block_size=asked.block_size,
        window_size=cache_config.window_size,
        enable_prefix_caching=cache_config.enable_prefix_caching,
        prefix_cache_decode_state_interval=cache_config.prefix_cache_decode_state_interval,
        is_ssm=asked.recurrent,
        prefill_interval=asked.prefill_interval,
    )
    engine_strategy = source.part("strategies.ar.engine", "AREngineStrategy")(
        scheduler_config=scheduler.scheduler_config, cache_config=cache_config
    )
    return source.part("engine.inputs_maker", "InputsMakerAsync")(
        executor=Executor(),
        scheduler=scheduler,
        state_checkpoints=scheduler.state_checkpoints,
        adapter_manager=SimpleNamespace(num_adapters=lambda: 1),
        engine_strategy=engine_strategy,
        sampling_strategy=SimpleNamespace(make_sampling_inputs=lambda running: None),
        model_agent_strategy=SimpleNamespace(
            make_extra_inputs=lambda running, inputs: None,
            make_stopping_criteria=lambda running: None,
        ),
        config=config,
    )
