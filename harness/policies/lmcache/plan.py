"""LMCache behind vLLM: the unified block size N, the chunk and the budget that follow from it, and what to type.

The steps are the document's, the arithmetic and the checks `reference_impl.lmcache`'s. A model without recurrent layers has no
N: its chunk is a multiple of the blocks that its layout has, and its budget is free. What LMCache says of a model in a release
is read from the layout (`[[model.statements]]`) and told as it stands, contradictions included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from harness._util.errors import UsageError
from harness.plan import options
from harness.plan.hybrid import hybrid_of, is_gated_delta, is_hybrid
from harness.plan.result import Plan
from harness.trace import layouts
from harness.trace.model import Model
from reference_impl.lmcache import sizing
from reference_impl.lmcache.checks import StartupError, validate_chunk_size, validate_mamba_step_alignment
from reference_impl.lmcache.spec import DEFAULT_CHUNK_SIZE, NEWEST, RELEASES
from reference_impl.vllm.sizing import block_alignment

HOPPER_CHECKPOINTS = 64
_TRANSFER = '--kv-transfer-config \'{"kv_connector":"LMCacheMPConnector", "kv_role":"kv_both"}\''


@dataclass(frozen=True)
class Request:
    """What the user asked; None is not said. Sizes in tokens."""

    layout: str
    chunk_size: int | None = None
    max_num_batched_tokens: int | None = None
    kernel_block: int = 16
    checkpoint_alignment: int = 1
    tensor_parallel_size: int = 1
    release: str = NEWEST


@click.command("lmcache")
@options.layout
@click.option(
    "--chunk-size", type=options.SIZE, help="The server's; N or the least multiple of all blocks from 256 by default."
)
@click.option("--max-num-batched-tokens", type=options.SIZE, help="The engine's; what the release recommends by default.")
@options.kernel_block
@options.checkpoint_alignment
@options.tensor_parallel_size
@click.option("--release", default="0.5.6", show_default=True, help="From 0.4.7 on; up to 0.5.3 the budget is below 2N.")
@options.as_json
def command(as_json: bool, **given: Any) -> None:
    """Derive N, the server's chunk and the engine's budget, and the two command lines."""
    options.show(plan(Request(**given)), as_json=as_json)


def plan(request: Request) -> Plan:
    """Derive the settings. Raises UsageError naming the option or the field, or with LMCache's own refusal."""
    if request.release not in RELEASES:
        raise UsageError(f"--release: {request.release!r} is unknown; known: {', '.join(RELEASES)}")
    model = layouts.model(request.layout)
    answer = Plan("lmcache", request.release, request.layout)
    try:
        if is_hybrid(model):
            _plan_hybrid(answer, request, model)
        else:
            _plan_blocks(answer, request, model)
    except (sizing.SizingError, StartupError) as error:
        raise UsageError(f"lmcache: {error}") from None
    _tell_statements(answer, model)
    return answer


def _plan_hybrid(answer: Plan, request: Request, model: Model) -> None:
    hybrid = hybrid_of(model, request.tensor_parallel_size, request.layout)
    align = block_alignment(request.kernel_block, latent=hybrid.latent, checkpoint_alignment=request.checkpoint_alignment)
    block = sizing.unified_block_size(hybrid.token_bytes, hybrid.state_bytes, align)
    padding = sizing.state_padding(hybrid.token_bytes, hybrid.state_bytes, block)
    least, most, budget = sizing.batched_tokens(block, request.release)
    chunk = block if request.chunk_size is None else request.chunk_size
    validate_chunk_size(chunk, [block])
    given = request.max_num_batched_tokens
    validate_mamba_step_alignment(budget if given is None else given, [block], release=request.release)
    answer.add("attention_token_bytes", hybrid.token_bytes, "of one attention layer, on one rank")
    answer.add("state_bytes", hybrid.state_bytes, "of one recurrent layer, on one rank: convolution and state")
    exact = hybrid.state_bytes / hybrid.token_bytes
    answer.add("unified_block_tokens", block, f"N: {exact:.1f} tokens weigh a state; up to a multiple of {align}")
    answer.add("padding_share", padding, "of a state, to fill its page")
    answer.add("chunk_tokens", chunk, "--chunk-size: N" if chunk == block else f"--chunk-size: {chunk // block} x N")
    bounds = f"[{least}, {most}]" if most is not None else f"{least} or more"
    how = f"--max-num-batched-tokens: {bounds}" + ("" if given is not None else f"; {_budget_how(most)}")
    answer.add("max_num_batched_tokens", budget if given is None else given, how)
    answer.add("max_num_batched_tokens_least", least, "N")
    answer.add("max_num_batched_tokens_most", most, "2N - 1" if most is not None else "no bound since 0.5.4")
    answer.commands.append(sizing.server_command(chunk, request.release))
    answer.commands.append(sizing.engine_command(model.checkpoint, budget if given is None else given) + _parallel(request))
    if is_gated_delta(model) and request.checkpoint_alignment == 1:
        answer.notes.append(
            "N is what vLLM's log says (Setting attention block size to N tokens); FlashInfer's DeltaNet prefill on Hopper "
            f"makes it a multiple of {HOPPER_CHECKPOINTS} from vLLM 0.33 on: --checkpoint-alignment {HOPPER_CHECKPOINTS}"
        )


def _budget_how(most: int | None) -> str:
    return "N is always valid" if most is not None else "2N - 1 leaves room for decoding beside a block of prefill"


def _plan_blocks(answer: Plan, request: Request, model: Model) -> None:
    if request.max_num_batched_tokens is not None:
        raise UsageError(f"--max-num-batched-tokens: {model.checkpoint} has no recurrent layers, so LMCache bounds no budget")
    blocks = [group.block_size for group in layouts.load(request.layout).groups]
    chunk = sizing.chunk_size(blocks) if request.chunk_size is None else request.chunk_size
    validate_chunk_size(chunk, blocks)
    answer.add("groups", len(blocks), f"of the layout, blocks of {', '.join(map(str, sorted(set(blocks))))} tokens")
    answer.add(
        "chunk_span_tokens", sizing.chunk_size(blocks, 1), "chunks are multiples of it: every group has a block end there"
    )
    answer.add("chunk_tokens", chunk, f"--chunk-size; {DEFAULT_CHUNK_SIZE} by default")
    answer.commands.append(f"lmcache server --chunk-size {chunk} --l1-size-gb 100 --eviction-policy LRU")
    answer.commands.append(f"vllm serve {model.checkpoint} {_TRANSFER}" + _parallel(request))
    answer.notes.append("no recurrent layers: no unified block size, and no bound on --max-num-batched-tokens")


def _parallel(request: Request) -> str:
    return f" --tensor-parallel-size {request.tensor_parallel_size}" if request.tensor_parallel_size > 1 else ""


def _tell_statements(answer: Plan, model: Model) -> None:
    said = [each for each in model.statements if each.system == "lmcache" and each.holds_in(answer.release)]
    if not said:
        return
    verdicts = list(dict.fromkeys(each.verdict for each in said))
    contradict = "unsupported" in verdicts and len(verdicts) > 1
    answer.add("lmcache_says", ", ".join(verdicts), "the statements contradict each other; see the notes" if contradict else "")
    for each in said:
        answer.notes.append(f"{each.verdict}: {each.says} ({each.source})")
