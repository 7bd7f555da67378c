"""`cachewitness plan llama-cpp`: the lines that llama.cpp's server logs of its caches, what its
context checkpoints and the prompts on the host take, and how long a context fits.

The arithmetic is in `sizes`. Which layers of a configuration have windows, and whether values are
kept beside latent vectors, is what llama.cpp's own model of that type does: for some it is not what
vLLM makes of the same file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.engines.sizing import Sizing
from cachewitness.plan import options, sources
from cachewitness.plan.config import read
from cachewitness.plan.result import Plan
from cachewitness.systems.llama_cpp.sizes import STATE_BYTES, TYPES, Context, Kept, Rows
from cachewitness.workloads.model import Full, Latent, Model, Recurrent, Sliding

RELEASE = "2026.10"
MIB = 1 << 20
AUTO_SLOTS = 4
"""Slots of a server that is told no number; they share their cells."""
BATCH, UBATCH, CHECKPOINTS, HOST_MIB = 2048, 512, 32, 8192
PROMPT_CHECKPOINTS = 2
"""What a prompt leaves: one 4 tokens in front of its end, one a step before that."""
LAST_TOKENS = 4
SHOWN = (
    "slots",
    "slot_tokens",
    "full_bytes",
    "window_bytes",
    "state_bytes",
    "cache_bytes",
    "checkpoint_bytes",
    "prompts_cached",
    "ctx_most_tokens",
)
WHOLE = frozenset({"ministral", "mistral", "mixtral"})
"""Types whose windows llama.cpp does not follow: every layer keeps all tokens."""
ONE_MORE = frozenset({"cohere2"})
"""Types of whose windows vLLM keeps one token more than the file says."""
AS_READ = frozenset(
    {
        "arcee",
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "falcon_h1",
        "falcon_mamba",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n_text",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "granitemoe",
        "granitemoehybrid",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "jamba",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "llama",
        "mamba",
        "mamba2",
        "minimax_m2",
        "nemotron_h",
        "olmo2",
        "olmo3",
        "olmoe",
        "plamo2",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "seed_oss",
        "smollm3",
    }
)
"""Types of which llama.cpp keeps what is read from the file."""
CHUNKED = "llama4"
NOT_KEPT = (
    "llama.cpp keeps the chunks of this model in a cache with windows, which is not worked out here"
)


@dataclass(frozen=True)
class Request:
    """What the user asked; None is not said. Fields with the name of an option of llama.cpp's
    server mean what it means; `memory` is what there is for the caches, in bytes.
    """

    layout: str
    ctx_size: int = 0
    parallel: int | None = None
    kv_unified: bool | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    swa_full: bool = False
    batch_size: int = BATCH
    ubatch_size: int = UBATCH
    ctx_checkpoints: int = CHECKPOINTS
    cache_ram: int = HOST_MIB
    memory: int | None = None
    request_tokens: int | None = None

    def context(self, model: Model) -> Context:
        """Return how the server is started."""
        slots = AUTO_SLOTS if self.parallel is None else self.parallel
        unified = self.parallel is None if self.kv_unified is None else self.kv_unified
        return Context(
            self.ctx_size or model.max_length,
            slots,
            unified,
            self.cache_type_k,
            self.cache_type_v,
            self.batch_size,
            self.ubatch_size,
            self.swa_full,
        )


@click.command("llama_cpp")
@options.model_options()
@click.option(
    "--ctx-size",
    "-c",
    "ctx_size",
    type=options.COUNT,
    default=0,
    show_default=True,
    help="Tokens of all slots together; 0: as many as the model takes.",
)
@click.option(
    "--parallel",
    "-np",
    type=options.SIZE,
    help=f"Slots; by default {AUTO_SLOTS} that share their cells.",
)
@click.option(
    "--kv-unified/--no-kv-unified",
    "-kvu/-no-kvu",
    default=None,
    help="Whether slots share their cells; with --parallel they do not by default.",
)
@click.option("--cache-type-k", "-ctk", type=click.Choice([*TYPES]), default="f16")
@click.option("--cache-type-v", "-ctv", type=click.Choice([*TYPES]), default="f16")
@click.option(
    "--flash-attn",
    "-fa",
    type=click.Choice(["on", "off", "auto"]),
    default="auto",
    show_default=True,
    help="Off: values are padded to the widest layer's, and not quantized.",
)
@click.option("--swa-full", is_flag=True, help="Windows have as many cells as full attention.")
@click.option("--batch-size", "-b", type=options.SIZE, default=BATCH, show_default=True)
@click.option("--ubatch-size", "-ub", type=options.SIZE, default=UBATCH, show_default=True)
@click.option(
    "--ctx-checkpoints",
    "-ctxcp",
    "--swa-checkpoints",
    "ctx_checkpoints",
    type=options.COUNT,
    default=CHECKPOINTS,
    show_default=True,
    help="Of a slot, at most.",
)
@click.option(
    "--cache-ram",
    "-cram",
    type=options.Whole(-1, 2**43),
    default=HOST_MIB,
    show_default=True,
    help="MiB for prompts on the host; -1: no limit, 0: none.",
)
@options.memory
@options.request_tokens
@options.explain
@options.as_json
def command(as_json: bool, explain: bool, layout: str, **given: Any) -> None:
    """Work out what the server logs of its caches, and what checkpoints and prompts take."""
    options.show(plan(Request(layout, **given)), as_json=as_json, explain=explain)


def plan(request: Request) -> Plan:
    """Work out buffers, checkpoints and prompts. Raises UsageError naming the option or the field
    that does not fit.
    """
    model = sources.model(request.layout)
    kept = kept_of(model, request)
    context = request.context(model)
    answer = Plan("llama_cpp", RELEASE, request.layout, shown=SHOWN)
    _tell_buffers(answer, context, kept, model)
    _tell_checkpoints(answer, request, context, kept)
    if request.memory is not None:
        most = context.most(kept, request.memory, model.max_length)
        answer.add(
            "ctx_most_tokens",
            most,
            f"the largest --ctx-size whose caches fit {request.memory} bytes",
        )
    answer.answer = _sentence(answer, request, context, kept)
    _remark(answer, request, model)
    return answer


def kept_of(model: Model, request: Request) -> Kept:
    """Return what llama.cpp keeps of a model. Raises UsageError for layers that it does not have,
    and for types of keys and values that do not fit the heads.
    """
    named = sources.option(request.layout)
    followed = _follows(model, request.layout)
    full: list[Rows] = []
    windows: list[tuple[int, Rows]] = []
    state = 0
    for cache in model.caches:
        if isinstance(cache, Recurrent) and cache.family != "linear":
            state += cache.layers * _state(cache)
        elif isinstance(cache, Full):
            full.append(_rows(cache, request))
        elif isinstance(cache, Sliding):
            windows.append((cache.window + followed.more, _rows(cache, request)))
        elif isinstance(cache, Latent) and cache.window is None and cache.tokens_per_entry == 1:
            _check_latent(cache, request)
            full.append(Rows(cache.layers, cache.width, 0))
        else:
            raise UsageError(
                f"{named}: model.caches: how llama.cpp keeps indexers, compressed vectors and"
                " linear attention is not worked out here"
            )
    if windows and followed.whole:
        full += [rows for _, rows in windows]
        windows = []
    sizes = {window for window, _ in windows}
    if len(sizes) > 1:
        raise UsageError(f"{named}: model.caches: llama.cpp has one size of windows, not several")
    kept = Kept(tuple(full), tuple(rows for _, rows in windows), sizes.pop() if sizes else 0, state)
    return _padded_values(kept) if request.flash_attn == "off" else kept


@dataclass(frozen=True)
class _Follows:
    """What llama.cpp makes of the windows of a type: `whole` if none, `more` tokens in them."""

    whole: bool = False
    more: int = 0


def _follows(model: Model, layout: str) -> _Follows:
    """Return what llama.cpp makes of a model's windows. Raises UsageError for a type that it has
    none of, as far as is known here.
    """
    if not sources.is_config(layout):
        if "llama-4" in model.checkpoint.lower():
            raise UsageError(f"{sources.option(layout)}: {NOT_KEPT}")
        return _Follows()
    kind = read.model_type(Path(layout))
    if kind.startswith(CHUNKED):
        raise UsageError(f"{sources.option(layout)}: model_type: {kind!r}: {NOT_KEPT}")
    if kind not in AS_READ | WHOLE | ONE_MORE:
        raise UsageError(
            f"{sources.option(layout)}: model_type: {kind!r}: whether llama.cpp has this"
            " architecture, and what it keeps of it, is not known here"
        )
    return _Follows(kind in WHOLE, -1 if kind in ONE_MORE else 0)


def _state(cache: Recurrent) -> int:
    """Return the numbers of one layer's state: the last inputs of its convolution, and a matrix."""
    matrix = 1 if cache.state_shape else 0
    for size in cache.state_shape:
        matrix *= size
    return (cache.conv_kernel - 1) * cache.conv_channels + matrix


