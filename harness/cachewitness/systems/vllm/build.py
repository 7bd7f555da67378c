"""Builds vLLM's own objects across releases whose constructors differ.

Every value is offered under each name that it has had, and a constructor gets those that it knows.
Nothing is guessed: a parameter that must be given and is not among them is an error that names it
and the release, and so is an option of the trace that the release has no parameter for.

Source of the names: the signatures of the releases 0.24.0 to 0.33.0.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, Submit, TraceHeader
from cachewitness.systems.vllm.request_options import RequestOptions
from cachewitness.systems.vllm.rswa import windowed
from cachewitness.systems.vllm.source import Source
from cachewitness.workloads.prompts import PATH_MARK
from cachewitness_reference.vllm.config import Options
from cachewitness_reference.vllm.options import retention_interval_from

NewRequest = Callable[[Submit, list[int]], Any]


_KNOWN = WeakKeyDictionary[Any, Mapping[str, inspect.Parameter]]()
"""Kept as long as the function or class is: what is called may belong to one engine alone."""


def parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function or constructor by name; a constructor that passes
    everything on has its base's.
    """
    if isinstance(target, MethodType):
        # A method that is kept would keep its object.
        return dict(islice(parameters(target.__func__).items(), 1, None))
    if not isinstance(target, FunctionType | type):
        return inspect.signature(target).parameters
    if target not in _KNOWN:
        known = inspect.signature(target).parameters
        base = target.__base__ if isinstance(target, type) else None
        passes_on = any(one.kind is one.VAR_KEYWORD for one in known.values())
        _KNOWN[target] = known if base in (None, object) or not passes_on else parameters(base)
    return _KNOWN[target]


WHOLE = "vllm_config"
"""What vLLM calls its whole configuration; a fork may call it after itself."""


def fill(
    source: Source,
    target: Callable[..., Any],
    offered: Mapping[str, Any],
    needed: Iterable[str] = (),
) -> Any:
    """Call `target` with those of the offered arguments that it takes.

    Raises UsageError if it wants one that is not offered, or does not take one that is `needed`, or
    refuses the values.
    """
    known = parameters(target)
    name = getattr(target, "__name__", str(target))
    if WHOLE in offered:
        offered = {**offered, f"{source.package}_config": offered[WHOLE]}
    for parameter in known.values():
        plain = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if plain and parameter.default is parameter.empty and parameter.name not in offered:
            raise UsageError(
                f"vLLM {source.version}: {name} wants {parameter.name!r}, which this adapter does"
                " not know"
            )
    for argument in needed:
        if argument not in known:
            raise UsageError(
                f"vLLM {source.version}: {name} takes no {argument!r}; this release cannot do what"
                " is asked"
            )
    try:
        return target(**{key: value for key, value in offered.items() if key in known})
    except (ValueError, AssertionError, NotImplementedError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"vLLM {source.version} refuses the configuration: {reason}") from None


def settle(source: Source, target: Any, values: Mapping[str, Any]) -> None:
    """Set fields of a configuration of vLLM's after it was made. Raises UsageError for one that
    it does not have.
    """
    for name, value in values.items():
        if not hasattr(target, name):
            raise UsageError(
                f"vLLM {source.version}: {type(target).__name__} has no {name!r}; this adapter does"
                " not know it"
            )
        setattr(target, name, value)


RING_CHUNKS = 2
"""A ring has room for so many chunks: for the open one, and for as many drafts behind it."""


def is_ring(group: GroupSpec) -> bool:
    """Whether a group is a ring: one block for each request, in which the tokens of the chunk that
    is open lie.

    vLLM keeps the keys so that it has yet to compress. By what is read of them it is chunked
    attention, and its block, in which chunk after chunk lies, is as long as the model. Nothing of
    it is cached. In a layout its chunk is below its block.
    """
    return group.kind == "chunked" and group.chunk < group.block_size


def group_spec(source: Source, group: GroupSpec, options: Options) -> Any:
    """Return vLLM's spec of a cache group. Heads and head sizes are of no account to the cache
    core; they are small.
    """
    import torch

    interface = source.interface
    offered: dict[str, Any] = {
        "block_size": group.block_size,
        "dtype": torch.float32,
        "num_kv_heads": 1,
        "head_size": 8,
    }
    if group.kind == "full":
        return fill(source, interface.FullAttentionSpec, offered)
    if group.kind == "sliding":
        return fill(
            source,
            interface.SlidingWindowSpec,
            {**offered, "sliding_window": group.window},
            ["sliding_window"],
        )
    if is_ring(group):
        ring = source.part("v1.kv_cache_interface", "CircularBufferSpec")
        return fill(source, ring, {**offered, "block_size": RING_CHUNKS * group.chunk})
    if group.kind == "chunked":
        chunk = {"attention_chunk_size": group.chunk}
        return fill(source, interface.ChunkedLocalAttentionSpec, {**offered, **chunk}, chunk)
    state = {
        "block_size": (
            options.max_model_len if options.mamba_cache_mode == "none" else group.block_size
        ),
        "shapes": ((4, 4),),
        "dtypes": (torch.float32,),
        "mamba_cache_mode": options.mamba_cache_mode,
        "num_speculative_blocks": options.num_speculative_tokens,
    }
    return fill(source, interface.MambaSpec, state, ["mamba_cache_mode", "num_speculative_blocks"])


