"""The configuration of a whole engine, as vLLM's own Scheduler takes it, built without a device and
without a model.

vLLM's configuration classes are constructed and check themselves. Only the model is a stand-in: the
scheduler asks it for its length and for what it is not (no encoder, no pooling, no diffusion).

Source of the names: vLLM 0.29.0 to 0.33.0, `config/`, `v1/core/sched/scheduler.py`; its own tests
build theirs in `tests/v1/core/utils.py`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.build import base_block_size, fill, settle, tells_routers
from cachewitness.systems.vllm.request_options import request_options
from cachewitness.systems.vllm.source import Source, variable
from cachewitness_reference.vllm_extended.config import Options

LOOKAHEAD_OFF = "disable_lookahead_block_hashes"
"""Since 0.33 a key may cover the tokens behind its block, and then nothing is given back; the
harness's keys cover prefixes."""

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
RUNNERS = ("first", "second", "own")
"""vLLM's model runners, `v1/worker/gpu_model_runner.py` and `v1/worker/gpu`, and the one of them
that it chooses itself."""


def engine_config(source: Source, header: TraceHeader, options: Options) -> Any:
    """Return vLLM's VllmConfig for a trace.

    Raises UsageError if the release refuses it, or has no scheduler that can be configured so.
    """
    config = fill(
        source,
        source.part("config", source.whole_config),
        {
            "scheduler_config": _scheduler_config(
                source, options, request_options(header).scheduling_policy
            ),
            "cache_config": fill(source, source.part("config", "CacheConfig"), {}),
            "device_config": fill(
                source, source.part("config", "DeviceConfig"), {"device": "cpu"}, ["device"]
            ),
        },
        ["scheduler_config", "cache_config", "device_config"],
    )
    _describe_cache(source, config.cache_config, header, options)
    # vLLM's CPU platform switches async scheduling off, since a CPU has nothing to overlap.
    settle(source, config.scheduler_config, {"async_scheduling": options.async_depth > 0})
    publishing = tells_routers(source, options, request_options(header))
    kv_events = {"enable_kv_cache_events": publishing, "publisher": "null"}
    settle(
        source,
        config,
        {
            "kv_events_config": fill(
                source, source.part("config", "KVEventsConfig"), kv_events, kv_events
            )
        },
    )
    settle(source, config.parallel_config, {"pipeline_parallel_size": max(1, options.async_depth)})
    if request_options(header).shared_prefix_checkpoints:
        settle(source, config.cache_config, {"enable_mamba_shared_prefix_checkpoint": True})
    if most := request_options(header).max_loras:
        adapters = fill(
            source,
            source.part("config", "LoRAConfig"),
            {"max_loras": most, "max_cpu_loras": most},
            ["max_loras"],
        )
        settle(source, config, {"lora_config": adapters})
    settle(
        source,
        config,
        {
            "speculative_config": _speculative_config(source, options),
            "model_config": _model(options),
        },
    )
    return config


def _model(options: Options) -> SimpleNamespace:
    """Return what stands in for vLLM's ModelConfig: a text model that generates."""
    return SimpleNamespace(
        max_model_len=options.max_model_len,
        runner_type="generate",
        multimodal_config=None,
        is_encoder_decoder=False,
        is_diffusion=False,
        uses_mrope=False,
        uses_xdrope=False,
        supports_multimodal_inputs=False,
        is_multimodal_model=False,
        skip_tokenizer_init=True,
        return_sampling_mask=False,
        enable_return_routed_experts=False,
        architectures=[],
    )


def build_scheduler(
    source: Source,
    config: Any,
    kv_cache_config: Any,
    sizes: tuple[int, int],
) -> Any:
    """Return the Scheduler or AsyncScheduler that vLLM chooses for a configuration.

    `sizes` are the (scheduler block size, hash block size) in tokens. Raises UsageError if it asks
    the model's stand-in for what that does not know.
    """
    structured_output = source.part("v1.structured_output", "StructuredOutputManager")
    try:
        offered = {
            "vllm_config": config,
            "kv_cache_config": kv_cache_config,
            "structured_output_manager": fill(source, structured_output, {"vllm_config": config}),
            "block_size": sizes[0],
            "hash_block_size": sizes[1],
            "log_stats": True,
        }
        scheduler = fill(
            source,
            config.scheduler_config.get_scheduler_cls(),
            offered,
            ["block_size", "hash_block_size", "log_stats"],
        )
    except AttributeError as error:
        if error.obj is not config.model_config:
            raise
        raise UsageError(
            f"vLLM {source.version}: its Scheduler reads {error.name!r} of the model, which this"
            " adapter does not know"
        ) from None
    return scheduler


