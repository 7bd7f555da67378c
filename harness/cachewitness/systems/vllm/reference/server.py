"""What a server of vLLM says when it starts, line by line: the groups of a rank, the pool, the
concurrency, the longest request, and why it may not start.

The arithmetic is `cachewitness_reference.vllm.planning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cachewitness.plan.result import Plan
from cachewitness.plan.serving import NULL_BLOCK_SINCE, Rank, Serving
from cachewitness_reference.vllm.planning import Bounds, Started, groups_of, padding_layers

BATCHED_TOKENS = ((160 << 30, 16384), (70 << 30, 8192), (0, 2048))
"""`max_num_batched_tokens` of a server by the memory of its device, if it is not said."""
SEQS = ((70 << 30, 1024), (0, 256))
"""The same of `max_num_seqs`."""


@dataclass(frozen=True)
class Limits:
    """What bounds a server's requests; None is not said.

    `memory` is what there is for the cache, on one rank, and `device` all that the device has.
    `in_flight` outranks `batched_tokens`: the most tokens that are scheduled and not settled.
    """

    memory: int
    longest: int
    device: int | None = None
    batched_tokens: int | None = None
    in_flight: int | None = None
    async_scheduling: bool = True
    seqs: int | None = None
    blocks_override: int | None = None
    eager: bool = False

    def in_flight_tokens(self, stages: int) -> int:
        """Return the most tokens that are scheduled and not settled: a batch for each stage of a
        pipeline, and one more with async scheduling.
        """
        if self.in_flight is not None:
            return self.in_flight
        batched = self.batched_tokens or default(BATCHED_TOKENS, self.device)
        return batched * (stages + int(self.async_scheduling))

    @property
    def max_num_seqs(self) -> int:
        """The requests that may run at once."""
        return self.seqs or default(SEQS, self.device)


def default(table: tuple[tuple[int, int], ...], device: int | None) -> int:
    """Return a default by the memory of a device; without one that of the smallest."""
    return next(value for least, value in table if (device or 0) >= least)


def started_of(rank: Rank, serving: Serving, limits: Limits) -> Started:
    """Return what a server has when it has started. Raises ConfigError for layers without
    groups.
    """
    return Started(
        tuple(groups_of(rank.layers)),
        limits.memory,
        Bounds(limits.longest, limits.in_flight_tokens(serving.stages), serving.context_ranks),
        limits.longest,
        limits.blocks_override,
        serving.since >= NULL_BLOCK_SINCE,
    )


def tell_started(
    answer: Plan, started: Started, serving: Serving, limits: Limits, longest: int
) -> None:
    """Add the lines of the log, and as notes what keeps the server from starting. `longest` is the
    longest request with which it starts.
    """
    largest = max(started.groups, key=lambda group: group.block_bytes)
    pages = {layer.page_bytes for layer in largest.layers}
    how = (
        f"{len(largest.layers)} x {pages.pop()}: a page for each layer of the largest group"
        if len(pages) == 1
        else f"the pages of {len(largest.layers)} layers together"
    )
    answer.add("memory_bytes", limits.memory, "for the cache, on one rank")
    answer.add("pool_block_bytes", started.block_bytes, how)
    answer.add(
        "pool_blocks",
        started.blocks,
        f"{limits.memory} // {started.block_bytes}; one is the null block"
        if limits.blocks_override is None
        else "--num-gpu-blocks-override",
    )
    _tell_padding(answer, started)
    answer.add("max_model_len_tokens", started.longest, "the longest request that is served")
    answer.add("longest_request_blocks", started.request_blocks, "held by one such request at most")
    answer.add(
        "concurrency",
        float(started.concurrency),
        f"{started.blocks} / {started.request_blocks}: the log's Maximum concurrency for"
        f" {started.longest:,} tokens per request, {float(started.concurrency):.2f}x",
    )
    answer.add(
        "cache_size_tokens",
        started.size_tokens,
        f"{started.blocks} / {started.request_blocks} x {started.longest}: the log's GPU KV cache"
        " size",
    )
    answer.add("starts", started.starts, _check_how(started))
    answer.add(
        "longest_prompt_tokens",
        longest,
        "the largest --max-model-len that starts, up to the model's own or the one given",
    )
    if started.has_states:
        answer.add(
            "max_num_seqs_most", started.blocks, "--max-num-seqs: every request needs a state"
        )
    answer.notes += _warnings(started, serving, limits)


def _tell_padding(answer: Plan, started: Started) -> None:
    padded = padding_layers(started.groups)
    if not padded:
        return
    shares = "; ".join(f"{added} for {_percent(share)}" for added, share in padded)
    answer.add(
        "padding_layers",
        sum(added for added, _ in padded),
        f"the log's Add N padding layers: {shares} of a kind's memory at most",
    )


def _percent(share: Fraction) -> str:
    return f"{100 * float(share):.2f}%"


def _check_how(started: Started) -> str:
    left = ", without the null block" if started.check_block else ""
    return (
        f"one request of {started.longest:,} tokens needs {gib(started.needed_bytes)} GiB;"
        f" {gib(started.checked_bytes)} GiB are there{left}"
    )


def gib(amount: int) -> str:
    """Return bytes in GiB as vLLM's log has them: two decimals at most."""
    return str(round(amount / 2**30, 2))


def _warnings(started: Started, serving: Serving, limits: Limits) -> list[str]:
    notes = []
    if not started.starts:
        notes.append(
            f"vLLM does not start with --max-model-len {started.longest}: a request needs"
            f" {started.needed_bytes} bytes ({gib(started.needed_bytes)} GiB), and the check counts"
            f" with {started.checked_bytes} ({gib(started.checked_bytes)} GiB)"
        )
    elif not started.check_block and started.blocks - 1 < started.request_blocks:
        notes.append(
            f"release {serving.release} starts, and a request of {started.longest} tokens never"
            " runs: nobody gets the null block, which its check counts (0.29 leaves it out)"
        )
    if started.has_states and not limits.eager and limits.max_num_seqs > started.blocks:
        limit = "--max-num-seqs" if limits.seqs else "max_num_seqs, by default"
        notes.append(
            f"vLLM does not start where it captures decode graphs: {limit} ({limits.max_num_seqs})"
            f" exceeds available Mamba cache blocks ({started.blocks}); lower it to at most"
            f" {started.blocks}"
        )
    return notes