def cache_config(
    source: Source, header: TraceHeader, options: Options, interval: int | None
) -> Any:
    """Return vLLM's KVCacheConfig for the layout and pool of a trace; `interval` is the
    retention interval in tokens.
    """
    specs = windowed(
        source, [group_spec(source, group, options) for group in header.layout.groups], header
    )
    groups = [
        fill(
            source,
            source.interface.KVCacheGroupSpec,
            {"layer_names": [f"layers.{index}"], "kv_cache_spec": spec, **_marks(index, options)},
            _marks(index, options),
        )
        for index, spec in enumerate(specs)
    ]
    offered: dict[str, Any] = {
        "num_blocks": header.pages,
        "kv_cache_tensors": [],
        "kv_cache_groups": groups,
    }
    if has_retention_field(source):
        offered["prefix_cache_retention_interval"] = interval
    return fill(source, source.interface.KVCacheConfig, offered)


def _marks(index: int, options: Options) -> dict[str, bool]:
    return {"is_eagle_group": index in options.eagle_groups} if options.eagle_groups else {}


def has_retention_field(source: Source) -> bool:
    """Whether the retention interval is a field of the configuration (0.29 on) and not an
    environment variable.
    """
    return "prefix_cache_retention_interval" in parameters(source.interface.KVCacheConfig)


def tells_routers(source: Source, options: Options, special: RequestOptions) -> bool:
    """Whether key events are switched on: wherever keys are, from the release on whose events
    name a group (0.26). They name an adapter without its path, so not where paths differ.
    """
    names = getattr(source.part("distributed.kv_events", "BlockStored"), "__struct_fields__", ())
    return options.enable_caching and "group_idx" in names and not special.adapter_paths


def default_interval(source: Source, options: Options, recurrent: bool) -> int | None:
    """Return the retention interval that this vLLM uses when nobody sets one.

    0.29 makes an exception of hybrid models with EAGLE (`engine/arg_utils.py`): their snapshots are
    kept densely.
    """
    if not has_retention_field(source):
        return retention_interval_from(os.environ)
    if source.release == (0, 29) and recurrent and options.use_eagle:
        return None
    default: int | None = source.part("config", "CacheConfig")().prefix_cache_retention_interval
    return default


def base_block_size(header: TraceHeader) -> int:
    """Return what vLLM calls the block size of the cache, in tokens: that of the recurrent groups,
    where there are any.

    Raises UsageError if those differ: vLLM has one size for all of them (`config/cache.py`,
    `mamba_block_size`).
    """
    recurrent = sorted(
        {group.block_size for group in header.layout.groups if group.kind == "recurrent"}
    )
    if len(recurrent) > 1:
        raise UsageError(
            f"layout {header.layout.name!r}: recurrent groups of one vLLM have one block size, not"
            f" {recurrent}"
        )
    return recurrent[0] if recurrent else header.layout.groups[0].block_size


def block_sizes(source: Source, config: Any, whole: Any) -> tuple[int, int]:
    """Return (scheduler block size, hash block size) in tokens, as vLLM itself resolves them
    from its own configurations.
    """
    offered = {"kv_cache_config": config, "vllm_config": whole}
    sizes: tuple[int, int] = fill(source, source.utils.resolve_kv_cache_block_sizes, offered)
    return sizes


def tell_sizes(source: Source, config: Any, whole: Any, sizes: tuple[int, int]) -> None:
    """Note in vLLM's configuration of the cache what connectors read there: the hash block size,
    and where hits end.

    Its engine does so since 0.33, when it starts (`v1/engine/core.py`). `sizes` are (scheduler
    block size, hash block size).
    """
    if (alignment := getattr(source.utils, "resolve_cache_hit_alignment_tokens", None)) is not None:
        settled = {
            "hash_block_size": sizes[1],
            "cache_hit_alignment_tokens": alignment(config, whole, *sizes),
        }
        settle(source, config, settled)


