"""vLLM's lifecycles, judged by their facts alone: lawful hits, runs without gaps, states where
chunks ended, no block lost.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from cachewitness.vectors.form import LifecycleExpected
from suites.support.lifecycle_replay import Keys, Life, story
from suites.support.published_vectors import for_every, vectors
from suites.support.vllm_boundaries import holds, sizes

ALL = vectors("vllm", "lifecycle")
PLAIN = [
    v
    for v in ALL
    if not {"use_eagle", "num_speculative_tokens", "tier_pages"} & set(v.input.header.options)
]


def hit_of(groups: list[Any], keys: Keys, life: Life, upto: int, alignment: int) -> int:
    """Return the longest aligned length below `upto` at which every group can resume."""
    have = [keys.lengths(index, life, upto) for index in range(len(groups))]
    lengths = range(0, upto, alignment)
    return next(
        p
        for p in reversed(lengths)
        if all(holds(group, own, p) for group, own in zip(groups, have, strict=True))
    )


def judge_hits(vector: Any) -> int:
    """Hold every hit against the keys that there were, and return how many there were."""
    groups = vector.input.header.layout.groups
    alignment = sizes(groups, vector.input.header.options)[0]
    keys = Keys(len(groups))
    hits = 0
    for lives, fact in story(vector):
        before = copy.deepcopy(keys)
        for group, r, length in fact.published:
            keys.publish(group, lives[r].content(length))
        after = copy.deepcopy(keys)
        for group, r, length in fact.unpublished:
            keys.unpublish(group, lives[r].content(length))
        least = copy.deepcopy(before)
        for group, r, length in fact.unpublished:
            if least.lengths(group % len(groups), lives[r], length)[-1:] == [length]:
                least.unpublish(group, lives[r].content(length))
        for r, reported, resume in fact.hits:
            life = lives[r]
            known = max(len(life.prompt), (life.reached or 0) + 1)
            assert reported == resume < known
            assert hit_of(groups, least, life, len(life.prompt), alignment) <= resume
            assert resume <= hit_of(groups, after, life, max(known, resume + 1), alignment)
            hits += resume > 0
        for r, _, stop in fact.runs:
            lives[r].reached = max(lives[r].reached or 0, stop)
    return hits


@for_every(PLAIN)
def test_a_hit_is_what_the_published_keys_allow_and_no_less(vector: Any) -> None:
    """Keys of the same operation may count or not (who was scheduled first is not told), so the
    hit lies between.
    """
    judge_hits(vector)


def test_most_lives_hit_something() -> None:
    """What is judged above is there."""
    assert sum(judge_hits(vector) > 0 for vector in PLAIN) > len(PLAIN) * 3 // 4


@pytest.mark.parametrize("by", [-16, 16])
def test_a_hit_that_is_a_block_off_is_noticed(by: int) -> None:
    """The judgement above is able to fail, either way."""
    (vector,) = [v for v in PLAIN if v.id == "lifecycle/replay/full-mamba[retention_interval=0]/33"]
    facts = [
        msgspec.structs.replace(
            fact,
            hits=[
                (r, hit + by, hit + by) if r == "again" else (r, hit, hit)
                for r, hit, _ in fact.hits
            ],
        )
        for fact in vector.expected.facts
    ]
    wrong = msgspec.structs.replace(vector, expected=LifecycleExpected(facts))
    with pytest.raises(AssertionError):
        judge_hits(wrong)


@for_every(ALL)
def test_runs_follow_one_another_from_where_the_hit_ended(vector: Any) -> None:
    """A run starts at the hit or where the last one stopped; less only where drafts were
    rejected or it was withdrawn.
    """
    drafts = vector.input.header.options.get("num_speculative_tokens", 0)
    at: dict[str, int] = {}
    for _, fact in story(vector):
        at |= {r: resume for r, _, resume in fact.hits}
        for r, start, stop in fact.runs:
            assert at[r] - drafts <= start <= at[r] < stop
            at[r] = stop
        assert vector.result == "acceptable" or all(r in at for r in fact.preempted)


@for_every([v for v in PLAIN if "withdrawn" not in v.id])
def test_no_state_is_published_but_where_a_chunk_ended(vector: Any) -> None:
    """The key of a recurrent group names a position at which a run of that request stopped, in
    this step or before.
    """
    groups = vector.input.header.layout.groups
    ends: dict[str, set[int]] = {}
    for _, fact in story(vector):
        for r, _, stop in fact.runs:
            ends.setdefault(r, set()).add(stop)
        for group, r, length in fact.published:
            if groups[group % len(groups)].kind == "recurrent":
                assert length in ends[r]


@for_every(ALL)
def test_every_block_is_free_held_or_cached(vector: Any) -> None:
    """The null block is in none of the three; at the end nobody holds anything, unless somebody
    still runs.
    """
    header = vector.input.header
    last = {}
    for _, fact in story(vector):
        for pool, free, held, cached in fact.counts:
            assert free >= 0 and held >= 0 and cached >= 0
            assert free + held + cached == (
                header.pages - 1 if pool == 0 else header.options["tier_pages"]
            )
            last[pool] = held
    assert last[0] == 0
