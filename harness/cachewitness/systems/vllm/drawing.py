"""What is drawn for vLLM's own scheduler, beside what is drawn for its policy: requests of special
kinds, drafts in steps in flight, chunked attention, a connector's memory.

Mostly one kind of them is in a configuration, now and then two. What vLLM is not driven with is
decided here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from cachewitness.core.trace_format import GroupSpec, Layout, Level
from cachewitness.engines.own_drawing import OwnDrawing
from cachewitness.systems.vllm.connectors.build import KINDS
from cachewitness.systems.vllm.request_options import NAMES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.source import Source

Options = dict[str, Any]
_TIER = ("tier_pages", "tier_delay")
_INTERVAL = "retention_interval"
_KINDS = (0, 1, 1, 1, 1, 2)
"""How many kinds of special requests are in a configuration."""
_IN_FLIGHT, _CHUNKED, _REMEMBERED = 35, 8, 75
"""In so many of a hundred configurations steps with drafts overlap; a window is a chunk; a
connector's memory has a size of its own."""
_WITH_FULL = ("simple", "simple-lazy", "multi")
"""Connectors that want full attention among the groups."""
_ALONE = ("example",)
"""Connectors that vLLM refuses over several groups."""
_APART = ("hisparse", "tensors")
"""Options of the engine's name beside which nothing of this is drawn."""


def own(options: Mapping[str, Any], given: Mapping[str, str]) -> Collection[str]:
    """Return those of the user's options that the reference is not asked for."""
    names = {*NAMES} | ({*_TIER} if given.get("connector") else set())
    if options.get("num_speculative_tokens"):
        names.add("async_depth")
    return names & options.keys()


def draw(
    source: Source,
    configuration: Configuration,
    level: Level,
    given: Mapping[str, str],
    fixed: Collection[str],
) -> Configuration:
    """Draw for vLLM's scheduler; see `cachewitness.engines.own_drawing.DrawOwn`."""
    layout = configuration.layout
    options = dict(configuration.options)
    for name in _lacking(options, layout, given).difference(fixed):
        options.pop(name, None)
    if level == "manager" or any(given.get(name) for name in _APART):
        return replace(configuration, options=options)
    if "layout" not in fixed:
        layout = _chunked(layout, options) if source.chance(_CHUNKED) else layout
        layout = _attending(layout) if given.get("connector", "") in _WITH_FULL else layout
        layout = _of(layout, layout.groups[:1]) if given.get("connector") in _ALONE else layout
    if not any(group.kind in ("sliding", "recurrent") for group in layout.groups):
        options = {name: options[name] for name in options if name in fixed or name != _INTERVAL}
    for more in _drawn(source, layout, options, given):
        options |= {name: value for name, value in more.items() if name not in fixed}
    return replace(configuration, layout=layout, options=options)


def _lacking(options: Options, layout: Layout, given: Mapping[str, str]) -> set[str]:
    """Return the options that were drawn for the policy and that vLLM has not."""
    names = {"pages_per_snapshot"}
    if not given.get("connector"):
        names.update(_TIER)
    elif options.get("enable_caching") is False:
        names.update(("enable_caching", "mamba_cache_mode"))
    if options.get("enable_caching") is False:
        names.add("hash_block_size")
    if options.get("max_num_batched_tokens", 0) <= options.get("num_speculative_tokens", 0):
        names.add("max_num_batched_tokens")
    return names


def _drawn(
    source: Source, layout: Layout, options: Options, given: Mapping[str, str]
) -> Iterator[Options]:
    """Yield options, one bundle after another."""
    if given.get("connector") and "tier_pages" not in options and source.chance(_REMEMBERED):
        yield {"tier_pages": source.choice((4, 16, 48, 96))}
        yield {"tier_delay": source.choice((0, 1, 1, 2, 3))}
    if options.get("num_speculative_tokens") and source.chance(_IN_FLIGHT):
        yield {"async_depth": source.integer(1, 2)}
    kinds = [kind for kind, fits in SPECIAL.items() if fits(layout, options, given)]
    for _ in range(min(source.choice(_KINDS), len(kinds))):
        kinds.remove(kind := source.choice(kinds))
        yield _values(source, kind, layout)


