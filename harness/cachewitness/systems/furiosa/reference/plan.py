"""Furiosa-LLM: how the KV memory is split between global and sliding-window attention
(`cachewitness_reference.furiosa.partition`).

The document gives no formula and no block size; what the reference chose is named in
`cachewitness_reference.furiosa.spec`. Without an amount of memory the split is that of exactly one
sequence of the length that it is made for, so the shares are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.plan import options, sources
from cachewitness.plan.result import Plan
from cachewitness.systems.furiosa.reference import EXPECTED_LENGTH
from cachewitness.workloads.model import Full, Model, Sliding
from cachewitness_reference.furiosa.partition import (
    ConfigError,
    Partition,
    blocks_per_seq,
    expected_length_from,
    seq_length,
    split,
)
from cachewitness_reference.furiosa.spec import PINNED_RELEASE, VARIABLE

GIB = 2**30


@dataclass(frozen=True)
class Request:
    """What the user asked; None is not said. `expected` is the variable's text if it was given
    as an option.
    """

    layout: str
    expected: str | None = None
    kv_bytes: int | None = None
    kv_gib: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    default_ratio: str = "max_model_len"
    memory: int | None = None
    request_tokens: int | None = None


@click.command("furiosa")
@options.model_options()
@click.option(
    "--expected-average-seq-length",
    "expected",
    metavar="N",
    help=f"Tokens; default: {VARIABLE}, if it is set.",
)
@click.option("--kv-bytes", type=options.SIZE, help="Memory of both pools.")
@click.option("--kv-gib", type=options.GIB, help="The same in GiB.")
@options.memory
@options.request_tokens
@click.option(
    "--block-size", type=options.SIZE, default=16, show_default=True, help="Tokens in a block."
)
@click.option(
    "--max-model-len", type=options.SIZE, help="The longest sequence; the model's own by default."
)
@click.option(
    "--default-ratio",
    type=click.Choice(["max_model_len", "per_token"]),
    default="max_model_len",
    show_default=True,
)
@options.as_json
def command(as_json: bool, **given: Any) -> None:
    """Split KV memory between the global and the sliding-window pool."""
    options.show(plan(Request(**given)), as_json=as_json)


def plan(request: Request) -> Plan:
    """Split the memory. Raises UsageError naming the option or the field that does not fit."""
    if sum(each is not None for each in (request.kv_bytes, request.kv_gib, request.memory)) > 1:
        raise UsageError(
            "--memory, --kv-bytes and --kv-gib say the same; leave all but one of them out"
        )
    model = sources.unquantized_model(request.layout)
    full, sliding = _layers(model, request.layout)
    longest = model.max_length if request.max_model_len is None else request.max_model_len
    if longest > model.max_length:
        raise UsageError(
            f"--max-model-len: {longest} is more than the {model.max_length} tokens of"
            f" {model.checkpoint}"
        )
    if not 1 <= request.block_size <= longest:
        raise UsageError(
            f"--block-size: {request.block_size} is not from 1 to {longest}, the longest sequence"
        )
    try:
        expected, origin = _expected(request)
        length = seq_length(sliding.window, longest, expected, request.default_ratio)
        per_seq = blocks_per_seq(length, request.block_size, sliding.window)
        one = request.block_size * (
            per_seq[0] * full.layers * full.token_bytes
            + per_seq[1] * sliding.layers * sliding.token_bytes
        )
        given = (
            request.kv_gib * GIB
            if request.kv_gib is not None
            else request.kv_bytes or request.memory
        )
        shares = split(
            one if given is None else given,
            block_size=request.block_size,
            global_layers=full.layers,
            sliding_layers=sliding.layers,
            global_bytes_per_token=full.token_bytes,
            sliding_bytes_per_token=sliding.token_bytes,
            window=sliding.window,
            max_model_len=longest,
            expected_average_seq_length=expected,
            default_ratio=request.default_ratio,
        )
    except ConfigError as error:
        raise UsageError(f"furiosa: {error}") from None
    answer = Plan("furiosa", PINNED_RELEASE, request.layout)
    _explain(answer, request, shares, full, sliding, origin)
    if request.request_tokens is not None:
        _tell_requests(
            answer, request.request_tokens, request.block_size, shares, sliding.window, longest
        )
    _remark(answer, request, shares, given is None, expected is not None and expected > longest)
    return answer


def _expected(request: Request) -> tuple[int | None, str]:
    """Return the length that memory is split for, None for the default's, and where it comes
    from.
    """
    if request.expected is not None:
        return expected_length_from({VARIABLE: request.expected}), f"{VARIABLE}, as given"
    if (exported := EXPECTED_LENGTH.value()) is not None:
        return int(exported), f"{VARIABLE}, from the environment"
    default = (
        "the longest sequence"
        if request.default_ratio == "max_model_len"
        else "any length within the window"
    )
    return None, f"{VARIABLE} is unset: {default}"


def _layers(model: Model, name: str) -> tuple[Full, Sliding]:
    for index, cache in enumerate(model.caches):
        if not isinstance(cache, Full | Sliding):
            kind = type(cache).__struct_config__.tag
            raise UsageError(
                f"{sources.option(name)}: model.caches[{index}].kind {kind!r}: Furiosa-LLM's"
                " document knows global and sliding-window attention alone"
            )
    full = [cache for cache in model.caches if isinstance(cache, Full)]
    sliding = [cache for cache in model.caches if isinstance(cache, Sliding)]
    if len(full) != 1 or len(sliding) != 1:
        raise UsageError(
            f"{sources.option(name)}: model.caches: two pools need one full and one sliding kind of"
            " layer"
        )
    return full[0], sliding[0]


def _explain(
    answer: Plan, request: Request, shares: Partition, full: Full, sliding: Sliding, origin: str
) -> None:
    size = request.block_size
    answer.add("seq_length_tokens", shares.seq_length, origin)
    answer.add("block_tokens", size, "our choice; the document is silent")
    answer.add(
        "global_block_bytes",
        shares.global_block_bytes,
        f"{size} x {full.layers} layers x {full.token_bytes}",
    )
    answer.add(
        "sliding_block_bytes",
        shares.sliding_block_bytes,
        f"{size} x {sliding.layers} layers x {sliding.token_bytes}",
    )
    answer.add(
        "global_blocks_per_seq", shares.global_blocks_per_seq, f"ceil({shares.seq_length} / {size})"
    )
    answer.add(
        "sliding_blocks_per_seq",
        shares.sliding_blocks_per_seq,
        f"at most ceil(({sliding.window} - 1) / {size}) + 1: a window may begin inside a block",
    )
    answer.add("global_blocks", shares.global_blocks)
    answer.add("sliding_blocks", shares.sliding_blocks)
    answer.add("global_bytes", shares.global_blocks * shares.global_block_bytes)
    answer.add("sliding_bytes", shares.sliding_blocks * shares.sliding_block_bytes)
    global_share = shares.global_blocks * shares.global_block_bytes / shares.used_bytes
    answer.add("global_share", global_share, "of the bytes of both pools")
    answer.add("sliding_share", 1 - global_share)
    answer.add(
        "sequences",
        shares.sequences,
        f"of {shares.seq_length} tokens at once, before either pool is full",
    )


def _tell_requests(
    answer: Plan, tokens: int, size: int, shares: Partition, window: int, longest: int
) -> None:
    if tokens > longest:
        raise UsageError(f"--request-tokens: {tokens} is more than {longest}, the longest sequence")
    needed = blocks_per_seq(tokens, size, window)
    answer.add("request_global_blocks", needed[0], f"ceil({tokens} / {size})")
    answer.add(
        "request_sliding_blocks",
        needed[1],
        "of the window, as above, or of the request if it is shorter",
    )
    how = f"min({shares.global_blocks} // {needed[0]}, {shares.sliding_blocks} // {needed[1]})"
    answer.add("requests_running", shares.sequences_of(*needed), how)
    answer.tell_running(tokens, shares.sequences_of(*needed))


def _remark(
    answer: Plan, request: Request, shares: Partition, unsized: bool, clamped: bool
) -> None:
    if unsized:
        answer.notes.append(
            "no amount of memory was given, so this is the split of one such sequence: --kv-bytes"
            " or --kv-gib"
        )
    if clamped:
        answer.notes.append(
            f"{VARIABLE} is longer than the longest sequence and counts as {shares.seq_length}"
        )
    answer.notes.append(
        "the formula is our choice, named in reference_impl/cachewitness_reference/furiosa/spec.py:"
        " the document gives none"
    )
