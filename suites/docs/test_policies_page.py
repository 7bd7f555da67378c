"""The page about policies says what they say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.engines import policy as policies

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "policies.md").read_text(
    encoding="utf-8"
)
KINDS = [policies.get(name) for name in policies.names()]


@pytest.mark.parametrize("axis", policies.AXES)
def test_every_policy_is_on_the_page_at_every_axis(axis: str) -> None:
    """A row for each axis, a column for each policy, in the words of the policy's specification."""
    row = (
        f"| **{axis}**: {policies.AXES[axis]} | "
        + " | ".join(kind.axes[axis] for kind in KINDS)
        + " |"
    )
    assert row in PAGE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_does_not_apply_is_on_the_page_with_its_reason(kind: policies.PolicyKind) -> None:
    """Nothing that a run prints as not applicable for the whole policy is missing, and the rules
    are counted right.
    """
    for invariant, why in kind.not_applicable.items():
        assert f"| `{kind.name}` | {invariant} | {why} |" in PAGE
    there = sum(rule.implemented for rule in kind.rules)
    assert f"| {there} of {len(kind.rules)} |" in next(
        line for line in PAGE.splitlines() if line.startswith(f"| [`{kind.name}`]")
    )


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    """A name that is nearly one says which."""
    with pytest.raises(UsageError, match="no policy is called 'furios'; did you mean 'furiosa'"):
        policies.get("furios")
