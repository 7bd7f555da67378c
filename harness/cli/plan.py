"""`cachewitness plan SYSTEM`: what a system's sizing rules make of a model and an amount of memory.

Only the module of the system that is asked for is imported, so that an answer takes no longer than it must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.plan.systems import SYSTEMS, system_of

if TYPE_CHECKING:
    from harness.plan.result import Plan


class _Whole(click.IntRange):
    name = "whole number"


COUNT = _Whole(0, 2**64 - 1)
SIZE = _Whole(1, 2**63 - 1)
GIB = _Whole(1, 2**33 - 1)


class _Systems(click.Group):
    """Subcommands by the name of a system, in any spelling."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a system. Raises UsageError with the nearest one if there is none."""
        return super().get_command(ctx, system_of(cmd_name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the systems in the order of the documents."""
        return list(SYSTEMS)


@click.group(cls=_Systems, subcommand_metavar="SYSTEM [OPTIONS]")
def plan() -> None:
    """Work out block sizes, pools and flags for a model.

    SYSTEM is one of vllm, openvino_genai (or openvino), lmcache, furiosa, tensorrt_edge; hyphens do as well. Layouts of real
    models: `ls layouts`.
    """


_layout = click.option("--layout", metavar="NAME|PATH", required=True, help="A layout with a model (`ls layouts`).")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


class _Tokens(click.ParamType[int]):
    """A number of tokens, or `unlimited`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; unlimited is the largest 64-bit one."""
        if isinstance(value, str) and value.lower() == "unlimited":
            return 2**64 - 1
        return int(COUNT.convert(value, param, ctx))


@plan.command("openvino_genai")
@click.option("--layout", metavar="NAME|PATH", help="A layout with a model; gives the bytes of blocks.")
@click.option("--kv-blocks", "num_kv_blocks", type=COUNT, help="num_kv_blocks; 0 derives it.")
@click.option("--cache-size-gib", "cache_size", type=COUNT, help="cache_size: whole GiB for both pools.")
@click.option("--linear-attention-blocks", "num_linear_attention_blocks", type=COUNT, help="0 derives it.")
@click.option("--multiplier", "cache_interval_multiplier", type=COUNT, help="KV blocks between two checkpoints.")
@click.option("--max-num-batched-tokens", type=_Tokens(), metavar="N|unlimited", help="Tokens in a step.")
@click.option("--max-num-seqs", type=COUNT, help="Sequences in a batch; sizes the pool of states.")
@click.option("--prefix-caching/--no-prefix-caching", "enable_prefix_caching", default=None, help="enable_prefix_caching.")
@click.option("--dynamic-split-fuse/--no-dynamic-split-fuse", default=None, help="Off: prompts whole, as in vLLM.")
@click.option("--cache-eviction/--no-cache-eviction", "use_cache_eviction", default=None, help="use_cache_eviction.")
@click.option("--sparse-attention/--no-sparse-attention", "use_sparse_attention", default=None, help="use_sparse_attention.")
@click.option(
    "--pipeline",
    type=click.Choice(["ContinuousBatchingPipeline", "LLMPipeline", "VLMPipeline"]),
    default="ContinuousBatchingPipeline",
    show_default=True,
    help="Whose defaults the options start from.",
)
@click.option("--kv-block-bytes", type=SIZE, help="Without a layout: bytes of a KV block.")
@click.option("--la-block-bytes", type=_Whole(0, 2**63 - 1), help="Without a layout: bytes of a state.")
@click.option("--kv-precision", type=click.Choice(["f32", "f16", "bf16"]), help="Instead of the layout's type.")
@click.option("--state-precision", type=click.Choice(["f32", "f16", "bf16"]), help="Instead of the layout's types.")
@click.option("--device", type=click.Choice(["cpu", "gpu", "gpu+xattention"]), default="cpu", show_default=True)
@click.option("--memory-gib", type=GIB, help="All memory of the machine; without, it is not compared.")
@click.option("--version", help="2026.2, 2026.3 or 2026.4 (the default).")
@_as_json
def openvino_genai(as_json: bool, **given: Any) -> None:
    """Derive the capacity of both pools from a SchedulerConfig."""
    from dataclasses import fields

    from harness.policies.openvino_genai.plan import Request, plan
    from reference_impl.openvino_genai.config import SchedulerConfig

    said = {name: value for name, value in given.items() if value is not None}
    names = {field.name for field in fields(SchedulerConfig)}
    config = {name: value for name, value in said.items() if name in names}
    _show(plan(Request(config, **{name: value for name, value in said.items() if name not in names})), as_json)


@plan.command("furiosa")
@_layout
@click.option("--expected-average-seq-length", "expected", metavar="N", help="EXPECTED_AVERAGE_SEQ_LENGTH.")
@click.option("--kv-bytes", type=SIZE, help="Memory of both pools.")
@click.option("--kv-gib", type=GIB, help="The same in GiB.")
@click.option("--block-size", type=SIZE, default=16, show_default=True, help="Tokens in a block.")
@click.option("--max-model-len", type=SIZE, help="The longest sequence; the model's own by default.")
@click.option("--default-ratio", type=click.Choice(["max_model_len", "per_token"]), default="max_model_len", show_default=True)
@_as_json
def furiosa(as_json: bool, **given: Any) -> None:
    """Split KV memory between the global and the sliding-window pool."""
    from harness.policies.furiosa.plan import Request, plan

    _show(plan(Request(**given)), as_json)


@plan.command("tensorrt_edge")
@_layout
@click.option("--max-batch-size", type=SIZE, required=True, help="Rows: sequences at once.")
@click.option("--max-sequence-length", type=SIZE, required=True, help="Tokens that a row holds.")
@click.option("--kv-cache-type", type=click.Choice(["half", "fp8"]), default="half", show_default=True)
@click.option("--recurrent-state-type", type=click.Choice(["half", "float", "bf16"]), default="half", show_default=True)
@click.option("--conv-state-type", type=click.Choice(["half", "float", "bf16"]), default="half", show_default=True)
@click.option("--version", default="0.7", show_default=True, help="0.7, 0.8, 0.9 or 0.10.")
@_as_json
def tensorrt_edge(as_json: bool, **given: Any) -> None:
    """Work out the tensors of a HybridCacheManager and their bytes."""
    from harness.policies.tensorrt_edge.plan import Request, plan

    _show(plan(Request(**given)), as_json)


@plan.command("lmcache")
@_layout
@click.option("--chunk-size", type=SIZE, help="The server's; N or the least multiple of all blocks from 256 by default.")
@click.option("--max-num-batched-tokens", type=SIZE, help="The engine's; what the release recommends by default.")
@click.option("--kernel-block", type=SIZE, default=16, show_default=True, help="The attention kernel's own block.")
@click.option("--checkpoint-alignment", type=SIZE, default=1, show_default=True, help="Where the kernel exports states.")
@click.option("--tensor-parallel-size", type=SIZE, default=1, show_default=True, help="Ranks that share the heads.")
@click.option("--release", default="0.5.6", show_default=True, help="From 0.4.7 on; up to 0.5.3 the budget is below 2N.")
@_as_json
def lmcache(as_json: bool, **given: Any) -> None:
    """Derive N, the server's chunk and the engine's budget, and the two command lines."""
    from harness.policies.lmcache.plan import Request, plan

    _show(plan(Request(**given)), as_json)


@plan.command("vllm")
@_layout
@click.option("--retention-interval", metavar="N|none", help="Tokens; none keeps every boundary.")
@click.option("--block-size", type=SIZE, help="Tokens in a block; N by default.")
@click.option("--kernel-block", type=SIZE, default=16, show_default=True, help="The attention kernel's own block.")
@click.option("--checkpoint-alignment", type=SIZE, default=1, show_default=True, help="Where the kernel exports states.")
@click.option("--tensor-parallel-size", type=SIZE, default=1, show_default=True, help="Ranks that share the heads.")
@click.option("--prompt-tokens", "--context", "prompt_tokens", type=SIZE, help="65536, or all that the model takes.")
@click.option("--output-tokens", type=COUNT, default=0, show_default=True, help="Tokens generated after it.")
@click.option("--chunk-tokens", type=SIZE, help="Tokens of the prompt in a step; a block by default.")
@click.option("--release", default="0.33", show_default=True, help="Whose defaults and rules.")
@_as_json
def vllm(as_json: bool, **given: Any) -> None:
    """Work out the unified block size, the snapshots kept, and their share of the pool."""
    from harness.policies.vllm.plan import Request, plan

    _show(plan(Request(**given)), as_json)


def _show(answer: Plan, as_json: bool) -> None:
    from harness.plan.show import show

    show(answer, as_json=as_json)
