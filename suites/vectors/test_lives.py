"""Every policy's lifecycles, judged by their facts alone: nobody resumes on what nobody
published, and no block is lost.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.core.trace_format import GroupSpec
from suites.support.lifecycle_replay import Keys, story
from suites.support.published_vectors import files, for_every, ids

ALL = [
    vector
    for (_, kind), file in sorted(files().items())
    if kind == "lifecycle"
    for vector in file.vectors
]
KEYED = [vector for vector in ALL if vector.input.header.policy != "tensorrt_edge"]
"""TensorRT-Edge-LLM's manager has no keys; what it restores is judged where its look-ups are."""


def name(vector: Any) -> str:
    """Return the policy and the id of a vector."""
    return f"{vector.input.header.policy}-{ids(vector)}"


def lawful(group: GroupSpec, lengths: list[int], resume: int) -> bool:
    """Whether keys of these lengths, all of this very sequence, hold what the query at `resume`
    reads.
    """
    if resume == 0:
        return True
    if group.kind == "recurrent":
        return resume in lengths
    there = {
        token
        for length in lengths
        for token in range((length - 1) // group.block_size * group.block_size, length)
    }
    first = max(0, resume - group.window + 1) if group.kind == "sliding" else 0
    return set(range(first, resume)) <= there


@for_every(KEYED, name)
def test_nobody_resumes_on_what_was_not_published(vector: Any) -> None:
    """Keys of the same operation count: who was first in it is not told."""
    groups = vector.input.header.layout.groups
    keys = Keys(len(groups))
    for lives, fact in story(vector):
        for group, r, length in fact.published:
            keys.publish(group, lives[r].content(length))
        for r, reported, resume in fact.hits:
            life = lives[r]
            known = max(len(life.prompt), (life.reached or 0) + 1)
            assert resume <= reported and resume < known
            for index, group in enumerate(groups):
                assert lawful(group, keys.lengths(index, life, known), resume), (r, resume, index)
        for group, r, length in fact.unpublished:
            keys.unpublish(group, lives[r].content(length))
        for r, _, stop in fact.runs:
            lives[r].reached = max(lives[r].reached or 0, stop)


@for_every(ALL, name)
def test_runs_follow_one_another_from_where_the_hit_ended(vector: Any) -> None:
    """Less only where drafts were rejected, or where a partial preemption took the end of a
    request back.
    """
    options = vector.input.header.options
    drafts = options.get("num_speculative_tokens", 0)
    at = dict[str, int]()
    for _, fact in story(vector):
        at |= {r: resume for r, _, resume in fact.hits}
        at |= {r: 0 for r in fact.preempted if r not in dict.fromkeys(hit[0] for hit in fact.hits)}
        for r, start, stop in fact.runs:
            assert at.get(r, 0) - drafts <= start <= at.get(r, 0) < stop
            at[r] = stop


@for_every(ALL, name)
def test_every_block_is_free_held_or_cached_and_in_the_end_nobody_holds_any(vector: Any) -> None:
    """The size of a pool is what its counts add up to, always; pools of another tier may hold
    captures for ever.
    """
    sizes: dict[int, int] = {}
    held: dict[int, int] = {}
    for _, fact in story(vector):
        for pool, free, holding, cached in fact.counts:
            assert min(free, holding, cached) >= 0
            assert sizes.setdefault(pool, free + holding + cached) == free + holding + cached
            held[pool] = holding
    local = range(len(vector.input.header.layout.groups))
    assert sizes and not any(holding for pool, holding in held.items() if pool in local)


def test_each_vector_that_is_wrong_is_named() -> None:
    """The first one does not hide the others; and without a vector there is no test."""

    def holds(vector: Any) -> None:
        assert vector not in ALL[1:3], "not this one"

    with pytest.raises(AssertionError) as raised:
        for_every(ALL[:4], name)(holds)()
    lines = str(raised.value).splitlines()
    assert lines[0] == "2 of 4 vectors" and [
        line for line in lines if line.startswith(name(ALL[1]))
    ]
    assert [line for line in lines if line.startswith(f"{name(ALL[2])}: not this one")]
    for_every(ALL[3:4])(holds)()

    def raises(vector: Any) -> None:
        with pytest.raises(ValueError, match="wrong"):
            name(vector)

    with pytest.raises(AssertionError, match="2 of 2 vectors") as raised:
        for_every(ALL[:2], name)(raises)()
    assert all(f"{name(vector)}: DID NOT RAISE" in str(raised.value) for vector in ALL[:2])
    with pytest.raises(ValueError, match="no vector"):
        for_every([])


@pytest.mark.parametrize("policy", sorted({vector.input.header.policy for vector in ALL}))
def test_something_is_hit_and_something_is_not(policy: str) -> None:
    """What is judged above is there."""
    resumed = [
        hit[2]
        for v in ALL
        if v.input.header.policy == policy
        for fact in v.expected.facts
        for hit in fact.hits
    ]
    assert sum(resume > 0 for resume in resumed) >= 10 and any(resume == 0 for resume in resumed)
