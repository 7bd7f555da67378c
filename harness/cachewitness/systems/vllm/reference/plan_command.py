"""`cachewitness plan vllm`: flags by vLLM's names, a whole command line of `vllm serve`, or a
server's log.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.plan import options, sources
from cachewitness.plan.rank import AUTO, STATE_DTYPES
from cachewitness.systems.vllm.reference.plan import Request, plan
from cachewitness.systems.vllm.reference.serve_command import (
    CONFIG_FILE,
    WEIGHTS,
    Served,
    drafts,
    read,
    table_of,
)
from cachewitness.workloads import layouts
from cachewitness_reference.vllm.options import RETENTION_VARIABLE
from cachewitness_reference.vllm.spec import NEWEST

DEFAULT_UTILIZATION = 0.92
"""Of `--gpu-memory-utilization`."""
AMOUNT = options.Amount()
STATES = click.Choice([AUTO, *STATE_DTYPES])


@click.command("vllm")
@options.model_options(required=False)
@click.option(
    "--serve",
    metavar='"vllm serve …"',
    help="A whole command line; a flag given beside it outranks its own.",
)
@click.option(
    "--from-log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A server's log: explain its numbers, and say which flag would explain a difference.",
)
@click.option("--kv-cache-dtype", metavar="NAME", help="Of keys and values, by vLLM's name.")
@click.option("--mamba-cache-dtype", type=STATES, help="Of states and convolutions.")
@click.option("--mamba-ssm-cache-dtype", type=STATES, help="Of states alone.")
@click.option("--dtype", type=click.Choice([*WEIGHTS]), help="Of the weights.")
@click.option("--block-size", type=options.SIZE, help="Tokens in a block; N by default.")
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=None,
    help="Whether prefixes are cached; yes for models with attention.",
)
@click.option(
    "--speculative-config",
    metavar="JSON",
    help='Drafts: \'{"method": "mtp", "num_speculative_tokens": 2}\'; mtp, eagle3, ngram, ….',
)
@click.option(
    "--draft-config",
    metavar="FILE",
    help="The configuration of a drafter with a checkpoint of its own (eagle, draft_model, …).",
)
@click.option("--max-model-len", type=AMOUNT, help="Tokens; the model's own by default.")
@click.option("--max-num-seqs", type=AMOUNT, help="Requests that may run at once.")
@click.option(
    "--max-num-batched-tokens",
    type=AMOUNT,
    help="Tokens in a step; windows hold their blocks for two of them. 2048 by default, 8192 and"
    " 16384 on devices of 70 and 160 GiB (--device-memory).",
)
@click.option(
    "--tensor-parallel-size", "-tp", type=options.SIZE, help="Ranks that share the heads."
)
@click.option(
    "--pipeline-parallel-size",
    "-pp",
    type=options.SIZE,
    help="Stages that share the layers; each has --memory.",
)
@click.option(
    "--decode-context-parallel-size", "-dcp", type=options.SIZE, help="Ranks that share tokens."
)
@click.option(
    "--prefill-context-parallel-size", "-pcp", type=options.SIZE, help="Ranks that share prefills."
)
@click.option(
    "--memory",
    "--kv-cache-memory-bytes",
    "memory",
    type=options.Memory(),
    metavar="40GiB",
    help="Memory for the cache, on one rank: the log's Available KV cache memory.",
)
@click.option("--device-memory", type=options.Memory(), help="All that the device has.")
@click.option("--gpu-memory-utilization", type=click.FloatRange(0, 1, min_open=True))
@click.option(
    "--used-memory",
    type=options.Memory(),
    help="What weights, activations and graphs take of the device.",
)
@click.option("--num-gpu-blocks-override", type=AMOUNT, help="Blocks of the pool.")
@click.option(
    "--disable-hybrid-kv-cache-manager", is_flag=True, default=None, help="Keep windows whole."
)
@click.option(
    "--retention-interval",
    "--prefix-cache-retention-interval",
    "retention_interval",
    metavar="N|none",
    help=f"Tokens; none keeps every boundary; default: {RETENTION_VARIABLE}.",
)
@options.kernel_block
@options.checkpoint_alignment
@click.option(
    "--prompt-tokens",
    "--context",
    "--request-tokens",
    "prompt_tokens",
    type=AMOUNT,
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
@click.option(
    "--shared-prefix",
    type=options.SIZE,
    metavar="N",
    help="With --memory: tokens with which all requests begin.",
)
@click.option(
    "--in-flight-tokens",
    type=options.SIZE,
    help="Tokens scheduled and not settled; outranks --max-num-batched-tokens.",
)
@click.option(
    "--intervals",
    is_flag=True,
    help="Add a table: what each retention interval keeps, and what it costs.",
)
@click.option(
    "--chart", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw that table."
)
@click.option("--release", help=f"Whose defaults and rules; {NEWEST}, or the log's.")
@options.explain
@options.as_json
def command(as_json: bool, explain: bool, from_log: Path | None, **given: Any) -> None:
    """Work out what vLLM's log says when it starts, and how many requests fit."""
    if from_log is not None:
        from cachewitness.systems.vllm.reference.log_plan import explained

        options.show(explained(from_log, fields_of(given, named=False)), as_json=as_json)
        return
    options.show(plan(Request(**fields_of(given))), as_json=as_json, explain=explain)


