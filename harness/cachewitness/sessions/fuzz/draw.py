"""Draws configurations: cache groups, options of the policy, a level.

A policy may define how its layouts and options are drawn
(`cachewitness.engines.policy.PolicyKind.draw`). For a policy that does not, one of its own
configurations is drawn, with options of its other configurations.

An engine may say what it takes (`cachewitness.engines.accepts.Accepts`): then the layout is drawn
within that, and options that it does not take are left out.

An option that the policy refuses beside those drawn before is left out, so the policy's own checks
decide which options go together, and the rules are not repeated here. What an engine has and its
policy's reference has not is drawn last, as the engine says
(`cachewitness.engines.own_drawing.OwnDrawing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Layout, Level, TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.accepts import DEFAULT_KINDS, GROUPS_MAX, Accepts, group_of, layout_of
from cachewitness.engines.registry import EngineSpec
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.source import Source

_PAGES = 512
"""A pool in which every configuration can be tried, whatever the pool it is run with."""
_SIZES = (2, 3, 4, 6, 8, 12, 16)
"""Block sizes, in tokens, for an engine that takes any."""
_UNIT_MAX = 48
"""The longest scheduler block of unequal block sizes, in tokens."""
Options = dict[str, Any]


@dataclass(frozen=True)
class Restriction:
    """What the user chose, so that it is not drawn: `layouts` (any of them), `options` (all of
    them), `own` (options that the engine has and its policy has not).

    `historic`: releases of the policy's system may be drawn too; the installed engine is of one
    release and cannot follow. `whole`: the engine has these layouts with these options, and no
    others. `accepts`: which layouts and options the engine takes; None: it does not say.
    """

    layouts: Sequence[Layout] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    historic: bool = True
    whole: bool = False
    accepts: Accepts | None = None
    own: Mapping[str, Any] = field(default_factory=dict)


def draw(
    source: Source,
    policy: str,
    level: Level,
    chosen: Restriction,
    engine: EngineSpec | None = None,
) -> Configuration:
    """Draw a configuration that the policy accepts at a level, and for an engine what it alone
    has; None: for the policy's reference.

    Raises UsageError if the policy refuses what the user chose.
    """
    kind = policies.get(policy)
    drawn: Options = {}
    wanted: Iterable[Options]
    accepts = chosen.accepts
    if kind.drawing is not None:
        given = source.choice(chosen.layouts) if chosen.layouts else None
        if given is None and accepts is not None:
            given = _layout_within(source, accepts)
        layout, wanted = kind.drawing.draw(source, given, level, historic=chosen.historic)
    else:
        configurations = [
            configuration for configuration in kind.configurations() if configuration.runs_at(level)
        ]
        if accepts is not None:
            configurations = accepts.within(configurations) or configurations
        configuration = source.choice(configurations)
        layout = source.choice(chosen.layouts) if chosen.layouts else configuration.layout
        drawn = {} if chosen.layouts else dict(configuration.options)
        wanted = _seen_options(source, configurations)
    drawn |= chosen.options
    configuration = Configuration(layout, drawn, policy, kind.layouts.least_pages)
    _open(configuration, level)
    for bundle in wanted if not chosen.whole else ():
        taken = accepts is None or all(accepts.takes(*option) for option in bundle.items())
        if taken and not bundle.keys() & configuration.options.keys():
            configuration = _with(configuration, bundle, level)
    return (
        configuration
        if engine is None
        else _of_engine(source, configuration, level, chosen, engine)
    )


def _of_engine(
    source: Source,
    configuration: Configuration,
    level: Level,
    chosen: Restriction,
    engine: EngineSpec,
) -> Configuration:
    """Return a configuration of the policy with what is drawn for an engine, and with the user's
    options that only the engine knows.
    """
    configuration = replace(configuration, options={**configuration.options, **chosen.own})
    drawing = engine.kind.drawing
    if drawing is None or chosen.whole:
        return configuration
    fixed = {*chosen.options, *chosen.own, *(["layout"] if chosen.layouts else [])}
    return drawing.draw(source, configuration, level, engine.options, fixed)


def _layout_within(source: Source, accepts: Accepts) -> Layout:
    """Draw a layout that an engine takes; windows and chunks end on, before and behind a block."""
    kinds = accepts.kinds or DEFAULT_KINDS
    required = accepts.requires
    least = max(len(required), 1)
    count = source.integer(least, max(least, min(accepts.groups_max or GROUPS_MAX, GROUPS_MAX)))
    sizes = [source.choice(accepts.block_sizes or _SIZES) for _ in range(count)]
    if accepts.one_block_size or lcm(*sizes) > _UNIT_MAX:
        sizes = [max(sizes)] * count
    groups = []
    for index, size in enumerate(sizes):
        span = max(source.integer(1, 3) * size + source.integer(-1, 1), 1)
        kind = required[index] if index < len(required) else source.choice(kinds)
        groups.append(group_of(kind, size, span))
    return layout_of(groups)


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
