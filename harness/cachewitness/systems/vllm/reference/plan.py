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
from dataclasses import dataclass, replace
from pathlib import Path

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec
from cachewitness.plan import sources
from cachewitness.plan.grouping import spec_of
from cachewitness.plan.hybrid import Hybrid, is_gated_delta, is_hybrid
from cachewitness.plan.rank import AUTO, Types
from cachewitness.plan.result import Plan
from cachewitness.plan.serving import Serving, rank_of
from cachewitness.systems.vllm.reference import RETENTION_INTERVAL, memory
from cachewitness.systems.vllm.reference.memory import Pool
from cachewitness.systems.vllm.reference.serve_command import FIT
from cachewitness.systems.vllm.reference.server import Limits, started_of, tell_started
from cachewitness.workloads.model import Model
from cachewitness_reference.vllm import sizing
from cachewitness_reference.vllm.options import RETENTION_VARIABLE, ConfigError
from cachewitness_reference.vllm.planning import groups_of
from cachewitness_reference.vllm.sizing import SequenceLengths
from cachewitness_reference.vllm.spec import NEWEST, RELEASES
from cachewitness_reference.vllm_extended.sizing import pages_per_snapshot, pool_share

KERNEL_BLOCK = 16
HOPPER_CHECKPOINTS = 64
PROMPT_TOKENS = 65536
SHOWN = (
    "unified_block_tokens",
    "memory_bytes",
    "pool_blocks",
    "padding_layers",
    "request_blocks",
    "concurrency",
    "cache_size_tokens",
    "starts",
    "longest_prompt_tokens",
    "max_num_seqs_most",
    "requests_running",
    "requests_cached",
    "requests_dense_cached",
    "shared_hit_tokens",
    "requests_running_shared",
)
"""The lines below an answer: those of the log, and what the answer is made of."""


@dataclass(frozen=True)
class Request:
    """What the user asked; None is not said. `retention_interval` is text: a number of tokens,
    or `none` for dense. Fields with the name of a flag of `vllm serve` mean what it means.
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
    in_flight_tokens: int | None = None
    intervals: bool = False
    chart: Path | None = None
    kv_cache_dtype: str = AUTO
    mamba_cache_dtype: str = AUTO
    mamba_ssm_cache_dtype: str = AUTO
    dtype: str = AUTO
    enable_prefix_caching: bool | None = None
    speculative_method: str = ""
    num_speculative_tokens: int = 0
    decode_context_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    draft_config: str = ""
    draft_kv_cache_dtype: str = ""
    draft_tensor_parallel_size: int | None = None
    hybrid_kv_cache_manager: bool = True
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    async_scheduling: bool = True
    num_gpu_blocks_override: int | None = None
    device_memory: int | None = None
    enforce_eager: bool = False

    def serving(self, model: Model) -> Serving:
        """Return what the flags make of a model's layers."""
        exports = self.checkpoint_alignment
        if self.draft_tensor_parallel_size not in (None, self.tensor_parallel_size):
            raise UsageError(
                "--speculative-config: draft_tensor_parallel_size: a drafter on other ranks than"
                f" the model's {self.tensor_parallel_size} is not worked out here"
            )
        return Serving(
            Types(
                self.kv_cache_dtype,
                self.mamba_cache_dtype,
                self.mamba_ssm_cache_dtype,
                self.dtype,
                self.num_speculative_tokens,
            ),
            self.tensor_parallel_size,
            self.decode_context_parallel_size,
            self.block_size,
            self.kernel_block,
            model.checkpoint_alignment if exports is None else exports,
            self.enable_prefix_caching,
            self.speculative_method,
            self.hybrid_kv_cache_manager,
            self.release,
            self.pipeline_parallel_size,
            self.prefill_context_parallel_size,
            sources.model(self.draft_config) if self.draft_config else None,
            self.draft_kv_cache_dtype,
        )


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
    serving = request.serving(model)
    try:
        if is_hybrid(model):
            _plan_hybrid(answer, request, model, serving)
        else:
            _plan_windows(answer, request, model)
        if request.memory is not None or request.intervals or request.chart:
            _plan_pool(answer, request, model, serving)
    except ConfigError as error:
        raise UsageError(f"vllm: {error}") from None
    return answer


