"""The configurations that a suite runs on: a layout and the options of the policy.

Configurations with options of the scheduler (drafts, steps in flight, a second tier) are run at
scheduler level only. The policy names the configurations of a run in which the user chose nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachewitness.core.trace_format import GroupSpec, Layout, Level
from cachewitness.workloads.scenarios.shape import LeastPages, Shape

SCHEDULER_OPTIONS = (
    *("num_speculative_tokens", "async_depth", "tier_pages", "tier_delay"),
    *("scheduling_policy", "max_loras", "encoder_budget", "structured_output"),
)


def named(layout: str, options: Mapping[str, Any]) -> str:
    """Return the name of the configuration of a layout with options."""
    text = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{layout}[{text}]" if text else layout


@dataclass(frozen=True)
class Configuration:
    """A configuration by name, `full-mamba[retention_interval=0]` for example.

    Without a `policy` it is of an engine at answers level, whose own the options are.
    """

    layout: Layout
    options: dict[str, Any] = field(default_factory=dict)
    policy: str = "vllm"
    least_pages: LeastPages | None = None
    """The smallest pool that the policy accepts with a trace's options; None: any."""

    @property
    def name(self) -> str:
        """The layout's name and the options that were set."""
        return named(self.layout.name, self.options)

    def runs_at(self, level: Level) -> bool:
        """Whether the options mean something at a level."""
        if (level == "answers") != (not self.policy):
            return False
        return level in ("scheduler", "answers") or not any(
            self.options.get(name) for name in SCHEDULER_OPTIONS
        )

    def shape(self, level: Level) -> Shape:
        """Return the measures of the configuration at a level."""
        return Shape(self.layout, self.options, level, self.policy, self.least_pages)


def of_groups(
    source: str, name: str, story: str, *groups: GroupSpec, **options: Any
) -> Configuration:
    """Return a configuration over a layout that is made for it: what it shows, and where it comes
    from.
    """
    return Configuration(Layout(name, list(groups), story=story, source=source), options)