def fields_of(given: dict[str, Any], *, named: bool = True) -> dict[str, Any]:
    """Return the fields of a request that the options say, those of `--serve` among them; `named`:
    a model must be one of them.

    Raises UsageError for a command line that does not fit, a model that is named nowhere, and
    amounts of memory that say nothing together.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    text = asked.pop("serve", None)
    line = Served("", {}) if text is None else read(text)
    table = asked.pop("speculative_config", None)
    if table is not None:
        asked |= drafts(table_of(table))
    if "draft_config" in asked:
        asked["draft_config"] = str(sources.config_path(asked["draft_config"]))
    if asked.pop("disable_hybrid_kv_cache_manager", False):
        asked["hybrid_kv_cache_manager"] = False
    if "dtype" in asked:
        asked["dtype"] = WEIGHTS[asked["dtype"]]
    utilization = asked.pop("gpu_memory_utilization", line.utilization)
    used = asked.pop("used_memory", None)
    fields = line.fields | asked
    if "memory" not in fields:
        fields |= _left(fields.get("device_memory"), utilization, used)
    elif used is not None:
        raise UsageError("--used-memory: says nothing beside --memory; leave it out")
    if "layout" not in fields and (named or line.model):
        fields["layout"] = _named(line.model)
    return fields


def _left(device: int | None, utilization: float | None, used: int | None) -> dict[str, int]:
    """Return the memory for the cache that a device's leaves, if it can be told."""
    if used is None:
        if utilization is not None and device is not None:
            raise UsageError(
                "--gpu-memory-utilization: the weights, activations and graphs come off first: give"
                " --used-memory, or --memory as the log has it (Available KV cache memory)"
            )
        return {}
    if device is None:
        raise UsageError("--used-memory: of how much? give --device-memory")
    left = math.ceil(device * (DEFAULT_UTILIZATION if utilization is None else utilization)) - used
    if left < 1:
        raise UsageError("--used-memory: nothing is left for the cache")
    return {"memory": left}


def _named(model: str) -> str:
    """Return the file or the layout of the model that a command line names."""
    if not model:
        raise UsageError(
            "name a model: '--layout' NAME|PATH (`ls layouts`), '--config' FILE, or '--serve'"
        )
    path = Path(model)
    if (path / CONFIG_FILE).is_file():
        return str(path / CONFIG_FILE)
    if sources.is_config(model):
        return model
    for name in layouts.models():
        if layouts.model(name).checkpoint.lower() == model.lower():
            return name
    raise UsageError(
        f"--serve: {model}: its configuration is not here; give the {CONFIG_FILE} beside the"
        " weights as --config FILE"
    )
