"""vLLM: the block size of a model, what a sequence leaves in the cache, and how much of the pool is
snapshots.

The arithmetic is `cachewitness_reference.vllm.sizing`. Two block sizes are worth asking about.
Without `--block-size` it is the one that vLLM chooses: the block is raised until an attention page
holds a state, and a snapshot is one page. With a smaller one, as in the test set-up of PR 45845, a
snapshot takes several pages; a release of vLLM would raise it, and say so in its log.

A model without recurrent layers has no such number; its groups and their blocks are taken from the
layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.plan import options, sources
from cachewitness.plan.hybrid import Hybrid, hybrid_of, is_gated_delta, is_hybrid
from cachewitness.plan.result import Plan
from cachewitness.systems.vllm.reference import RETENTION_INTERVAL, memory
from cachewitness.systems.vllm.reference.memory import Pool
from cachewitness.workloads.model import Model
from cachewitness_reference.vllm import sizing
from cachewitness_reference.vllm.options import RETENTION_VARIABLE, ConfigError
from cachewitness_reference.vllm.pool import Group
from cachewitness_reference.vllm.sizing import SequenceLengths
from cachewitness_reference.vllm.spec import NEWEST, RELEASES
from cachewitness_reference.vllm_extended.sizing import pages_per_snapshot, pool_share

KERNEL_BLOCK = 16
HOPPER_CHECKPOINTS = 64
PROMPT_TOKENS = 65536
IN_FLIGHT = 2048


@dataclass(frozen=True)
class Request:
    """What the user asked; None is not said. `retention_interval` is text: a number of tokens,
    or `none` for dense.
    """

    layout: str
    retention_interval: str | None = None
    block_size: int | None = None
    kernel_block: int = KERNEL_BLOCK
    checkpoint_alignment: int | None = None
    tensor_parallel_size: int = 1
    prompt_tokens: int | None = None
    output_tokens: int = 0
    chunk_tokens: int | None = None
    release: str = NEWEST
    memory: int | None = None
    shared_prefix: int | None = None
    in_flight_tokens: int = IN_FLIGHT
    intervals: bool = False
    chart: Path | None = None


@click.command("vllm")
@options.model_options()
@click.option(
    "--retention-interval",
    metavar="N|none",
    help=f"Tokens; none keeps every boundary; default: {RETENTION_VARIABLE}.",
)
@click.option("--block-size", type=options.SIZE, help="Tokens in a block; N by default.")
@options.kernel_block
@options.checkpoint_alignment
@options.tensor_parallel_size
@click.option(
    "--prompt-tokens",
    "--context",
    "--request-tokens",
    "prompt_tokens",
    type=options.SIZE,
    help="Of a request; 65536, or all that the model takes.",
)
@click.option(
    "--output-tokens",
    type=options.COUNT,
    default=0,
    show_default=True,
    help="Tokens generated after it.",
)
@click.option(
    "--chunk-tokens", type=options.SIZE, help="Tokens of the prompt in a step; a block by default."
)
@options.memory
@click.option(
    "--shared-prefix",
    type=options.SIZE,
    metavar="N",
    help="With --memory: tokens with which all requests begin.",
)
@click.option(
    "--in-flight-tokens",
    type=options.SIZE,
    default=IN_FLIGHT,
    show_default=True,
    help=(
        "max_num_batched_tokens, times the batches in flight; windows hold their blocks for so"
        " long."
    ),
)
@click.option(
    "--intervals",
    is_flag=True,
    help="Add a table: what each retention interval keeps, and what it costs.",
)
@click.option(
    "--chart", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw that table."
)
@click.option("--release", default="0.33", show_default=True, help="Whose defaults and rules.")
@options.as_json
def command(as_json: bool, **given: Any) -> None:
    """Work out the unified block size, the snapshots kept, and their share of the pool."""
    options.show(plan(Request(**given)), as_json=as_json)


def plan(request: Request) -> Plan:
    """Work out blocks, snapshots and shares. Raises UsageError naming the option or the field
    that does not fit.
    """
    if request.release not in RELEASES:
        raise UsageError(f"--release: {request.release!r} is unknown; known: {', '.join(RELEASES)}")
    model = sources.model(request.layout)
    answer = Plan("vllm", request.release, request.layout)
    if request.shared_prefix and request.memory is None:
        raise UsageError("--shared-prefix: says nothing without --memory")
    try:
        of = (
            _plan_hybrid(answer, request, model)
            if is_hybrid(model)
            else _plan_windows(answer, request, model)
        )
        if request.memory is not None or request.intervals or request.chart:
            _plan_pool(answer, request, of())
    except ConfigError as error:
        raise UsageError(f"vllm: {error}") from None
    return answer


def _plan_hybrid(answer: Plan, request: Request, model: Model) -> Callable[[], Pool]:
    hybrid = hybrid_of(model, request.tensor_parallel_size, sources.option(request.layout))
    exports = (
        model.checkpoint_alignment
        if request.checkpoint_alignment is None
        else request.checkpoint_alignment
    )
    alignment = sizing.block_alignment(
        request.kernel_block, latent=hybrid.latent, checkpoint_alignment=exports
    )
    unified = sizing.unified_block_size(hybrid.token_bytes, hybrid.state_bytes, alignment)
    block = unified if request.block_size is None else request.block_size
    page = block * hybrid.token_bytes
    pages = pages_per_snapshot(hybrid.state_bytes, page)
    exact = hybrid.state_bytes / hybrid.token_bytes
    answer.add("attention_token_bytes", hybrid.token_bytes, "of one attention layer, on one rank")
    answer.add(
        "state_bytes",
        hybrid.state_bytes,
        "of one recurrent layer, on one rank: convolution and state",
    )
    answer.add("alignment_tokens", alignment, _alignment_how(request, hybrid, exports))
    answer.add(
        "unified_block_tokens",
        unified,
        f"N: {exact:.1f} tokens weigh a state; up to a multiple of {alignment}",
    )
    answer.add("block_tokens", block, "N" if request.block_size is None else "as given")
    answer.add("page_bytes", page, f"{block} x {hybrid.token_bytes}: one layer's block")
    answer.add("pages_per_snapshot", pages, f"ceil({hybrid.state_bytes} / {page})")
    answer.add(
        "padding_share",
        (pages * page - hybrid.state_bytes) / hybrid.state_bytes,
        "of a state, to fill its pages",
    )
    recurrent, attention = sizing.deal_layers([hybrid.recurrent_layers, hybrid.attention_layers])
    answer.add("recurrent_groups", len(recurrent), f"{_sum(recurrent)} layers")
    answer.add("attention_groups", len(attention), f"{_sum(attention)} layers")
    _tell_snapshots(answer, request, model, block, pages, (len(recurrent), len(attention)))
    if request.block_size is not None and request.block_size < unified:
        raised = sizing.unified_block_size(
            hybrid.token_bytes, hybrid.state_bytes, math.lcm(alignment, request.block_size)
        )
        answer.notes.append(
            f"no release of vLLM keeps a block of {request.block_size} tokens here: it raises it to"
            f" {raised}, where a snapshot is one page; smaller blocks are the test set-up of PR"
            " 45845"
        )
    elif exports == 1 and is_gated_delta(model):
        hopper = sizing.unified_block_size(
            hybrid.token_bytes, hybrid.state_bytes, math.lcm(alignment, HOPPER_CHECKPOINTS)
        )
        answer.notes.append(
            f"from 0.33 on, FlashInfer's DeltaNet prefill (Hopper) raises N to {hopper}:"
            f" --checkpoint-alignment {HOPPER_CHECKPOINTS}; vLLM's log says which it is (Setting"
            " attention block size to N tokens)"
        )
    if request.block_size is None:
        answer.notes += sources.blocks_differ(unified, request.layout)
    groups = [Group("recurrent", block, layers) for layers in recurrent]
    groups += [Group("full", block, layers) for layers in attention]
    return lambda: _pool(request, model, groups, page, pages)


def _tell_snapshots(
    answer: Plan, request: Request, model: Model, block: int, pages: int, groups: tuple[int, int]
) -> None:
    """Add what one sequence leaves behind. `groups`: how many recurrent and how many attention
    groups there are.
    """
    interval = _interval(request, "sliding+mamba")
    lengths = _lengths(request, model, block)
    blocks = math.ceil(lengths.computed_tokens / block)
    dense, kept = sizing.kept_snapshots(lengths, block, block, interval)
    _tell_sequence(answer, request, lengths, interval)
    answer.add(
        "attention_blocks",
        blocks,
        f"ceil({lengths.computed_tokens} / {block}), in each attention group",
    )
    answer.add(
        "snapshots_dense",
        dense,
        "states written, in each recurrent group: chunk ends, then every boundary",
    )
    answer.add("snapshots_kept", kept, _kept_how(interval))
    for name, count in (("dense", dense), ("kept", kept)):
        state = count * pages
        how = (
            f"{count} x {pages} of {count} x {pages} + {blocks} pages: a recurrent layer beside an"
            " attention layer"
        )
        answer.add(f"layer_{name}_share", float(pool_share(count, pages, 1, blocks, 1)), how)
        how = (
            f"{groups[0]} x {state} of {groups[0]} x {state} + {groups[1]} x {blocks} pages: all"
            " groups"
        )
        answer.add(
            f"pool_{name}_share", float(pool_share(count, pages, groups[0], blocks, groups[1])), how
        )


def _plan_windows(answer: Plan, request: Request, model: Model) -> Callable[[], Pool]:
    if request.block_size is not None:
        raise UsageError(
            "--block-size: without recurrent layers the blocks are the layout's; leave it out"
        )
    groups = sources.layout(request.layout).groups
    alignment = math.lcm(*(group.block_size for group in groups))
    interval = (
        _interval(request, "sliding") if any(group.kind == "sliding" for group in groups) else None
    )
    lengths = _lengths(request, model, min(group.block_size for group in groups))
    _tell_sequence(answer, request, lengths, interval)
    answer.add("alignment_tokens", alignment, "hits end on multiples of every group's block")
    counted: dict[tuple[str, int, int], int] = {}
    for group in groups:
        key = (group.kind, group.block_size, group.window)
        counted[key] = counted.get(key, 0) + 1
    for (kind, block, window), number in counted.items():
        name = f"full_{block}" if kind == "full" else f"window_{window}_{block}"
        blocks = lengths.full_blocks(block)
        answer.add(f"{name}_groups", number, f"blocks of {block} tokens")
        answer.add(f"{name}_blocks", blocks, "full blocks of one sequence, in each such group")
        if kind == "sliding":
            kept = sizing.kept_window_blocks(lengths, block, window, alignment, interval)
            answer.add(f"{name}_blocks_kept", kept, _kept_how(interval))
            answer.add(
                f"{name}_kept_share",
                kept / blocks if blocks else 0.0,
                "of the blocks that dense retention keeps",
            )
    where = sources.option(request.layout)
    own = [memory.group_of(group, where) for group in groups]
    return lambda: _pool(
        request, model, own, memory.page_bytes(model, own, request.tensor_parallel_size, where), 1
    )


def _pool(request: Request, model: Model, groups: list[Group], page_bytes: int, pages: int) -> Pool:
    """Return the pool that memory and intervals are worked out for."""
    if pages > 1:
        raise UsageError(
            "--block-size: a snapshot takes several blocks of this size, which no release does;"
            " leave it out"
        )
    hybrid = is_hybrid(model)
    return Pool(
        groups,
        page_bytes,
        _lengths(request, model, min(group.block_size for group in groups)),
        _interval(request, "sliding+mamba" if hybrid else "sliding"),
        RELEASES[request.release].pin_shared_prefix_boundary,
    )


def _plan_pool(answer: Plan, request: Request, of: Pool) -> None:
    blocks = None
    if request.memory is not None:
        blocks = memory.tell_memory(
            answer, of, request.memory, request.shared_prefix or 0, request.in_flight_tokens
        )
    rows = memory.intervals(of) if request.intervals or request.chart else []
    if request.intervals:
        answer.tables.append(memory.table(rows, blocks))
    if request.chart:
        memory.draw(
            rows,
            of.lengths.computed_tokens,
            request.chart,
            f"{request.layout}: {of.tokens:,} tokens, by interval",
        )
        answer.notes.append(f"the chart is in {request.chart}")


def _interval(request: Request, governs: str) -> int | None:
    release = RELEASES[request.release]
    governed = release.retention == "sliding+mamba" or release.retention == governs
    text = request.retention_interval
    if text is None:
        exported = RETENTION_INTERVAL.value() if governed else None
        return exported if exported is not None else release.retention_default if governed else None
    if text.lower() == "none":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise UsageError(
            f"--retention-interval: {text!r} is no number of tokens; 0, a multiple of the block"
            " size, or none"
        )
    if not governed:
        raise UsageError(
            f"--retention-interval: release {request.release} has none for this model; it keeps"
            " every boundary"
        )
    return int(text)


def _lengths(request: Request, model: Model, block: int) -> SequenceLengths:
    prompt = (
        min(PROMPT_TOKENS, model.max_length)
        if request.prompt_tokens is None
        else request.prompt_tokens
    )
    lengths = SequenceLengths(
        prompt,
        request.output_tokens,
        block if request.chunk_tokens is None else request.chunk_tokens,
    )
    if lengths.computed_tokens > model.max_length:
        raise UsageError(
            f"--prompt-tokens: {lengths.computed_tokens} tokens are computed, and"
            f" {model.checkpoint} takes {model.max_length}"
        )
    return lengths


def _tell_sequence(
    answer: Plan, request: Request, lengths: SequenceLengths, interval: int | None
) -> None:
    answer.add(
        "retention_interval_tokens", "dense" if interval is None else interval, _origin(request)
    )
    answer.add(
        "prompt_tokens", lengths.prompt_tokens, f"in steps of at most {lengths.chunk_tokens}"
    )
    answer.add("output_tokens", lengths.output_tokens)


def _origin(request: Request) -> str:
    if request.retention_interval is not None:
        return "as given"
    if RETENTION_INTERVAL.value() is not None:
        return f"from the environment, {RETENTION_VARIABLE}"
    return f"what {request.release} does by itself"


def _kept_how(interval: int | None) -> str:
    if interval is None:
        return "dense: all that are written"
    replay = "the one at which the same prompt resumes"
    return replay if interval == 0 else f"one in {interval} tokens, and {replay}"


def _alignment_how(request: Request, hybrid: Hybrid, exports: int) -> str:
    kernel = f"kernel block {request.kernel_block}"
    if hybrid.latent:
        kernel += f", at least {sizing.MLA_ALIGNMENT} with latent attention"
    return kernel + (f"; checkpoints at {exports}" if exports > 1 else "")


def _sum(sizes: list[int]) -> str:
    return " + ".join(map(str, sizes))