def block_sizes_of(
    source: Source, header: TraceHeader, config: Any, options: Options, ranks: int = 1
) -> tuple[int, int]:
    """Return the same for a cache manager that is built without a configuration of the whole
    engine; the blocks of full attention lie on so many ranks.
    """
    requested = options.hash_block_size
    alone = len(header.layout.groups) == 1
    cache = SimpleNamespace(
        block_size=base_block_size(header) // (ranks if alone else 1),
        enable_prefix_caching=options.enable_caching,
        prefix_match_unit=requested,
        hash_block_size=requested,
    )
    parallel = SimpleNamespace(decode_context_parallel_size=ranks, prefill_context_parallel_size=1)
    whole = SimpleNamespace(cache_config=cache, parallel_config=parallel, kv_transfer_config=None)
    return block_sizes(source, config, whole)


def manager(
    source: Source, config: Any, sizes: tuple[int, int], options: Options, ranks: int = 1
) -> Any:
    """Return vLLM's KVCacheManager; the blocks of full attention lie on so many ranks."""
    offered = {
        "kv_cache_config": config,
        "max_model_len": options.max_model_len,
        "scheduler_block_size": sizes[0],
        "hash_block_size": sizes[1],
        "max_in_flight_tokens": options.max_num_batched_tokens,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "enable_caching": options.enable_caching,
        "use_eagle": options.use_eagle,
        "enable_kv_cache_events": tells_routers(source, options, RequestOptions()),
        "watermark": options.watermark,
        "dcp_world_size": ranks,
    }
    needed = ["enable_caching", "use_eagle", "watermark", "enable_kv_cache_events"]
    return fill(source, source.manager.KVCacheManager, offered, needed)


def request_maker(
    source: Source,
    hash_block_size: int,
    options: Options,
    *,
    full: bool = False,
    connected: bool = False,
) -> NewRequest:
    """Return a function that turns a submit and its tokens into vLLM's Request, as its engine does
    with a client's message.

    `full`: of each request key events tell what it hits, as its client asks for. `connected`: there
    is a connector, for which vLLM hashes blocks also where caching is off (`EngineCore.__init__`).
    """
    hashed = options.enable_caching or connected
    hash_function = _hash_function(source)
    source.utils.init_none_hash(hash_function)
    hasher_arguments = {"hash_block_size": hash_block_size, "caching_hash_fn": hash_function}
    hasher = fill(source, source.utils.get_request_block_hasher, hasher_arguments, hasher_arguments)
    sampling = source.part("sampling_params", "SamplingParams")
    asks = {"extra_args": {"kv_cache_report_mode": "full"}} if full else {}
    constraint = source.part("sampling_params", "StructuredOutputsParams")
    sent = source.part("v1.engine", "EngineCoreRequest")
    taken = source.request.Request.from_engine_core_request
    adapters: dict[str, Any] = {}

    def wants(op: Submit) -> dict[str, Any]:
        follows = {"structured_outputs": constraint(regex=".*")} if op.grammar else {}
        likelihoods = {"prompt_logprobs": 1} if op.prompt_logprobs else {}
        return {
            "max_tokens": op.generate or options.max_model_len,
            **asks,
            **follows,
            **likelihoods,
        }

    def new_request(op: Submit, tokens: list[int]) -> Any:
        if op.adapter and op.adapter not in adapters:
            adapters[op.adapter] = _adapter(source, op.adapter, len(adapters) + 1)
        offered = {
            "request_id": op.r,
            "prompt_token_ids": tokens,
            "sampling_params": sampling(**wants(op)),
            "resumable": op.session,
            "priority": op.priority,
            "pooling_params": None,
            "arrival_time": 0.0,
            "data_parallel_rank": None,
            "lora_request": adapters.get(op.adapter),
            "cache_salt": op.salt or None,
            "mm_features": (
                [_feature(source, item.at, item.length, item.hash) for item in op.media] or None
            ),
        }
        message = fill(source, sent, offered, ["lora_request", "cache_salt", "mm_features"])
        return taken(message, hasher if hashed else None)

    return new_request


def _hash_function(source: Source) -> Any:
    """Return what blocks are hashed with: the release's own choice."""
    algorithm = fill(source, source.part("config", "CacheConfig"), {}).prefix_caching_hash_algo
    return source.part("utils.hashing", "get_hash_fn_by_name")(algorithm)


def _adapter(source: Source, adapter: str, number: int) -> Any:
    """Return an adapter; what stands in front of its PATH_MARK is its name, all of it its path."""
    name = adapter.partition(PATH_MARK)[0]
    offered = {"lora_name": name, "lora_int_id": number, "lora_path": adapter}
    return fill(source, source.part("lora.request", "LoRARequest"), offered, ["lora_name"])


def _feature(source: Source, at: int, length: int, content: str) -> Any:
    position = fill(
        source,
        source.part("multimodal.inputs", "PlaceholderRange"),
        {"offset": at, "length": length},
    )
    offered = {"data": None, "modality": "image", "identifier": content, "mm_position": position}
    return fill(source, source.part("multimodal.inputs", "MultiModalFeatureSpec"), offered, offered)
