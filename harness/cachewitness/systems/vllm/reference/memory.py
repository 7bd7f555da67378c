"""vLLM: how many requests an amount of memory holds, and what each retention interval keeps and
costs.

The arithmetic is `cachewitness_reference.vllm.planning` and `pool`. Every number is of one rank:
the memory that vLLM has for its cache there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cachewitness._util import files
from cachewitness._util.chart import Curves, curves
from cachewitness._util.errors import UsageError
from cachewitness.plan.lost import lost_tokens
from cachewitness.plan.result import Plan, Table, Value
from cachewitness_reference.vllm import pool
from cachewitness_reference.vllm.planning import LayerGroup, Started
from cachewitness_reference.vllm.pool import Group, Kept
from cachewitness_reference.vllm.sizing import SequenceLengths


@dataclass(frozen=True)
class Pool:
    """A model's groups as a server has them, and the sequence that is planned for, with the
    interval asked for. `caches` is False where prefixes are not cached.
    """

    started: Started
    lengths: SequenceLengths
    interval: int | None
    pins_shared: bool
    caches: bool = True

    @property
    def groups(self) -> list[Group]:
        """The groups, by what they keep of a finished request."""
        return [_group(group) for group in self.started.groups]

    @property
    def alignment(self) -> int:
        """The multiple, in tokens, on which hits end."""
        return math.lcm(*(group.block_size for group in self.groups))

    @property
    def tokens(self) -> int:
        """The tokens of a request, prompt and output."""
        return self.lengths.prompt_tokens + self.lengths.output_tokens

    def kept(self, interval: int | None) -> Kept:
        """Return what a finished request leaves cached under an interval."""
        return pool.kept(self.groups, self.lengths, interval)


@dataclass(frozen=True)
class Interval:
    """What a retention interval keeps of one sequence, and what it costs a later request that
    shares a beginning with it.

    `interval` in tokens, None for dense; `boundaries` where a hit can end; `blocks` over all
    groups, `share` of those that dense retention keeps; `lost_most`, `lost_mean`: tokens computed
    again that dense retention would have hit.
    """

    interval: int | None
    boundaries: int
    blocks: int
    share: float
    lost_most: int
    lost_mean: int

    @property
    def named(self) -> str:
        """The interval as `--retention-interval` takes it."""
        return "none" if self.interval is None else str(self.interval)


def _group(group: LayerGroup) -> Group:
    layer = group.first
    kinds: dict[str, Literal["full", "sliding", "recurrent"]] = {
        "sliding": "sliding",
        "recurrent": "recurrent",
    }
    kind = kinds.get(layer.kind, "full")
    window = layer.window if kind == "sliding" else 0
    return Group(kind, layer.block_size, len(group.layers), window)


def tell_memory(answer: Plan, of: Pool, shared: int) -> None:
    """Add how many requests a memory holds: running, and finished with what retention keeps."""
    started = of.started
    blocks = started.blocks
    held = [
        group.request_blocks(replace(started.bounds, tokens=of.tokens)) for group in started.groups
    ]
    each = sum(held)
    answer.add(
        "request_blocks", each, f"{_sum(held)}: held at once by {of.tokens} tokens, group by group"
    )
    answer.add(
        "requests_running",
        _fit(blocks, each),
        f"({blocks} - 1) // {each}: cold, none shares a block",
    )
    if not of.caches:
        answer.add("requests_cached", 0, "prefixes are not cached")
        return
    for name, interval in (("", of.interval), ("dense_", None)):
        kept = of.kept(interval).blocks
        label = "dense" if interval is None else f"interval {interval}"
        answer.add(
            f"cached_{name}request_blocks", kept, f"left by a request that is finished, {label}"
        )
        answer.add(
            f"requests_{name}cached",
            _fit(blocks, kept),
            f"({blocks} - 1) // {kept}: finished, and can be hit"
            if kept
            else f"{of.tokens} tokens end in front of {of.alignment}, where the first hit can end",
        )
    if shared:
        _tell_shared(answer, of, blocks, each, shared)


def sentence(answer: Plan, of: Pool) -> str:
    """Return the answer in one line."""
    started = of.started
    if not started.starts:
        most = started.longest_that_fits
        fits = f"{most:,} tokens fit" if most else "not even one token fits"
        return f"vLLM does not start with {started.longest:,} tokens a request; {fits}"
    running = answer.value("requests_running")
    if of.caches:
        kept = answer.value("requests_cached")
        dense = answer.value("requests_dense_cached")
        later = f"{kept:,} finished ones stay hittable"
        if kept != dense:
            later += f" ({dense:,} if dense)"
        if not answer.value("cached_dense_request_blocks"):
            later = f"nothing of one can be hit (hits end every {of.alignment:,} tokens)"
    else:
        later = "no prefix is cached"
    longest = answer.value("longest_prompt_tokens")
    return (
        f"{of.tokens:,} tokens: {running:,} requests run at once, {later}; longest prompt"
        f" {longest:,}"
    )


def _tell_shared(answer: Plan, of: Pool, blocks: int, each: int, shared: int) -> None:
    """Add how many requests run at once if they begin alike, once the beginning is cached."""
    if shared >= of.tokens:
        raise UsageError(
            f"--shared-prefix: {shared} tokens are not fewer than the {of.tokens} of a request"
        )
    if of.pins_shared:
        hit = shared // of.alignment * of.alignment
        how = "from the third request on: the second keeps the shared boundary"
    else:
        ends = [end for end in of.kept(of.interval).hits if end <= shared]
        hit = max(ends, default=0)
        how = "the last boundary that is kept within it"
    saved = sum(hit // group.block_size for group in of.groups if group.kind == "full")
    answer.add("shared_hit_tokens", hit, how)
    answer.add("shared_blocks", saved, "of full attention, held once for all")
    how = f"({blocks} - 1 - {saved}) // ({each} - {saved})"
    answer.add("requests_running_shared", _fit(blocks - saved, each - saved), how)


def intervals(of: Pool) -> list[Interval]:
    """Return what retention intervals keep and cost: dense, the block times 1, 2, 4, … up to the
    sequence, and 0.

    Of those that keep what dense retention keeps, as an interval below a window does, only the
    longest is told.
    """
    dense = of.kept(None)
    length = of.lengths.computed_tokens
    steps = [
        of.alignment << power
        for power in range(length.bit_length())
        if of.alignment << power <= length
    ]
    thinner = next(
        (index for index, step in enumerate(steps) if of.kept(step).blocks < dense.blocks),
        len(steps),
    )
    found = []
    for interval in (None, *steps[max(thinner - 1, 0) :], 0):
        kept = of.kept(interval)
        most, mean = lost_tokens(dense.hits, kept.hits, length)
        share = kept.blocks / dense.blocks if dense.blocks else 0.0
        found.append(Interval(interval, len(kept.hits), kept.blocks, share, most, round(mean)))
    return found


def table(rows: Sequence[Interval], blocks: int | None) -> Table:
    """Return intervals as a table; `blocks` are those of the pool, if a memory was given."""
    columns: tuple[str, ...] = (
        "interval",
        "boundaries",
        "request_blocks",
        "kept_share",
        "lost_most_tokens",
        "lost_mean_tokens",
    )
    values: list[tuple[Value, ...]] = [
        (row.named, row.boundaries, row.blocks, row.share, row.lost_most, row.lost_mean)
        for row in rows
    ]
    if blocks is not None:
        columns = (*columns, "requests_cached")
        values = [
            (*value, _fit(blocks, row.blocks)) for value, row in zip(values, rows, strict=True)
        ]
    return Table("intervals", columns, values)


def draw(rows: Sequence[Interval], tokens: int, path: Path, title: str) -> None:
    """Write intervals of a sequence of so many tokens as a picture. Raises UsageError if the
    file cannot be written.
    """
    rates = {
        "blocks, of dense": [row.share for row in rows],
        "tokens lost at most": [row.lost_most / tokens for row in rows],
        "on average": [row.lost_mean / tokens for row in rows],
    }
    files.write(
        path, [curves([Curves(title, [_short(row.named) for row in rows], rates)]).encode()]
    )


def _short(interval: str) -> str:
    """Return an interval as the axis has room for it."""
    return (
        f"{int(interval) // 1024}k"
        if interval.isdecimal() and int(interval) and int(interval) % 1024 == 0
        else interval
    )


def _fit(blocks: int, each: int) -> int:
    return max(blocks - 1, 0) // each if each else 0


def _sum(numbers: Sequence[int]) -> str:
    return " + ".join(map(str, numbers))
