"""What an engine says that it takes is what is drawn and run; what it refuses all the same is one
line.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli.options import configurations_of
from cachewitness.core.trace_format import Layout, Level
from cachewitness.engines import policy as policies
from cachewitness.engines.accepts import Accepts, group_of
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.refusals import refusals
from cachewitness.report.summary import NotRun
from cachewitness.sessions.fuzz.draw import Restriction, draw
from cachewitness.workloads.source import Seeded

STATES = Accepts(
    kinds=("full", "recurrent"),
    block_sizes=(4, 64),
    one_block_size=True,
    groups_max=2,
    options={"retention_interval": (0,), "max_model_len": ()},
)


def spec(accepts: Accepts | None) -> EngineSpec:
    reference = parse("reference")
    return replace(reference, kind=replace(reference.kind, accepts=accepts))


@pytest.mark.parametrize("level", ["manager", "scheduler"])
def test_what_is_drawn_is_taken(level: Level) -> None:
    """Every kind, size and option that is declared is drawn, and nothing else."""
    chosen = Restriction(historic=False, accepts=STATES)
    drawn = [draw(Seeded(f"a/{n}"), "vllm", level, chosen) for n in range(200)]
    assert [STATES.refusal(one.layout, one.options) for one in drawn] == [""] * 200
    groups = [group for one in drawn for group in one.layout.groups]
    assert {(group.kind, group.block_size) for group in groups} == {
        (kind, size) for kind in STATES.kinds for size in STATES.block_sizes
    }
    assert {len(one.layout.groups) for one in drawn} == {1, 2}
    names = {name for one in drawn for name in one.options}
    assert names == set(STATES.options or ()) - ({"max_model_len"} if level == "manager" else set())


@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_draws_within_it(policy: str) -> None:
    """Also one that varies its own configurations."""
    taken = Accepts(options={})
    level = policies.get(policy).levels[0]
    for number in range(40):
        try:
            one = draw(Seeded(f"b/{number}"), policy, level, Restriction(accepts=taken))
        except UsageError:
            continue  # the policy refuses the layout
        known = [known for known in policies.get(policy).configurations() if not known.options]
        assert not one.options or not known


def test_a_run_tries_what_is_taken() -> None:
    """Of the policy's configurations, or layouts that are made up where it has none."""
    every = configurations_of("vllm", (), (), None, spec(None)).configurations
    only = Accepts(kinds=("full",), groups_max=1, options={})
    run = configurations_of("vllm", (), (), None, spec(only)).configurations
    assert [one.name for one in run] == ["full"] and len(every) > 20
    made = configurations_of("vllm", (), (), None, spec(STATES)).configurations
    assert [one.name for one in made] == ["full4", "recurrent4", "full4-recurrent4"]


def test_kinds_that_a_layout_must_have_are_always_drawn() -> None:
    """In front of further groups, in their order; what lacks one is refused."""
    kinds = ("full", "recurrent")
    both = Accepts(kinds=kinds, requires=kinds, groups_max=3, one_block_size=True)
    chosen = Restriction(historic=False, accepts=both)
    drawn = [draw(Seeded(f"r/{n}"), "vllm", "manager", chosen) for n in range(50)]
    rows = [tuple(group.kind for group in one.layout.groups) for one in drawn]
    assert all(row[:2] == kinds for row in rows)
    assert {len(row) for row in rows} == {2, 3}
    alone = Layout("a", [group_of("full", 16, 0)])
    assert both.refusal(alone, {}) == "layouts without recurrent groups"
    assert [layout.name for layout in both.made_up()] == ["full16-recurrent16"]
    run = configurations_of("vllm", (), (), None, spec(both)).configurations
    assert all(set(kinds) <= {g.kind for g in one.layout.groups} for one in run)
    with pytest.raises(UsageError, match="`requires` names 'sliding', which `kinds`"):
        Accepts(kinds=("full",), requires=("sliding",))


def test_what_was_named_is_tried_whatever_is_declared() -> None:
    """The engine says itself why it refuses what the user asked for."""
    only = Accepts(kinds=("full",))
    named = configurations_of("vllm", ["full-mamba"], (), None, spec(only))
    assert {one.layout.name for one in named.configurations} == {"full-mamba"}


def test_a_refusal_says_what_does_not_fit() -> None:
    """A kind, a size, unequal sizes, too many groups, an option or its value."""
    full = group_of("full", 4, 0)
    other = group_of("full", 64, 0)
    window = group_of("sliding", 4, 8)
    reasons = [
        STATES.refusal(Layout("a", groups), options)
        for groups, options in [
            ([full], {"max_model_len": 7}),
            ([full, window], {}),
            ([group_of("full", 7, 0)], {}),
            ([full, other], {}),
            ([full] * 3, {}),
            ([full], {"use_eagle": True}),
            ([full], {"retention_interval": 4}),
        ]
    ]
    assert reasons == [
        "",
        "sliding groups",
        "block size 7",
        "unequal block sizes",
        "3 groups",
        "option use_eagle",
        "option retention_interval",
    ]


def test_refusals_are_one_line() -> None:
    """Counts by reason, whatever the layouts were called; the rarest together."""
    entries = [NotRun("configurations", f"layout 'l{n}': block size 7", 1) for n in range(20)]
    entries += [NotRun("configurations", "windows", 11)]
    assert refusals(entries, 1845) == (
        "31 of 1,845 configurations refused: block size 7 (20), windows (11)"
    )
    entries += [NotRun("configurations", f"option {n}", n) for n in range(1, 6)]
    assert refusals(entries, 1845) == (
        "46 of 1,845 configurations refused: block size 7 (20), windows (11), option 5 (5),"
        " option 4 (4), 3 other reasons (6)"
    )
