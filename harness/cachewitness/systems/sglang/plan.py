"""SGLang: how the memory for caches is split between states and keys and values, and how many
requests the states let run.

A state slot has the states of all recurrent layers. They get a share of the memory,
`--mamba-full-memory-ratio` r: r / (1 + r) of it, one slot of that for padding. A running request
needs several slots. What is left are the tokens of full attention. Models without states have
tokens alone.

Sources (SGLang 0.5.23): `srt/mem_cache/kv_cache_configurator.py`, `_profile_available_bytes`,
`_handle_max_mamba_cache`, `_calculate_mamba_ratio`, `resolve_max_num_reqs`;
`srt/model_executor/pool_configurator.py`, DefaultPoolConfigurator; `srt/configs/mamba_utils.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.engines.sizing import Sizing
from cachewitness.plan import options, sources
from cachewitness.plan.rank import Types, latent_bytes, state_bytes, token_bytes
from cachewitness.plan.result import Plan
from cachewitness.workloads.model import Full, Latent, Model, Recurrent

RELEASE = "0.5.23"
GIB = 1 << 30
RATIO = 0.9
FRACTION = 0.9
STRATEGIES = {"no_buffer": 0, "extra_buffer": 2, "extra_buffer_lazy": 1}
"""Slots beside the three of a running request, with overlapped scheduling."""
SLOTS_PER_REQUEST = 3
REQUESTS_LEAST, REQUESTS_MOST, REQUESTS_PER_CONTEXT = 2048, 4096, 512
CONVOLUTION = "bfloat16"
STATE = "float32"
"""What SGLang keeps where neither the checkpoint nor a variable names a type."""
KV_DTYPES = {"auto": "auto", "bfloat16": "bfloat16", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


@dataclass(frozen=True)
class Request:
    """What the user asked; None is not said. Fields with the name of a flag of SGLang mean what it
    means. `memory` is what is left for the pools, in bytes.
    """

    layout: str
    memory: int
    mamba_full_memory_ratio: float = RATIO
    mamba_radix_cache_strategy: str = "extra_buffer"
    max_mamba_cache_size: int | None = None
    mamba_ssm_dtype: str | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    page_size: int = 1
    max_running_requests: int | None = None
    context_length: int | None = None
    request_tokens: int | None = None


@click.command("sglang")
@options.model_options()
@options.memory
@click.option("--device-memory", type=options.Memory(), help="Free before the model is loaded.")
@click.option(
    "--mem-fraction-static",
    type=click.FloatRange(0, 1, min_open=True),
    default=FRACTION,
    show_default=True,
    help="The part of it for weights and pools; with --device-memory.",
)
@click.option("--used-memory", type=options.Memory(), help="What the weights take of it.")
@click.option(
    "--mamba-full-memory-ratio",
    type=click.FloatRange(0, min_open=True),
    default=RATIO,
    show_default=True,
    help="Memory of the states over that of keys and values.",
)
@click.option(
    "--mamba-radix-cache-strategy",
    type=click.Choice([*STRATEGIES]),
    default="extra_buffer",
    show_default=True,
    help="How many slots a running request needs.",
)
@click.option("--max-mamba-cache-size", type=options.SIZE, help="Slots, instead of a share.")
@click.option(
    "--mamba-ssm-dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Of the states; what the configuration says, else float32.",
)
@click.option(
    "--kv-cache-dtype", type=click.Choice([*KV_DTYPES]), default="auto", show_default=True
)
@click.option(
    "--tp", "--tensor-parallel-size", "tensor_parallel_size", type=options.SIZE, default=1
)
@click.option("--page-size", type=options.SIZE, default=1, show_default=True)
@click.option("--max-running-requests", type=options.SIZE)
@click.option("--context-length", type=options.SIZE, help="Tokens; the model's own by default.")
@options.request_tokens
@options.as_json
def command(
    as_json: bool,
    memory: int | None,
    device_memory: int | None,
    mem_fraction_static: float,
    used_memory: int | None,
    **given: Any,
) -> None:
    """Split memory into state slots and tokens, and say how many requests run."""
    left = _left(memory, device_memory, mem_fraction_static, used_memory)
    options.show(plan(Request(memory=left, **given)), as_json=as_json)


def _left(memory: int | None, device: int | None, fraction: float, used: int | None) -> int:
    """Return what the pools get: all that is left but for the part that SGLang keeps free."""
    if memory is not None:
        return memory
    if device is None or used is None:
        raise UsageError(
            "--memory: give what is left for the pools, or --device-memory (free before the model"
            " is loaded) and --used-memory (its weights)"
        )
    left = int(device * fraction) - used
    if left < 1:
        raise UsageError("--mem-fraction-static: the weights leave no memory for the pools")
    return left


def plan(request: Request) -> Plan:
    """Work out slots, tokens and requests. Raises UsageError naming the option or the field that
    does not fit.
    """
    model = sources.unquantized_model(request.layout)
    answer = Plan("sglang", RELEASE, request.layout)
    answer.add("memory_bytes", request.memory, "for the pools, on one rank")
    slots, rest = _tell_states(answer, request, model)
    cell = _cell(model, request)
    tokens = int(rest) // cell // request.page_size * request.page_size
    answer.add("token_bytes", cell, "of all attention layers, on one rank")
    answer.add(
        "max_total_tokens", tokens, f"{int(rest)} // {cell}, in pages of {request.page_size}"
    )
    if tokens < 1:
        raise UsageError("--memory: it leaves no tokens; SGLang does not start")
    running = _tell_requests(answer, request, model, slots, tokens)
    if request.request_tokens is not None:
        fit = min(running, tokens // request.request_tokens)
        answer.add("requests_running", fit, f"of {request.request_tokens} tokens at once")
        answer.tell_running(request.request_tokens, fit)
    return answer


def _tell_states(answer: Plan, request: Request, model: Model) -> tuple[int | None, float]:
    """Add the slots; return how many there are (None without recurrent layers), and the bytes that
    are left.
    """
    states = [cache for cache in model.caches if isinstance(cache, Recurrent)]
    if not states:
        return None, request.memory
    slot = sum(_state(cache, request) * cache.layers for cache in states)
    answer.add("state_slot_bytes", slot, "the states of all recurrent layers, on one rank")
    total = request.memory / GIB
    ratio = request.mamba_full_memory_ratio
    if request.max_mamba_cache_size is None:
        budget = total * ratio / (1 + ratio) * GIB
        slots = int((budget - slot) // slot)
        how = f"{ratio:g} / {1 + ratio:g} of the memory, less one for padding"
    else:
        slots = request.max_mamba_cache_size
        how = "--max-mamba-cache-size"
    answer.add("max_mamba_cache_size", slots, how)
    if slots < 1:
        raise UsageError("--memory: it holds no state; SGLang does not start")
    return slots, (total - (slots + 1) * slot / GIB) * GIB


def _state(cache: Recurrent, request: Request) -> int:
    named = cache.state_dtype_fixed or cache.state_dtype != cache.conv_dtype
    own = cache.state_dtype if named and cache.family == "gdn" else STATE
    types = Types(mamba=CONVOLUTION, mamba_ssm=request.mamba_ssm_dtype or own)
    return state_bytes(cache, request.tensor_parallel_size, types)


def _cell(model: Model, request: Request) -> int:
    """Return the bytes of a token in all attention layers."""
    types = Types(kv=KV_DTYPES[request.kv_cache_dtype])
    total = 0
    for cache in model.caches:
        if isinstance(cache, Recurrent):
            continue
        if isinstance(cache, Full):
            total += token_bytes(cache, request.tensor_parallel_size, types) * cache.layers
        elif isinstance(cache, Latent) and cache.window is None and cache.tokens_per_entry == 1:
            total += latent_bytes(cache, types) * cache.layers
        else:
            raise UsageError(
                f"{sources.option(request.layout)}: model.caches: how SGLang splits memory between"
                " windows, indexers and full attention is not worked out here"
            )
    if not total:
        raise UsageError(f"{sources.option(request.layout)}: a model without attention")
    return total


def _tell_requests(
    answer: Plan, request: Request, model: Model, slots: int | None, tokens: int
) -> int:
    context = request.context_length or model.max_length
    estimated = int(tokens / context * REQUESTS_PER_CONTEXT)
    most = max(min(estimated, REQUESTS_MOST), REQUESTS_LEAST)
    running = min(request.max_running_requests or most, tokens // 2)
    how = f"{tokens} tokens, at {context} each"
    if slots is not None:
        each = SLOTS_PER_REQUEST + STRATEGIES[request.mamba_radix_cache_strategy]
        answer.add("slots_per_request", each, request.mamba_radix_cache_strategy)
        if slots // each < running:
            running = slots // each
            how = f"{slots} // {each}: as many as the states let run"
    answer.add("max_running_requests", running, how)
    return running


def _plan() -> click.Command:
    return command


SIZING = Sizing(_plan)