def model_runner(options: Options, runner: str) -> AbstractContextManager[None]:
    """Have vLLM plan for one of its `RUNNERS`: its first, which two steps in flight need the second
    in place of; its second; or its own choice.
    """
    asked = {"first": "1" if options.async_depth > 1 else "0", "second": "1", "own": None}
    return variable(RUNNER_VARIABLE, asked[runner])


def check_depth(source: Source, config: Any, options: Options) -> None:
    """Raise UsageError unless vLLM itself would keep as many steps in flight as the trace asks
    for.
    """
    depth = config.max_concurrent_batches - 1
    if depth != options.async_depth:
        raise UsageError(
            f"option 'async_depth' ({options.async_depth}): vLLM {source.version} keeps {depth} in"
            " flight here"
        )


def give_encoder_budget(scheduler: Any, config: Any, tokens: int) -> None:
    """Let so many tokens of multimodal items be encoded in a step, and as many be kept (0: as many
    as the model is long); `make_room` gives more to an item that is longer.

    vLLM asks the model's processor for its longest item.
    """
    limits = config.scheduler_config
    longest = config.model_config.max_model_len
    scheduler.max_num_encoder_input_tokens = tokens or max(
        limits.max_num_encoder_input_tokens, longest
    )
    cache = type(scheduler.encoder_cache_manager)
    scheduler.encoder_cache_manager = cache(tokens or max(limits.encoder_cache_size, longest))


def most_drafts(options: Options) -> int:
    """Return how many drafts vLLM is told to verify with a token; EAGLE has one at least."""
    return max(options.num_speculative_tokens, int(options.use_eagle))


def _scheduler_config(source: Source, options: Options, policy: str) -> Any:
    """Return the scheduler's limits. vLLM refuses more requests at once than tokens in a step,
    so there are never more.
    """
    offered = {
        "max_model_len": options.max_model_len,
        "is_encoder_decoder": False,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_num_seqs": min(options.max_num_seqs, options.max_num_batched_tokens),
        "enable_chunked_prefill": True,
        "async_scheduling": options.async_depth > 0,
        "scheduler_reserve_full_isl": options.scheduler_reserve_full_isl,
        "watermark": options.watermark,
        "policy": policy,
    }
    needed = [
        "policy",
        "async_scheduling",
        "max_num_seqs",
        "scheduler_reserve_full_isl",
        "watermark",
    ]
    return fill(source, source.part("config", "SchedulerConfig"), offered, needed)


def _describe_cache(source: Source, cache: Any, header: TraceHeader, options: Options) -> None:
    """Write the pool and the sizes of blocks into vLLM's CacheConfig; a real engine does so when
    its model is known.
    """
    block_size = base_block_size(header)
    values = {
        "num_gpu_blocks": header.pages,
        "block_size": block_size,
        "mamba_block_size": block_size,
        "enable_prefix_caching": options.enable_caching,
        "mamba_cache_mode": options.mamba_cache_mode,
        "prefix_match_unit": options.hash_block_size,
    }
    settle(source, cache, values)


def _speculative_config(source: Source, options: Options) -> Any:
    """Return how drafts are made: n-grams, or EAGLE, whose look-ups give a block back; None without
    both.

    The drafter itself is the harness's sampler. A draft model would be read from disk, so the
    method is named afterwards.
    """
    count = most_drafts(options)
    if not count:
        return None
    method = "ngram_gpu" if options.async_depth else "ngram"
    offered = {
        "method": method,
        "num_speculative_tokens": count,
        "prompt_lookup_max": count,
        "prompt_lookup_min": 1,
    }
    config = fill(source, source.part("config", "SpeculativeConfig"), offered, offered)
    if options.use_eagle:
        settle(source, config, {"method": "eagle"})
        if hasattr(config, LOOKAHEAD_OFF):
            settle(source, config, {LOOKAHEAD_OFF: True})
    return config
