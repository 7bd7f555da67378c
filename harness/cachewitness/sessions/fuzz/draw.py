"""Draws configurations: cache groups, options of the policy, a level.

A policy may define how its layouts and options are drawn
(`cachewitness.engines.policy.PolicyKind.draw`). For a policy that does not, one of its own
configurations is drawn, with options of its other configurations.

An option that the policy refuses beside those drawn before is left out, so the policy's own checks
decide which options go together, and the rules are not repeated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Layout, Level, TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.source import Source

_PAGES = 512
"""A pool in which every configuration can be tried, whatever the pool it is run with."""
Options = dict[str, Any]


@dataclass(frozen=True)
class Restriction:
    """What the user chose, so that it is not drawn: `layouts` (any of them), `options` (all of
    them).

    `historic`: releases of the policy's system may be drawn too; the installed engine is of one
    release and cannot follow. `whole`: the engine has these layouts with these options, and no
    others.
    """

    layouts: Sequence[Layout] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    historic: bool = True
    whole: bool = False


def draw(source: Source, policy: str, level: Level, chosen: Restriction) -> Configuration:
    """Draw a configuration that the policy accepts at a level.

    Raises UsageError if the policy refuses what the user chose.
    """
    kind = policies.get(policy)
    drawn: Options = {}
    wanted: Iterable[Options]
    if kind.drawing is not None:
        given = source.choice(chosen.layouts) if chosen.layouts else None
        layout, wanted = kind.drawing.draw(source, given, level, historic=chosen.historic)
    else:
        configurations = [
            configuration for configuration in kind.configurations() if configuration.runs_at(level)
        ]
        configuration = source.choice(configurations)
        layout = source.choice(chosen.layouts) if chosen.layouts else configuration.layout
        drawn = {} if chosen.layouts else dict(configuration.options)
        wanted = _seen_options(source, configurations)
    drawn |= chosen.options
    configuration = Configuration(layout, drawn, policy, kind.layouts.least_pages)
    _open(configuration, level)
    for bundle in wanted if not chosen.whole else ():
        if not bundle.keys() & configuration.options.keys():
            configuration = _with(configuration, bundle, level)
    return configuration


def _with(configuration: Configuration, bundle: Options, level: Level) -> Configuration:
    """Return the configuration with further options; without them if the policy refuses them."""
    more = Configuration(
        configuration.layout,
        configuration.options | bundle,
        configuration.policy,
        configuration.least_pages,
    )
    if not more.runs_at(level):
        return configuration
    try:
        _open(more, level)
    except UsageError:
        return configuration
    return more


def _open(configuration: Configuration, level: Level) -> None:
    """Raise UsageError if the policy refuses the configuration."""
    header = TraceHeader(
        name="drawn",
        layout=configuration.layout,
        pages=_PAGES,
        level=level,
        policy=configuration.policy,
        options=dict(configuration.options),
    )
    kind = policies.get(configuration.policy)
    if kind.drawing is not None:
        kind.drawing.refuse(header)
    else:
        kind.open(header, {}).close()


def _seen_options(source: Source, configurations: Sequence[Configuration]) -> Iterator[Options]:
    """Yield options of the policy's configurations, each with some probability."""
    seen: dict[str, list[Any]] = {}
    for configuration in configurations:
        for name, value in configuration.options.items():
            if value not in seen.setdefault(name, []):
                seen[name].append(value)
    for name, values in seen.items():
        if source.chance(40):
            yield {name: source.choice(values)}
