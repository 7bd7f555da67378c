"""vLLM's expected answers, computed a second time: from what a query reads, by brute force, without
any policy code.

A position p can be resumed if every group holds what the query at p reads. Everything else follows:
the hit is the largest such position, a mask keeps exactly what some allowed boundary reads, a chunk
ends at the last position where a state may be left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cachewitness.core.trace_format import GroupSpec
from suites.support.published_vectors import for_every, vectors
from suites.support.vllm_boundaries import holds, read_by, sizes

EVERYTHING = 4096
"""Boundaries beyond every vector's tokens."""


def longest(
    groups: list[GroupSpec], cached: list[list[int]], tokens: int, config: dict[str, Any]
) -> int:
    """Return the largest position that all groups can resume at, a token being left to compute."""
    alignment, unit, _ = sizes(groups, config)
    eagle = config.get("use_eagle", False)
    # The unit that is given back may hold the last token where several groups agree on a length;
    # alone it may not.
    known = tokens - 1 if len(groups) == 1 else tokens // unit * unit

    def resumes(position: int) -> bool:
        for group, have in zip(groups, cached, strict=True):
            beyond = position + group.block_size
            if (
                eagle
                and group.kind != "recurrent"
                and position
                and (beyond > known or beyond not in have)
            ):
                return False
            if not holds(group, have, position):
                return False
        return True

    return max(position for position in range(0, tokens, alignment) if resumes(position))


@for_every(vectors("vllm", "lookup", "valid"))
def test_a_hit_is_the_longest_length_that_every_group_holds(vector: Any) -> None:
    asked = vector.input
    caching = asked.config.get("enable_caching", True)
    resume = longest(asked.groups, asked.cached, asked.tokens, asked.config) if caching else 0
    assert vector.expected.resume == resume


