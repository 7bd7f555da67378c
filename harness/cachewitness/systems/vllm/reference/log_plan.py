"""`plan vllm --from-log`: which numbers of a server's log come out of the model and the flags, by
how much the others are off, and which flag would explain them.

A log prints its memory with two decimals, which is several numbers of blocks. A number of the log
comes out if one of them gives it to the last digit.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.plan import sources
from cachewitness.plan.result import Plan, Table, Value
from cachewitness.plan.serving import MTP, Rank, rank_of
from cachewitness.systems.vllm.reference.plan import Request
from cachewitness.systems.vllm.reference.server import Limits, gib, started_of
from cachewitness.systems.vllm.reference.server_log import Logged, read
from cachewitness_reference.vllm.options import ConfigError
from cachewitness_reference.vllm.planning import Started, padding_layers
from cachewitness_reference.vllm.spec import NEWEST, RELEASES

CENT = Fraction(1, 200)
"""Half of the last digit of an amount in GiB."""
POOLS_MOST = 1 << 14
"""Numbers of blocks that are tried for one log."""
ASSUMED = 1 << 40
"""The memory that is counted with where a log does not say it."""


@dataclass(frozen=True)
class Compared:
    """One number of a log beside the plan's. `explained`: they are the same to the last digit."""

    line: str
    logged: Value
    planned: Value
    explained: bool
    off: str


@dataclass(frozen=True)
class Variant:
    """Flags that a log does not say, by name, with the fields of a request that they are."""

    flags: tuple[str, ...]
    fields: Mapping[str, Any]


def explained(path: Path, given: dict[str, Any]) -> Plan:
    """Return what of a log comes out. `given` are fields that outrank the log's.

    Raises UsageError for a log that cannot be read, and a model that is named nowhere.
    """
    logged = read(path)
    fields = logged.fields | given
    if "layout" not in fields:
        raise UsageError(
            f"{path}: the log is of {logged.model or 'a model that it does not name'}; give its"
            " configuration as --config FILE, or --layout NAME"
        )
    release = logged.release if logged.release in RELEASES else NEWEST
    fields.setdefault("release", release)
    compared = _compare(logged, Request(**fields))
    answer = Plan("vllm", fields["release"], fields["layout"])
    answer.tables.append(_table(compared))
    missing = [each for each in compared if not each.explained]
    answer.add("numbers", len(compared), "of the log, that are planned")
    answer.add("numbers_explained", len(compared) - len(missing), "to the last digit")
    answer.answer = _sentence(compared)
    if missing:
        _suggest(answer, logged, fields, len(compared) - len(missing))
    if logged.release and logged.release not in RELEASES:
        answer.notes.append(
            f"the log is of vLLM {logged.release}; the rules are those of {release}, since that"
            " release's are not known here"
        )
    return answer


def _sentence(compared: list[Compared]) -> str:
    right = sum(each.explained for each in compared)
    if right == len(compared):
        return f"all {right} numbers of the log come out to the last digit"
    return f"{right} of {len(compared)} numbers of the log come out"


def _table(compared: list[Compared]) -> Table:
    rows: list[tuple[Value, ...]] = [
        (each.line, each.logged, each.planned, "yes" if each.explained else "no", each.off)
        for each in compared
    ]
    return Table("log", ("line", "logged", "planned", "explained", "off"), rows)


def _suggest(answer: Plan, logged: Logged, fields: dict[str, Any], before: int) -> None:
    """Add the fewest flags with which more numbers come out."""
    best: tuple[int, list[Variant]] = (before, [])
    for number in (1, 2):
        for variant in _variants(fields, number):
            try:
                found = _compare(logged, Request(**{**fields, **variant.fields}))
            except UsageError:
                continue
            right = sum(each.explained for each in found)
            if right > best[0]:
                best = (right, [variant])
            elif right == best[0] and best[1]:
                best[1].append(variant)
        if best[1]:
            break
    if not best[1]:
        answer.notes.append(
            "no flag that is tried explains more (types of keys, values and states, caching,"
            " drafts, checkpoints, ranks, the budget of a step)"
        )
        return
    total = answer.value("numbers")
    for variant in best[1][:3]:
        answer.notes.append(f"with {' '.join(variant.flags)} {best[0]} of {total} come out")


def _variants(fields: Mapping[str, Any], number: int) -> Iterator[Variant]:
    singles = [single for single in _singles() if _differs(fields, single)]
    for chosen in itertools.combinations(singles, number):
        names = [name for single in chosen for name in single.fields]
        if len(set(names)) == len(names):
            flags = tuple(flag for single in chosen for flag in single.flags)
            merged = {name: value for single in chosen for name, value in single.fields.items()}
            yield Variant(flags, merged)


def _differs(fields: Mapping[str, Any], single: Variant) -> bool:
    defaults = {each.name: each.default for each in dataclasses.fields(Request)}
    return any(
        fields.get(name, defaults.get(name)) != value for name, value in single.fields.items()
    )


