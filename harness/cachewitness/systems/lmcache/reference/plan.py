"""LMCache behind vLLM: the unified block size N, the chunk and the budget that follow from it, and
what to type.

The steps are the document's, the arithmetic and the checks `cachewitness_reference.lmcache`'s. A
model without recurrent layers has no N: its chunk is a multiple of the blocks that its layout has,
and its budget is free. What LMCache says of a model in a release is read from the layout
(`[[model.statements]]`) and told as it stands, contradictions included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.plan import options, sources
from cachewitness.plan.hybrid import hybrid_of, is_gated_delta, is_hybrid, types_of
from cachewitness.plan.rank import state_bytes, token_bytes
from cachewitness.plan.result import Plan
from cachewitness.systems.lmcache.reference import FEATURE_VARIABLES
from cachewitness.systems.lmcache.reference.log import SAYS, Logged, block_size_in
from cachewitness.workloads.model import Full, Model, Recurrent
from cachewitness_reference.lmcache import sizing
from cachewitness_reference.lmcache.checks import (
    StartupError,
    validate_chunk_size,
    validate_mamba_step_alignment,
)
from cachewitness_reference.lmcache.features import refusal
from cachewitness_reference.lmcache.spec import DEFAULT_CHUNK_SIZE, NEWEST, RELEASES
from cachewitness_reference.vllm.sizing import block_alignment

KERNEL_BLOCK = 16
HOPPER_CHECKPOINTS = 64
_HOPPER = f"--checkpoint-alignment {HOPPER_CHECKPOINTS}"
_FLASHINFER = "FlashInfer's DeltaNet prefill on Hopper"
_TRANSFER = '--kv-transfer-config \'{"kv_connector":"LMCacheMPConnector", "kv_role":"kv_both"}\''


@dataclass(frozen=True)
class Request:
    """What the user asked; None or nothing is not said. Sizes in tokens; `from_log` is a file
    with what vLLM printed.
    """

    layout: str = ""
    from_log: Path | None = None
    chunk_size: int | None = None
    max_num_batched_tokens: int | None = None
    kernel_block: int | None = None
    checkpoint_alignment: int | None = None
    tensor_parallel_size: int = 1
    l1_size_gb: float = sizing.L1_GIB
    release: str = NEWEST
    features: Mapping[str, str] = field(default_factory=dict)


@click.command("lmcache")
@options.model_options(required=False)
@click.option(
    "--from-log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read N from vLLM's log; a layout beside it must agree.",
)
@click.option(
    "--chunk-size",
    type=options.SIZE,
    help="The server's; N or the least multiple of all blocks from 256 by default.",
)
@click.option(
    "--l1-size-gb",
    type=click.FloatRange(0, 2**33, min_open=True),
    default=sizing.L1_GIB,
    show_default=True,
    help="GiB of the server's first level.",
)
@click.option(
    "--max-num-batched-tokens",
    type=options.SIZE,
    help="The engine's; what the release recommends by default.",
)
@click.option(
    "--kernel-block",
    type=options.SIZE,
    help=f"The attention kernel's own block; default: {KERNEL_BLOCK}.",
)
@options.checkpoint_alignment
@options.tensor_parallel_size
@click.option(
    "--engine-type",
    metavar="NAME",
    help="The server's, as LMCache takes it; CacheBlend (blend) is refused.",
)
@click.option(
    "--remote-serde",
    metavar="NAME",
    help="LMCache's, as it takes it; CacheGen (cachegen) and kivi are refused.",
)
@click.option(
    "--release",
    default="0.5.6",
    show_default=True,
    help="From 0.4.7 on; up to 0.5.3 the budget is below 2N.",
)
@options.as_json
def command(
    as_json: bool,
    layout: str | None,
    engine_type: str | None,
    remote_serde: str | None,
    **given: Any,
) -> None:
    """Derive N, the server's chunk and the engine's budget, and the two command lines."""
    features = {"engine_type": engine_type or "", "remote_serde": remote_serde or ""}
    options.show(plan(Request(layout or "", features=features, **given)), as_json=as_json)


def plan(request: Request) -> Plan:
    """Derive the settings. Raises UsageError naming the option or the field, or with LMCache's
    own refusal.
    """
    _check(request)
    logged = None if request.from_log is None else block_size_in(request.from_log)
    model = sources.model(request.layout) if request.layout else None
    answer = Plan("lmcache", request.release, request.layout)
    try:
        if model is None or is_hybrid(model):
            _plan_hybrid(answer, request, model, logged)
        elif logged is not None:
            raise UsageError(
                f"{logged.place}: N: {sources.option(request.layout)} has no recurrent layers, so"
                " vLLM sets no such block"
            )
        else:
            _plan_blocks(answer, request, model)
    except (sizing.SizingError, StartupError) as error:
        raise UsageError(f"lmcache: {error}") from None
    if model is not None:
        _tell_statements(answer, model)
    return answer


def _check(request: Request) -> None:
    """Refuse what fits nothing, and what LMCache does that this specification does not follow."""
    if request.release not in RELEASES:
        raise UsageError(f"--release: {request.release!r} is unknown; known: {', '.join(RELEASES)}")
    for name, value in request.features.items():
        if why := refusal(name, value):
            raise UsageError(f"--{name.replace('_', '-')} {value}: {why}")
    for variable in FEATURE_VARIABLES:
        variable.value()
    if not request.layout and request.from_log is None:
        raise UsageError(
            "--layout: name one (`ls layouts`), a --config FILE, or give what vLLM printed:"
            " --from-log FILE"
        )
    if not request.layout and (request.kernel_block or request.checkpoint_alignment):
        raise UsageError(
            "--kernel-block, --checkpoint-alignment: N is read from the log; leave them out, or add"
            " --layout"
        )


def _plan_hybrid(
    answer: Plan, request: Request, model: Model | None, logged: Logged | None
) -> None:
    block = _sized(answer, request, model, logged) if model is not None else _logged(answer, logged)
    least, most, budget = sizing.batched_tokens(block, request.release)
    chunk = block if request.chunk_size is None else request.chunk_size
    validate_chunk_size(chunk, [block])
    given = request.max_num_batched_tokens
    validate_mamba_step_alignment(
        budget if given is None else given, [block], release=request.release
    )
    answer.add(
        "chunk_tokens",
        chunk,
        "--chunk-size: N" if chunk == block else f"--chunk-size: {chunk // block} x N",
    )
    bounds = f"[{least}, {most}]" if most is not None else f"{least} or more"
    how = f"--max-num-batched-tokens: {bounds}" + (
        "" if given is not None else f"; {_budget_how(most)}"
    )
    answer.add("max_num_batched_tokens", budget if given is None else given, how)
    answer.add("max_num_batched_tokens_least", least, "N")
    answer.add(
        "max_num_batched_tokens_most",
        most,
        "2N - 1" if most is not None else "no bound since 0.5.4",
    )
    if model is not None:
        _tell_stored(answer, request, model, chunk, block)
    checkpoint = model.checkpoint if model is not None else "<model>"
    answer.commands.append(sizing.server_command(chunk, request.release, request.l1_size_gb))
    answer.commands.append(
        sizing.engine_command(checkpoint, budget if given is None else given) + _parallel(request)
    )


def _logged(answer: Plan, logged: Logged | None) -> int:
    """Add the block size that a log says."""
    assert logged is not None, "without a layout there is a log"
    answer.add("unified_block_tokens", logged.tokens, f"N: {logged.place}")
    return logged.tokens


def _sized(answer: Plan, request: Request, model: Model, logged: Logged | None) -> int:
    """Add the block size that follows from a model, and how; refuse a log that says another."""
    hybrid = hybrid_of(model, request.tensor_parallel_size, sources.option(request.layout))
    exports = (
        model.checkpoint_alignment
        if request.checkpoint_alignment is None
        else request.checkpoint_alignment
    )
    kernel = KERNEL_BLOCK if request.kernel_block is None else request.kernel_block
    align = block_alignment(kernel, latent=hybrid.latent, checkpoint_alignment=exports)
    block = sizing.unified_block_size(hybrid.token_bytes, hybrid.state_bytes, align)
    if logged is not None and logged.tokens != block:
        raise UsageError(
            f"{logged.place}: N: {logged.tokens} tokens, but {sources.option(request.layout)} has"
            f" {block} where blocks are multiples of {align} tokens; name the kernels that ran"
            f" ({_HOPPER} for {_FLASHINFER}), or leave --layout out"
        )
    answer.add("attention_token_bytes", hybrid.token_bytes, "of one attention layer, on one rank")
    answer.add(
        "state_bytes",
        hybrid.state_bytes,
        "of one recurrent layer, on one rank: convolution and state",
    )
    exact = (
        f"N: {hybrid.state_bytes / hybrid.token_bytes:.1f} tokens weigh a state; up to a multiple"
        f" of {align}"
    )
    answer.add(
        "unified_block_tokens",
        block,
        exact + (f"; {logged.place} says so" if logged is not None else ""),
    )
    answer.add(
        "padding_share",
        sizing.state_padding(hybrid.token_bytes, hybrid.state_bytes, block),
        "of a state, to fill its page",
    )
    if is_gated_delta(model) and exports == 1 and logged is None:
        answer.notes.append(
            f"N is what vLLM's log says ({SAYS} N tokens; --from-log FILE reads it); {_FLASHINFER}"
            f" makes it a multiple of {HOPPER_CHECKPOINTS} from vLLM 0.33 on: {_HOPPER}"
        )
    answer.notes += sources.blocks_differ(block, request.layout)
    return block


def _tell_stored(answer: Plan, request: Request, model: Model, chunk: int, block: int) -> None:
    """Add what a chunk takes in the server's first level, and how many it holds; nothing where
    what is stored of a layer is not worked out (windows, latent vectors, indexers).
    """
    types = types_of(model)
    ranks = request.tensor_parallel_size
    full = [cache for cache in model.caches if isinstance(cache, Full)]
    states = [cache for cache in model.caches if isinstance(cache, Recurrent)]
    if len(full) + len(states) != len(model.caches) or not full:
        return
    tokens = sum(cache.layers * token_bytes(cache, ranks, types) for cache in full)
    kept = 0
    for cache in states:
        page = block * token_bytes(full[0], ranks, types)
        state = state_bytes(cache, ranks, types)
        kept += cache.layers * sizing.stored_state_bytes(state, block, page)
    stored = ranks * (chunk * tokens + kept)
    every = "" if ranks == 1 else f"{ranks} ranks x "
    beside = f" + {kept}: one state of every recurrent layer" if states else ""
    answer.add("chunk_bytes", stored, f"{every}{chunk} x {tokens}{beside}")
    chunks = int(request.l1_size_gb * (1 << 30)) // stored
    answer.add("l1_chunks", chunks, f"--l1-size-gb {request.l1_size_gb:g}; eviction begins at 80 %")
    answer.add("l1_tokens", chunks * chunk, f"{chunks} x {chunk}")


def _budget_how(most: int | None) -> str:
    return (
        "N is always valid"
        if most is not None
        else "2N - 1 leaves room for decoding beside a block of prefill"
    )


def _plan_blocks(answer: Plan, request: Request, model: Model) -> None:
    if request.max_num_batched_tokens is not None:
        raise UsageError(
            f"--max-num-batched-tokens: {model.checkpoint} has no recurrent layers, so LMCache"
            " bounds no budget"
        )
    blocks = [group.block_size for group in sources.layout(request.layout).groups]
    chunk = sizing.chunk_size(blocks) if request.chunk_size is None else request.chunk_size
    validate_chunk_size(chunk, blocks)
    answer.add(
        "groups",
        len(blocks),
        f"of the layout, blocks of {', '.join(map(str, sorted(set(blocks))))} tokens",
    )
    answer.add(
        "chunk_span_tokens",
        sizing.chunk_size(blocks, 1),
        "chunks are multiples of it: every group has a block end there",
    )
    answer.add("chunk_tokens", chunk, f"--chunk-size; {DEFAULT_CHUNK_SIZE} by default")
    _tell_stored(answer, request, model, chunk, 0)
    answer.commands.append(
        f"lmcache server --chunk-size {chunk} --l1-size-gb {request.l1_size_gb:g}"
        " --eviction-policy LRU"
    )
    answer.commands.append(f"vllm serve {model.checkpoint} {_TRANSFER}" + _parallel(request))
    answer.notes.append(
        "no recurrent layers: no unified block size, and no bound on --max-num-batched-tokens"
    )


def _parallel(request: Request) -> str:
    return (
        f" --tensor-parallel-size {request.tensor_parallel_size}"
        if request.tensor_parallel_size > 1
        else ""
    )


def _tell_statements(answer: Plan, model: Model) -> None:
    statements = [
        each
        for each in model.statements
        if each.system == "lmcache" and each.holds_in(answer.release)
    ]
    if not statements:
        return
    verdicts = list(dict.fromkeys(each.verdict for each in statements))
    contradict = "unsupported" in verdicts and len(verdicts) > 1
    answer.add(
        "lmcache_says",
        ", ".join(verdicts),
        "the statements contradict each other; see the notes" if contradict else "",
    )
    for each in statements:
        answer.notes.append(f"{each.verdict}: {each.says} ({each.source})")
