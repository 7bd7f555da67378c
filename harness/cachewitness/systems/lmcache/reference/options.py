"""LMCache's own options, as a trace names them beside vLLM's, and what of either is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.reference import engine as reference_vllm
from cachewitness_reference.lmcache import spec
from cachewitness_reference.lmcache.features import FEATURES, refusal
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.options import ABSENT_OPTIONS
from cachewitness_reference.vllm_extended.config import Options, options_of

NAME = "lmcache"
DEFAULT_TIER_PAGES = 128


@dataclass(frozen=True)
class StoreOptions:
    """LMCache's own options, as a trace names them; None stands for what the release or the
    layout says.
    """

    release: str = spec.NEWEST
    chunk_size: int | None = None
    separate_object_groups: bool | None = None
    save_decode_cache: bool = False
    tier_pages: int = DEFAULT_TIER_PAGES
    trigger_watermark: float = spec.EVICTION_TRIGGER_WATERMARK
    eviction_ratio: float = spec.EVICTION_RATIO
    engines: int = 1


def separates(own: StoreOptions) -> bool:
    """Whether groups of different windows, and of states, are stored as objects of their own."""
    if own.separate_object_groups is None:
        return spec.RELEASES[own.release].separate_object_groups
    return own.separate_object_groups


def configure(header: TraceHeader, release: str = "") -> tuple[StoreOptions, KVCacheConfig]:
    """Return LMCache's options and vLLM's checked configuration; `release` is LMCache's if the
    trace names none.
    """
    given = dict(header.options)
    if header.level != "scheduler":
        raise UsageError("policy lmcache sits behind a scheduler; run it at scheduler level")
    if release:
        given.setdefault("release", release)
    names = {field.name for field in fields(StoreOptions)}
    _refuse_unknown(given, names)
    given = {name: value for name, value in given.items() if name not in FEATURES}
    own = _checked(StoreOptions(**{name: value for name, value in given.items() if name in names}))
    of_vllm = {
        name: value for name, value in given.items() if name not in names and name != "vllm_release"
    }
    if "vllm_release" in given:
        of_vllm["release"] = given["vllm_release"]
    config = reference_vllm.configure(msgspec.structs.replace(header, options=of_vllm))
    _refuse_absent(config, own)
    return own, config


def _refuse_unknown(given: Mapping[str, Any], own: set[str]) -> None:
    """Raise UsageError for an option that neither LMCache nor vLLM has; why vLLM's reference
    lacks one, that reference says.
    """
    known = {"vllm_release", *own, *Options.checks, *FEATURES}
    for name, value in given.items():
        if why := refusal(name, value):
            raise UsageError(f"policy {NAME}: option '{name}={value}': {why}")
        if name not in known and name not in ABSENT_OPTIONS:
            raise UsageError(
                f"policy {NAME}: option {name!r} is unknown; known are {', '.join(sorted(known))}"
            )


def _checked(own: StoreOptions) -> StoreOptions:
    if own.release not in spec.RELEASES:
        raise UsageError(
            f"option 'release': LMCache {own.release!r} is unknown; known are"
            f" {', '.join(spec.RELEASES)}"
        )
    release = spec.RELEASES[own.release]
    if own.separate_object_groups is not None and not release.separable:
        raise UsageError(
            f"option 'separate_object_groups': LMCache {own.release} has no such flag; it came with"
            " 0.5.1"
        )
    # `bool` is an `int` to Python, and `true` is no number of tokens to LMCache.
    for name in ("chunk_size", "tier_pages", "engines"):
        value = getattr(own, name)
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value <= 0
        ):
            raise UsageError(f"option {name!r} ({value}) must be a positive whole number")
    for name in ("trigger_watermark", "eviction_ratio"):
        value = getattr(own, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise UsageError(f"option {name!r} ({value}) must be in (0, 1]: a share")
    for name in ("separate_object_groups", "save_decode_cache"):
        if getattr(own, name) not in (None, True, False):
            raise UsageError(f"option {name!r} cannot be {getattr(own, name)!r}")
    return own


def _refuse_absent(config: KVCacheConfig, own: StoreOptions) -> None:
    """Raise UsageError for combinations that no rule of the two specifications covers."""
    options = options_of(config)
    if config.enable_partial_hash_hits:
        raise UsageError(
            "policy lmcache: hits inside a block are not in this specification; "
            "set 'hash_block_size' to the block size, or 'vllm_release' to one before 0.26"
        )
    if options.use_eagle or options.pages_per_snapshot > 1:
        raise UsageError(
            "policy lmcache: 'use_eagle' and 'pages_per_snapshot' are not in this specification"
            " with a connector"
        )
    if own.save_decode_cache and options.num_speculative_tokens and config.has_mamba_layers:
        raise UsageError(
            "option 'save_decode_cache': states after drafts are stored by no rule of this"
            " specification"
        )
