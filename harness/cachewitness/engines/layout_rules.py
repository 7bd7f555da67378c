"""What a policy's system makes of a layout that the user named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cachewitness.core.trace_format import Layout
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.model import Model
from cachewitness.workloads.scenarios.shape import LeastPages

Fit = Callable[[Layout, Model | None, Mapping[str, Any], str], tuple[Layout, dict[str, Any]]]
"""Given a layout, its model if it has one, options and a release (empty: the newest): the layout
and the options of a run."""


@dataclass(frozen=True)
class LayoutRules:
    """What becomes of a layout. Each part may be None: then the groups are as the layout says, in
    one configuration without options, with a pool of any size.
    """

    variants: Callable[[Layout], list[Configuration]] | None = None
    """The configurations of a layout."""
    fit: Fit | None = None
    """What the system makes of a layout; raises UsageError."""
    remarks: Callable[[Layout, Mapping[str, Any], str], list[str]] | None = None
    """What a run on such a layout replaces of the system's own defaults, and by what."""
    least_pages: LeastPages | None = None
    """The smallest pool, in pages, that the policy accepts with a trace's options."""