def _singles() -> Iterator[Variant]:
    for dtype in ("fp8", "bfloat16", "nvfp4"):
        yield Variant((f"--kv-cache-dtype {dtype}",), {"kv_cache_dtype": dtype})
    yield Variant(("--no-enable-prefix-caching",), {"enable_prefix_caching": False})
    yield Variant(("--enable-prefix-caching",), {"enable_prefix_caching": True})
    for tokens in range(1, 6):
        config = f'{{"method": "mtp", "num_speculative_tokens": {tokens}}}'
        yield Variant(
            (f"--speculative-config '{config}'",),
            {"speculative_method": MTP, "num_speculative_tokens": tokens},
        )
    for dtype in ("float32", "bfloat16"):
        yield Variant((f"--mamba-ssm-cache-dtype {dtype}",), {"mamba_ssm_cache_dtype": dtype})
    yield Variant(("--checkpoint-alignment 64",), {"checkpoint_alignment": 64})
    for ranks in (1, 2, 4, 8):
        yield Variant((f"--tensor-parallel-size {ranks}",), {"tensor_parallel_size": ranks})
    for tokens in (2048, 4096, 8192, 16384, 32768):
        yield Variant((f"--max-num-batched-tokens {tokens}",), {"max_num_batched_tokens": tokens})


def _compare(logged: Logged, request: Request) -> list[Compared]:
    model = sources.model(request.layout)
    serving = request.serving(model)
    rank = rank_of(model, serving, sources.option(request.layout))
    longest = logged.longest or request.max_model_len or model.max_length
    limits = Limits(
        ASSUMED,
        longest,
        request.device_memory,
        request.max_num_batched_tokens,
        request.in_flight_tokens,
        request.async_scheduling,
        request.max_num_seqs,
        request.num_gpu_blocks_override,
    )
    try:
        started = started_of(rank, serving, limits)
    except ConfigError as error:
        raise UsageError(f"vllm: {error}") from None
    pools = _pools(logged, request, started)
    return [*_of_pages(logged, rank, started), *_of_pool(logged, started, pools)]


def _pools(logged: Logged, request: Request, started: Started) -> list[Started]:
    """Return what the server may have been, one for each number of blocks that the memory it
    prints can be.
    """
    if request.num_gpu_blocks_override is not None:
        return [started]
    if request.memory is not None:
        return [dataclasses.replace(started, memory=request.memory)]
    if logged.memory is None and logged.blocks is not None:
        return [dataclasses.replace(started, blocks_override=logged.blocks)]
    if logged.memory is None:
        return []
    least = int((Fraction(logged.memory) - CENT) * 2**30)
    most = int((Fraction(logged.memory) + CENT) * 2**30)
    weight = started.block_bytes
    starts = [least, *range((least // weight + 1) * weight, most + 1, weight)]
    return [dataclasses.replace(started, memory=memory) for memory in starts]


def _of_pages(logged: Logged, rank: Rank, started: Started) -> Iterator[Compared]:
    if logged.block is not None:
        yield _number("attention block size", logged.block, rank.block)
    if logged.padding is not None and rank.hybrid is not None:
        state = rank.hybrid.state_bytes
        page = rank.block * rank.hybrid.token_bytes
        planned = f"{100 * (page - state) / state:.2f}"
        yield _text("padding of a state, %", logged.padding, planned)
    if logged.padding_layers:
        added = sum(number for number, _ in padding_layers(started.groups))
        yield _number("padding layers", sum(set(logged.padding_layers)), added)


def _of_pool(logged: Logged, started: Started, pools: list[Started]) -> Iterator[Compared]:
    if logged.concurrency is not None:
        fitting = _fitting(logged, started, pools)
        shown = fitting or (pools[0] if pools else None)
        planned = None if shown is None else f"{float(shown.concurrency):.2f}"
        yield _text("maximum concurrency", logged.concurrency, planned)
        if logged.size_tokens is not None:
            size = None if shown is None else shown.size_tokens
            if shown is not None and logged.size_tokens == shown.size_tokens_by_groups:
                size = shown.size_tokens_by_groups
            yield _number("KV cache size, tokens", logged.size_tokens, size)
    if logged.needed is not None:
        yield _text("needed for one request, GiB", logged.needed, gib(started.needed_bytes))
    if logged.estimated is not None:
        lengths = [each.longest_that_fits for each in pools]
        nearest = min(lengths, key=lambda each: abs(each - (logged.estimated or 0)), default=None)
        yield _number("estimated maximum model length", logged.estimated, nearest)
    if logged.blocks is not None and logged.memory is not None:
        counts = [each.blocks for each in pools]
        nearest = min(counts, key=lambda each: abs(each - (logged.blocks or 0)), default=None)
        yield _number("available Mamba cache blocks", logged.blocks, nearest)


def _fitting(logged: Logged, started: Started, pools: list[Started]) -> Started | None:
    """Return a pool with which concurrency and size are the log's, if there is one."""
    for each in pools or _of_concurrency(logged, started):
        same = f"{float(each.concurrency):.2f}" == logged.concurrency
        if same and logged.size_tokens in (None, each.size_tokens, each.size_tokens_by_groups):
            return each
    return None


def _of_concurrency(logged: Logged, started: Started) -> list[Started]:
    """Return pools with the numbers of blocks that the concurrency tells, for a log without the
    memory.
    """
    half = Fraction(1, 200)
    printed = Fraction(logged.concurrency or "0")
    least = max(int((printed - half) * started.request_blocks), 1)
    most = int((printed + half) * started.request_blocks) + 1
    if most - least > POOLS_MOST:
        return []
    return [
        dataclasses.replace(started, blocks_override=blocks) for blocks in range(least, most + 1)
    ]


def _number(line: str, logged: int, planned: int | None) -> Compared:
    off = "" if planned is None or planned == logged else f"{planned - logged:+,}"
    return Compared(line, logged, planned, planned == logged, off)


def _text(line: str, logged: str, planned: str | None) -> Compared:
    off = ""
    same = planned is not None and float(planned) == float(logged)
    if planned is not None and not same:
        off = f"{float(planned) - float(logged):+.2f}"
    return Compared(line, logged, planned, same, off)
