"""The configurations that a suite runs on: a layout and the options of the policy, a cell for short.

Options of the scheduler's alone (drafts, steps in flight, a second tier) make cells that only suites at scheduler height run.

Without a choice of the user's, the cells cover every kind of group, equal and unequal block sizes, the three kinds of retention
(dense, reachable boundaries alone, an interval), hits inside a block, snapshots of several pages and speculative look-ups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.trace import layouts
from harness.trace.format import Height, Layout
from harness.trace.scenarios.shape import Shape

SCHEDULER_OPTIONS = ("num_speculative_tokens", "async_depth", "tier_pages", "tier_delay")


@dataclass(frozen=True)
class Configuration:
    """A configuration by name, `full-mamba[retention_interval=0]` for example."""

    layout: Layout
    options: dict[str, Any] = field(default_factory=dict)
    policy: str = "vllm"

    @property
    def name(self) -> str:
        """The layout's name and the options that were set."""
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.layout.name}[{options}]" if options else self.layout.name

    def runs_at(self, height: Height) -> bool:
        """Whether the options mean something at a height."""
        return height == "scheduler" or not any(self.options.get(name) for name in SCHEDULER_OPTIONS)

    def shape(self, height: Height) -> Shape:
        """Return the measures of the cell at a height."""
        return Shape(self.layout, self.options, height, self.policy)


def default_configurations() -> list[Configuration]:
    """Return the cells of a run in which the user chose nothing."""
    configurations = [Configuration(layouts.load("full"))]
    for name in ("full-mamba", "full-swa", "full-swa-mamba", "full-mamba-unequal", "full-swa-unequal"):
        configurations += configurations_of(layouts.load(name))
    mamba, window = layouts.load("full-mamba"), layouts.load("full-swa")
    configurations += [
        Configuration(mamba, {"retention_interval": 0, "hash_block_size": 4}),
        Configuration(mamba, {"retention_interval": None, "hash_block_size": 4}),
        Configuration(mamba, {"retention_interval": 64, "pages_per_snapshot": 3}),
        Configuration(mamba, {"retention_interval": 0, "use_eagle": True}),
        Configuration(window, {"retention_interval": 64, "use_eagle": True}),
    ]
    return configurations


def scheduler_configurations() -> list[Configuration]:
    """Return the further cells of a run in which the user chose nothing, for suites at scheduler height."""
    full, mamba, window = (layouts.load(name) for name in ("full", "full-mamba", "full-swa"))
    three, unequal = layouts.load("full-swa-mamba"), layouts.load("full-mamba-unequal")
    return [
        Configuration(full, {"num_speculative_tokens": 3}),
        Configuration(mamba, {"retention_interval": 0, "num_speculative_tokens": 3}),
        Configuration(three, {"retention_interval": None, "num_speculative_tokens": 4}),
        Configuration(unequal, {"retention_interval": None, "num_speculative_tokens": 7}),
        Configuration(mamba, {"retention_interval": 64, "use_eagle": True, "num_speculative_tokens": 2}),
        Configuration(window, {"retention_interval": 64, "use_eagle": True, "num_speculative_tokens": 3}),
        Configuration(three, {"retention_interval": None, "async_depth": 1}),
        Configuration(mamba, {"retention_interval": 0, "hash_block_size": 4, "async_depth": 1}),
        Configuration(three, {"retention_interval": 0, "async_depth": 2}),
        Configuration(full, {"tier_pages": 16}),
        Configuration(three, {"retention_interval": None, "tier_pages": 96}),
        Configuration(window, {"retention_interval": 0, "tier_pages": 24}),
        Configuration(mamba, {"retention_interval": None, "tier_pages": 96, "async_depth": 1}),
        Configuration(three, {"retention_interval": None, "tier_pages": 96, "num_speculative_tokens": 3}),
        Configuration(full, {"tier_pages": 16, "tier_delay": 3}),
        Configuration(mamba, {"retention_interval": None, "tier_pages": 48, "tier_delay": 2, "async_depth": 1}),
    ]


def configurations_of(layout: Layout) -> list[Configuration]:
    """Return the three kinds of retention of one layout; one cell alone if retention governs none of its groups."""
    shape = Shape(layout)
    if not (shape.has("sliding") or shape.has("recurrent")):
        return [Configuration(layout)]
    return [Configuration(layout, {"retention_interval": interval}) for interval in (None, 0, 4 * shape.unit)]
