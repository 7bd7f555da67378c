"""What a trace asks of vLLM, checked against the release at hand, and what vLLM declares of
itself.
"""

from __future__ import annotations

from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.version_check import takes
from cachewitness.systems.vllm.build import default_interval, tells_routers
from cachewitness.systems.vllm.header import checkpoint_alignment, key_events, retention
from cachewitness.systems.vllm.request_options import other_options, request_options
from cachewitness.systems.vllm.source import Source
from cachewitness_reference.vllm.config import ConfigError
from cachewitness_reference.vllm.spec import NEWEST, RELEASES
from cachewitness_reference.vllm_extended.config import Options

PROGRESS_STEPS = 4
"""A request waits one step for a state of the same step; the rest is margin."""

EXTENSION_ENDED = (0, 32)
"""Up to then, where hits may end inside a block, the tail of a prompt was kept at the prompt's own
end."""
STOPS_AT = (0, 33)
"""Since then a chunk is known to stop wherever a prompt's state is to be kept; before 0.32 it
stopped at another boundary where a speculative look-up gives tokens back."""


def read_options(header: TraceHeader, source: Source) -> Options:
    """Return the trace's options. Raises UsageError for one that this vLLM cannot follow."""
    request_options(header)
    try:
        options = Options.parse(other_options(header))
    except ConfigError as error:
        raise UsageError(f"trace {header.name!r}: {error}") from None
    release = release_name(source)
    if "release" in header.options and release not in ("", options.release):
        raise UsageError(
            f"trace {header.name!r}: option 'release' is {options.release!r}; this is vLLM"
            f" {source.version}"
        )
    if options.pages_per_snapshot != 1:
        raise UsageError(
            "option 'pages_per_snapshot': in vLLM a snapshot is always one block; leave it at 1"
        )
    if options.free_list != "lru":
        raise UsageError(
            "option 'free_list': vLLM has one order of its free queue, 'lru'; leave it out"
        )
    behaviour = RELEASES.get(release, RELEASES[NEWEST])
    for name in ("pin_shared_prefix_boundary", "eagle_replay_boundaries"):
        given = getattr(options, name)
        if given not in ("by release", getattr(behaviour, name)):
            raise UsageError(
                f"option {name!r}: vLLM {source.version} has no such switch; leave it out"
            )
    return options


def release_name(source: Source) -> str:
    """Return the release as `0.33`; empty for a tree that does not know its version."""
    return "{}.{}".format(*source.release) if source.release else ""


def interval_of(header: TraceHeader, options: Options, source: Source) -> int | None:
    """Return the retention interval in tokens: the trace's, or the one that this release has by
    default.
    """
    if options.retention_interval == "by release":
        recurrent = any(group.kind == "recurrent" for group in header.layout.groups)
        return default_interval(source, options, recurrent)
    return options.retention_interval


def rules_of(
    header: TraceHeader,
    options: Options,
    source: Source,
    core: Any,
    sizes: tuple[int, int],
    interval: int | None,
) -> Rules:
    """Return what vLLM declares of itself.

    `core` is its cache manager, `sizes` its (scheduler block size, hash block size), `interval`
    what it retains, in tokens.
    """
    partial_hits = bool(getattr(core.coordinator, "enable_partial_hash_hits", False))
    alignment = sizes[1] if partial_hits else sizes[0]
    return Rules(
        caching=options.enable_caching,
        alignment=alignment,
        eagle_drop_tokens=alignment if options.use_eagle else 0,
        retention=retention(
            header,
            interval,
            shared_prefix_boundary=_pins_shared_prefix_boundaries(source),
            extension=partial_hits and source.is_before(EXTENSION_ENDED),
            lowered=_lowers_boundaries(source),
        ),
        progress_steps=PROGRESS_STEPS,
        reserved_pages=int(options.watermark * header.pages),
        drafts=options.num_speculative_tokens,
        frees_behind=True,
        # States that are saved within a chunk are no reason to end it.
        checkpoint_alignment=(
            0
            if source.is_before(STOPS_AT) or header.options.get("prefill_checkpoints")
            else checkpoint_alignment(header, options, alignment)
        ),
        eagle_groups=_eagle_groups(core) if options.eagle_groups else [],
        key_events=(
            key_events(header, sizes[1])
            if tells_routers(source, options, request_options(header))
            else None
        ),
    )


def _eagle_groups(core: Any) -> list[int]:
    """Return the groups that give tokens back, [] for all."""
    return [
        index
        for index, single in enumerate(core.coordinator.single_type_managers)
        if single.use_eagle
    ]


def _pins_shared_prefix_boundaries(source: Source) -> bool:
    """Whether shared-prefix boundaries are kept: masks take reachable boundaries since 0.26, the
    prompt's end before.
    """
    if (known := RELEASES.get(release_name(source))) is not None:
        return known.pin_shared_prefix_boundary
    mask = source.part("v1.core.single_type_kv_cache_manager", "MambaManager").reachable_block_mask
    return takes(mask, "reachable_boundaries")


def _lowers_boundaries(source: Source) -> bool:
    """Whether EAGLE has replay boundaries of its own: managers are told them since 0.30."""
    if (known := RELEASES.get(release_name(source))) is not None:
        return known.eagle_replay_boundaries
    cache_blocks = source.part(
        "v1.core.single_type_kv_cache_manager", "SingleTypeKVCacheManager"
    ).cache_blocks
    return takes(cache_blocks, "replay_boundaries")