def _rows(cache: Full | Sliding, request: Request) -> Rows:
    _check_type("-k", request.cache_type_k, cache.head_dim)
    _check_type("-v", request.cache_type_v, cache.head_dim)
    if request.flash_attn == "off" and TYPES[request.cache_type_v][0] > 1:
        raise UsageError(
            f"--cache-type-v {request.cache_type_v}: llama.cpp does not start without flash"
            " attention"
        )
    numbers = cache.kv_heads * cache.head_dim
    return Rows(cache.layers, numbers, numbers)


def _check_latent(cache: Latent, request: Request) -> None:
    if request.cache_type_k != request.cache_type_v:
        raise UsageError(
            f"--cache-type-k {request.cache_type_k}: llama.cpp does not start with another type of"
            f" values ({request.cache_type_v}) where attention keeps latent vectors"
        )
    _check_type("-k", request.cache_type_k, cache.width)


def _check_type(option: str, name: str, head: int) -> None:
    block, _ = TYPES[name]
    if head % block:
        raise UsageError(
            f"--cache-type{option} {name}: its blocks of {block} do not divide heads of {head}, and"
            " llama.cpp does not start"
        )


def _padded_values(kept: Kept) -> Kept:
    widest = max((rows.values for rows in (*kept.full, *kept.windows)), default=0)

    def padded(rows: tuple[Rows, ...]) -> tuple[Rows, ...]:
        return tuple(replace(each, values=widest if each.values else 0) for each in rows)

    return replace(kept, full=padded(kept.full), windows=padded(kept.windows))


