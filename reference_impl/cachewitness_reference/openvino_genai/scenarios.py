"""The six scenarios of the document and its four recommended starting points, as configurations
with names.

The document says which settings to make and leaves the sizes to the user; the sizes here are
examples. A scenario that the document gives with a choice ("num_kv_blocks explicitly or
cache_size", with or without prefix caching) has a variant for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cachewitness_reference.openvino_genai.config import SchedulerConfig
from cachewitness_reference.openvino_genai.spec import SIZE_MAX

Sizing = Literal["explicit", "budget", "dynamic"]


@dataclass(frozen=True)
class Scenario:
    """A named configuration: for whom it is, how its pools are sized, and what it sets."""

    name: str
    purpose: str
    sizing: Sizing
    config: SchedulerConfig


def _named(*scenarios: Scenario) -> dict[str, Scenario]:
    return {scenario.name: scenario for scenario in scenarios}


def _set(**settings: int | bool) -> SchedulerConfig:
    return SchedulerConfig(**settings)  # type: ignore[arg-type]


_STABLE = "stable production throughput on a known workload"
_CONSTRAINED = "constrained device memory with mixed cache types"
_CONCURRENT = "high concurrency, no prefix reuse"
_PREFIX = "prefix-heavy chat or repeated prompts"
_CLIENT = "single-stream or interactive client without prefix reuse"
_EXPLORE = "exploratory tuning or highly variable traffic"

SCENARIOS = _named(
    Scenario("scenario_1", _STABLE, "explicit", _set(num_kv_blocks=1024, max_num_seqs=32)),
    Scenario(
        "scenario_1_prefix",
        _STABLE,
        "explicit",
        _set(num_kv_blocks=1024, enable_prefix_caching=True),
    ),
    Scenario("scenario_2", _CONSTRAINED, "budget", _set(cache_size=1, max_num_seqs=32)),
    Scenario(
        "scenario_2_prefix",
        _CONSTRAINED,
        "budget",
        _set(cache_size=1, enable_prefix_caching=True, cache_interval_multiplier=8),
    ),
    Scenario("scenario_3", _CONCURRENT, "explicit", _set(num_kv_blocks=1024, max_num_seqs=64)),
    Scenario("scenario_3_budget", _CONCURRENT, "budget", _set(cache_size=1, max_num_seqs=64)),
    Scenario(
        "scenario_4",
        _PREFIX,
        "explicit",
        _set(num_kv_blocks=1024, enable_prefix_caching=True, cache_interval_multiplier=4),
    ),
    Scenario(
        "scenario_4_budget",
        _PREFIX,
        "budget",
        _set(cache_size=1, enable_prefix_caching=True, cache_interval_multiplier=4),
    ),
    Scenario(
        "scenario_5", _CLIENT, "explicit", _set(num_kv_blocks=1024, max_num_batched_tokens=SIZE_MAX)
    ),
    Scenario(
        "scenario_5_budget", _CLIENT, "budget", _set(cache_size=1, max_num_batched_tokens=SIZE_MAX)
    ),
    Scenario("scenario_6", _EXPLORE, "dynamic", _set()),
    Scenario("scenario_6_prefix", _EXPLORE, "dynamic", _set(enable_prefix_caching=True)),
)
"""The document's scenarios 1 to 6."""

STARTING_POINTS = _named(
    Scenario("general", "respect a memory budget", "budget", _set(cache_size=1)),
    Scenario(
        "throughput",
        "known concurrency and token capacity",
        "explicit",
        _set(num_kv_blocks=2048, max_num_batched_tokens=512, max_num_seqs=64),
    ),
    Scenario(
        "interactive",
        "one stream, little initial state",
        "dynamic",
        _set(max_num_batched_tokens=SIZE_MAX),
    ),
    Scenario(
        "prefix_heavy",
        "repeated prefixes, default interval",
        "budget",
        _set(cache_size=1, enable_prefix_caching=True),
    ),
)
"""The document's recommended starting points, where no manual tuning has been done yet."""