def _plan_hybrid(answer: Plan, request: Request, model: Model, serving: Serving) -> None:
    named = sources.option(request.layout)
    asked = replace(serving, block_size=None) if request.block_size is not None else serving
    rank = rank_of(model, asked, named)
    hybrid = rank.hybrid
    assert hybrid is not None
    exports = asked.checkpoint_alignment
    alignment = rank.alignment
    unified = rank.block
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
    groups = groups_of(rank.layers)
    sizes = [
        [len(group.layers) for group in groups if (group.first.kind == "recurrent") is recurrent]
        for recurrent in (True, False)
    ]
    answer.add("recurrent_groups", len(sizes[0]), f"{_sum(sizes[0])} layers")
    answer.add("attention_groups", len(sizes[1]), f"{_sum(sizes[1])} layers")
    if serving.caches(model):
        counts = (len(sizes[0]), len(sizes[1]))
        _tell_snapshots(answer, request, model, block, pages, counts)
    _tell_other_blocks(answer, request, model, hybrid, alignment, unified)


def _tell_other_blocks(
    answer: Plan, request: Request, model: Model, hybrid: Hybrid, alignment: int, unified: int
) -> None:
    """Note which other block vLLM takes, in other circumstances or instead of the one given."""
    if request.block_size is not None and request.block_size < unified:
        raised = sizing.unified_block_size(
            hybrid.token_bytes, hybrid.state_bytes, math.lcm(alignment, request.block_size)
        )
        answer.notes.append(
            f"no release of vLLM keeps a block of {request.block_size} tokens here: it raises it to"
            f" {raised}, where a snapshot is one page; smaller blocks are the test set-up of PR"
            " 45845"
        )
    elif alignment % HOPPER_CHECKPOINTS and is_gated_delta(model):
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


def _plan_windows(answer: Plan, request: Request, model: Model) -> None:
    groups = _layout_groups(request, model)
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


def _layout_groups(request: Request, model: Model) -> list[GroupSpec]:
    """Return the groups of a model without recurrent layers: a layout's own, unless a flag makes
    others of it.
    """
    if request.block_size is None and not sources.is_config(request.layout):
        return list(sources.layout(request.layout).groups)
    rank = rank_of(model, request.serving(model), sources.option(request.layout))
    return [spec_of(group) for group in groups_of(rank.layers)]


def _plan_pool(answer: Plan, request: Request, model: Model, serving: Serving) -> None:
    rank = rank_of(model, serving, sources.option(request.layout))
    longest = request.max_model_len or request.prompt_tokens or model.max_length
    if longest == FIT:
        longest = model.max_length
    limits = Limits(
        request.memory or 1,
        longest,
        request.device_memory,
        request.max_num_batched_tokens,
        request.in_flight_tokens,
        request.async_scheduling,
        request.max_num_seqs,
        request.num_gpu_blocks_override,
        request.enforce_eager,
    )
    started = started_of(rank, serving, limits)
    if request.max_model_len == FIT:
        started = replace(started, longest=started.longest_that_fits or 1)
    hybrid = is_hybrid(model)
    of = Pool(
        started,
        _lengths(request, model, min(group.first.block_size for group in started.groups)),
        _interval(request, "sliding+mamba" if hybrid else "sliding"),
        RELEASES[request.release].pin_shared_prefix_boundary,
        serving.caches(model),
    )
    blocks = None
    if request.memory is not None:
        blocks = started.blocks
        reach = started if request.max_model_len else replace(started, longest=model.max_length)
        tell_started(answer, started, serving, limits, reach.longest_that_fits)
        memory.tell_memory(answer, of, request.shared_prefix or 0)
        answer.answer = memory.sentence(answer, of)
        answer.shown = SHOWN
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
    most = request.max_model_len or model.max_length
    if most == FIT:
        most = model.max_length
    usual = min(PROMPT_TOKENS, most) if request.max_model_len in (None, FIT) else most
    prompt = usual if request.prompt_tokens is None else request.prompt_tokens
    lengths = SequenceLengths(
        prompt,
        request.output_tokens,
        block if request.chunk_tokens is None else request.chunk_tokens,
    )
    if lengths.computed_tokens > most:
        taker = model.checkpoint if request.max_model_len is None else "--max-model-len"
        raise UsageError(
            f"--prompt-tokens: {lengths.computed_tokens} tokens are computed, and {taker} takes"
            f" {most}"
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