def _tell_buffers(answer: Plan, context: Context, kept: Kept, model: Model) -> None:
    shared = "which share their cells" if context.unified else "each with cells of its own"
    answer.add("slots", context.slots, f"--parallel: n_seq_max in the log, {shared}")
    answer.add("ctx_tokens", context.tokens, "n_ctx in the log: a multiple of 256 for each slot")
    answer.add(
        "slot_tokens",
        min(context.slot_tokens, model.max_length),
        f"of one slot, prompt and answer: n_ctx_slot, at most the model's {model.max_length}",
    )
    token = context.token_bytes(kept.full)
    cells = context.slot_tokens
    if kept.full:
        answer.add(
            "full_bytes",
            context.full_bytes(kept),
            f"{cells} cells x {context.streams} x {token}: {_mib(context.full_bytes(kept))} MiB in"
            " the log's llama_kv_cache: size",
        )
    if kept.windows:
        window = context.token_bytes(kept.windows)
        answer.add("window_cells", context.window_cells(kept.window), _window_how(context, kept))
        answer.add(
            "window_bytes",
            context.window_bytes(kept),
            f"{context.window_cells(kept.window)} x {context.streams} x {window}:"
            f" {_mib(context.window_bytes(kept))} MiB in its second line",
        )
    if kept.state:
        answer.add(
            "state_bytes",
            context.state_bytes(kept),
            f"{context.slots} x {kept.state * STATE_BYTES}: {_mib(context.state_bytes(kept))} MiB"
            " in llama_memory_recurrent: size",
        )
    answer.add("cache_bytes", context.total_bytes(kept), "of all caches together")