@for_every(vectors("vllm", "lookup", "valid"))
def test_a_shared_prefix_boundary_is_where_full_attention_alone_would_end(vector: Any) -> None:
    """What others share goes on to there; releases before 0.26 do not notice."""
    asked = vector.input
    pinned = len(asked.groups) > 1 and asked.config.get("release", "0.33") >= "0.26"
    alone = longest(asked.groups[:1], asked.cached[:1], asked.tokens, asked.config)
    if len(asked.groups) > 1:
        alignment, unit, _ = sizes(asked.groups, asked.config)
        given_back = asked.groups[0].block_size if asked.config.get("use_eagle") else 0
        reach = range(0, asked.tokens + given_back, alignment)
        known = min(asked.tokens - 1 + given_back, asked.tokens // unit * unit)
        alone = max(p for p in reach if p <= known and holds(asked.groups[0], asked.cached[0], p))
        alone = max(alone - given_back, 0)
    expected = alone if pinned and alone > vector.expected.resume else 0
    assert vector.expected.shared_prefix_boundary == expected


@for_every(vectors("vllm", "lookup", "valid"))
def test_the_columns_of_a_hit_are_those_that_the_next_query_reads(vector: Any) -> None:
    resume = vector.expected.resume
    columns = vector.expected.columns
    if not resume:
        assert columns == []
        return
    for group, found in zip(vector.input.groups, columns, strict=True):
        state = range(resume - 1, resume)
        tokens = state if group.kind == "recurrent" else read_by(group, resume)
        assert found == sorted({token // group.block_size for token in tokens}), group


def test_the_lengths_that_an_acceptable_hit_allows_are_the_lawful_ones() -> None:
    (vector,) = vectors("vllm", "lookup", "acceptable")
    asked = vector.input
    lawful = [
        p
        for p in range(0, asked.tokens, 16)
        if all(map(holds, asked.groups, asked.cached, [p] * len(asked.groups)))
    ]
    assert vector.expected.legal == lawful == [0, 16, 32, 48, 64, 80, 96]


def boundaries(vector: Any) -> Iterable[int]:
    """Yield the positions at which a hit may end after retention, by the interval and by what is
    reachable.
    """
    asked = vector.input
    alignment = sizes(asked.groups, asked.config)[0]
    interval = asked.config["retention_interval"]
    every = alignment if interval is None else interval
    if every:
        yield from range(every, EVERYTHING, every)
    if interval is not None:
        for reachable in asked.reachable:
            yield reachable // alignment * alignment


@for_every(vectors("vllm", "retention"))
def test_a_mask_keeps_what_an_allowed_boundary_reads_and_nothing_else(vector: Any) -> None:
    asked = vector.input
    group = asked.groups[asked.group]
    size = asked.groups[asked.group].block_size
    kept = set()
    for boundary in boundaries(vector):
        if group.kind == "recurrent":
            kept.add(boundary // size - 1)
            continue
        tokens = set(read_by(group, boundary))
        if asked.config.get("use_eagle"):
            tokens |= set(range(boundary, boundary + size))
        kept |= {token // size for token in tokens}
    if group.kind == "recurrent" and asked.config["retention_interval"] is None:
        kept |= set(range(EVERYTHING))
    assert vector.expected.kept == [
        column for column in range(asked.first, asked.stop) if column in kept
    ]


@for_every(vectors("vllm", "split"))
def test_a_chunk_is_the_longest_that_leaves_every_wanted_state(vector: Any) -> None:
    """Ends are tried from the farthest: none may lie beyond a place where a state is wanted, or
    inside a block.
    """
    asked = vector.input
    size = next(group.block_size for group in asked.groups if group.kind == "recurrent")
    alignment, unit, _ = sizes(asked.groups, asked.config)
    prefill_end = max(asked.prompt, asked.known - 1)
    if asked.start >= prefill_end:
        assert vector.expected.tokens == asked.asked
        return
    gives_back = asked.config.get("use_eagle", False)

    def last_resumable(tokens: int, step: int) -> int:
        usable = tokens // step * step - step if gives_back else (tokens - 1) // step * step
        return max(usable, 0)

    whole = last_resumable(asked.known, size)
    tail = last_resumable(asked.prompt, unit)
    wanted = {whole, asked.shared_prefix_boundary // size * size, -(-asked.start // size) * size}
    if alignment < size and whole < tail < asked.prompt:
        wanted.add(tail)
    farthest = asked.start + asked.asked
    too_wide = (
        size > asked.config.get("max_num_batched_tokens", 2048)
        and farthest // size * size <= asked.start
    )

    def may_end(end: int) -> bool:
        passed = any(asked.start < place < end for place in wanted)
        lawful = (
            end % size == 0 or end >= prefill_end or end in wanted or (too_wide and end == farthest)
        )
        return lawful and not passed

    ends = [end for end in range(farthest, asked.start, -1) if may_end(end)]
    assert vector.expected.tokens == (ends[0] - asked.start if ends else 0)


@for_every(vectors("vllm", "sizing", "valid"))
def test_sizes_follow_from_the_blocks_of_all_groups(vector: Any) -> None:
    groups = vector.input.groups
    config = vector.input.config
    values = vector.expected.values
    alignment, unit, common = sizes(groups, config)
    found = [values[name] for name in ("alignment", "hash_block_size", "scheduler_block_size")]
    assert found == [alignment, unit, common]
    assert values["eagle_drop_tokens"] == (alignment if config.get("use_eagle") else 0)
    prunable = any(group.kind != "full" for group in groups)
    by_release = None if config.get("release") == "0.26" else 0
    assert values["retention_interval"] == (
        config.get("retention_interval", by_release) if prunable else None
    )


@for_every([v for v in vectors("vllm", "sizing", "valid") if "tokens" in v.input.config])
def test_a_request_needs_its_blocks_a_state_and_no_more_of_a_window_than_it_holds_at_once(
    vector: Any,
) -> None:
    config = vector.input.config
    tokens = config["tokens"]
    step = config.get("max_num_batched_tokens", 2048)
    needed = 0
    for group in vector.input.groups:
        blocks = math.ceil(tokens / group.block_size)
        if group.kind == "recurrent":
            blocks = 1
        elif group.kind == "sliding":
            blocks = min(blocks, math.ceil((group.window - 1 + step) / group.block_size) + 1)
        needed += blocks
    assert vector.expected.values["blocks_for_tokens"] == needed