def _values(source: Source, kind: str, layout: Layout) -> Options:
    """Return an option of special requests with a value."""
    longest = max(group.block_size for group in layout.groups)
    values: dict[str, Callable[[], object]] = {
        "scheduling_policy": lambda: "priority",
        "max_loras": lambda: source.integer(1, 2),
        "encoder_budget": lambda: source.choice((1, 4, 8, 16)),
        "prefill_checkpoints": lambda: source.choice((1, longest)),
        "rswa_window": lambda: max(source.integer(1, 2) * longest + source.integer(-1, 1), 1),
    }
    return {kind: values[kind]() if kind in values else True}


Fits = Callable[[Layout, Mapping[str, Any], Mapping[str, str]], bool]


def _has(kind: str) -> Fits:
    return lambda layout, options, given: any(group.kind == kind for group in layout.groups)


def _anywhere(layout: Layout, options: Mapping[str, Any], given: Mapping[str, str]) -> bool:
    return True


def _goes_on(layout: Layout, options: Mapping[str, Any], given: Mapping[str, str]) -> bool:
    """Whether sessions are driven: not behind connectors with which they were not tried, nor over
    states with drafts. Those are moved by a stand-in where vLLM's first runner follows; with the
    second, drafts behind the end of an answer are not explained yet.
    """
    connector = KINDS.get(given.get("connector", ""))
    if connector is not None and not connector.goes_on:
        return False
    drafts = options.get("num_speculative_tokens") or options.get("use_eagle")
    states = _has("recurrent")(layout, options, given)
    return not (drafts and states)


SPECIAL: Mapping[str, Fits] = {
    "scheduling_policy": _anywhere,
    "max_loras": _anywhere,
    "adapter_paths": _anywhere,
    "encoder_budget": _anywhere,
    "structured_output": _anywhere,
    "prompt_logprobs": _anywhere,
    "sessions": _goes_on,
    "prefill_checkpoints": _has("recurrent"),
    "shared_prefix_checkpoints": lambda layout, options, given: (
        bool(options.get("use_eagle")) and _has("recurrent")(layout, options, given)
    ),
    "rswa_window": _has("full"),
}
"""The options of special requests, and whether vLLM is driven with each on a configuration."""


def _chunked(layout: Layout, options: Options) -> Layout:
    """Return the layout with chunked attention in the place of windows, in chunks of whole blocks
    that are as long as they; the same where vLLM refuses that: beside EAGLE, and where hits are
    finer than a block.

    Where a chunk ends inside a block vLLM 0.33.0 resumes in front of that end without what the
    chunk had before (`ChunkedLocalAttentionManager.find_longest_cache_hit`). No model has such.
    """
    sizes = {group.block_size for group in layout.groups}
    if len(sizes) > 1 or options.get("use_eagle") or options.get("hash_block_size"):
        return layout
    return _of(
        layout,
        [
            GroupSpec(
                kind="chunked",
                block_size=group.block_size,
                chunk=group.window // group.block_size * group.block_size,
            )
            if group.kind == "sliding" and group.window >= group.block_size
            else group
            for group in layout.groups
        ],
    )


def _attending(layout: Layout) -> Layout:
    """Return the layout with full attention in the place of its first group if it has none."""
    first, *others = layout.groups
    if any(group.kind == "full" for group in layout.groups):
        return layout
    return _of(layout, [GroupSpec(kind="full", block_size=first.block_size), *others])


def _of(layout: Layout, groups: list[GroupSpec]) -> Layout:
    """Return the layout with other groups, named after them."""
    names = [
        f"{group.kind}{group.block_size}"
        + (f"w{group.window}" if group.window else "")
        + (f"c{group.chunk}" if group.chunk else "")
        for group in groups
    ]
    return msgspec.structs.replace(layout, name="-".join(names), groups=groups)


DRAWING = OwnDrawing(draw, own)