def _window_how(context: Context, kept: Kept) -> str:
    if context.swa_full:
        return "--swa-full: as many as full attention has"
    slots = context.slots if context.unified else 1
    return f"{kept.window} x {slots} + {context.step}, up to a multiple of 256"


def _mib(amount: int) -> str:
    return f"{amount / MIB:.2f}"


def _tell_checkpoints(answer: Plan, request: Request, context: Context, kept: Kept) -> None:
    """Add what a slot's checkpoints take on the host, and how many prompts stay there."""
    slot = int(str(answer.value("slot_tokens")))
    tokens = request.request_tokens or slot
    if tokens > slot:
        raise UsageError(
            f"--request-tokens: {tokens} tokens are more than the {slot} of a slot; llama.cpp"
            " refuses such a prompt"
        )
    each = context.checkpoint_bytes(kept, tokens) if request.ctx_checkpoints else 0
    if each:
        what = "the states" if kept.state else f"the last {min(tokens, kept.window)} cells"
        answer.add("checkpoint_bytes", each, f"of a context checkpoint, on the host: {what}")
        answer.add(
            "checkpoints_most_bytes",
            each * request.ctx_checkpoints * context.slots,
            f"{request.ctx_checkpoints} of each slot at most: --ctx-checkpoints",
        )
    own = context.prompt_bytes(kept, tokens)
    number = min(PROMPT_CHECKPOINTS, request.ctx_checkpoints) if each else 0
    if tokens <= context.step + LAST_TOKENS:
        number = min(number, 1)
    taken = own + number * each
    answer.add("prompt_bytes", taken, f"of {tokens} tokens on the host, {number} checkpoints")
    if request.cache_ram < 0:
        answer.add("prompts_cached", None, "--cache-ram -1: as many as the host has room for")
    else:
        limit = request.cache_ram * MIB
        prompts = max(limit // taken, 1) if limit else 0
        answer.add("prompts_cached", prompts, f"{limit} // {taken}: on the host, one at least")


def _sentence(answer: Plan, request: Request, context: Context, kept: Kept) -> str:
    size = f"{context.total_bytes(kept) / (1 << 30):.2f} GiB"
    if request.memory is not None and context.total_bytes(kept) > request.memory:
        most = int(str(answer.value("ctx_most_tokens")))
        fits = f"--ctx-size {most} does" if most else "no context does"
        return f"--ctx-size {context.tokens} does not fit: its caches take {size}; {fits}"
    slot = int(str(answer.value("slot_tokens")))
    if request.request_tokens is None:
        return f"{context.slots} slots, {slot:,} tokens at most in each; the caches take {size}"
    running = min(context.slots, context.tokens // request.request_tokens)
    kept_there = answer.value("prompts_cached")
    there = "" if kept_there is None else f", {kept_there:,} finished ones stay on the host"
    return (
        f"{request.request_tokens:,} tokens: {running:,} requests run at once{there}; the caches"
        f" take {size}"
    )


def _remark(answer: Plan, request: Request, model: Model) -> None:
    if not request.ctx_size:
        answer.notes.append(
            "without --ctx-size llama.cpp may take fewer tokens, so that weights and caches fit the"
            " device (--fit); its log says which (n_ctx)"
        )
    if any(isinstance(cache, Latent) for cache in model.caches):
        answer.notes.append(
            "latent vectors are kept once, as llama.cpp does since January 2026 of files that it"
            " converted since April 2025"
        )
    answer.notes.append(
        "bytes on the host are without headers: about 12 for each token that is saved"
    )


def _plan() -> click.Command:
    return command


SIZING = Sizing(_plan, ("llama.cpp", "llama"))
