"""Puts exllamav3's own objects together: its generator over its cache of pages and states, around a
model that computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachewitness.systems.exllamav3.options import Asked
from cachewitness.systems.exllamav3.source import Exllamav3
from cachewitness.systems.exllamav3.stand_ins import (
    SLOT,
    Arena,
    Device,
    Extension,
    Model,
    Pages,
    Tokenizer,
)

CALLERS = ("generator.generator", "generator.job", "generator.pagetable")
"""Modules that call the extension."""


@dataclass(frozen=True)
class Built:
    """exllamav3's objects of one engine."""

    generator: Any
    model: Model


def build(source: Exllamav3, asked: Asked, device: Device) -> Built:
    """Return exllamav3's generator for what a trace asks, its cache empty."""
    source.set_page_size(asked.page_size)
    model = Model(
        device,
        source.part("cache.recurrent_util", "advance_recurrent_states"),
        source.part("modules.gated_delta_net", "GDNState") if asked.recurrent else None,
    )
    extension = Extension(model)
    for name in CALLERS:
        source.module(name)["ext"] = extension
    cache = source.part("cache.cache", "Cache")(
        model,
        (asked.pages - 1) * asked.page_size,
        layer_type=lambda *sizes: Pages(device),
        max_batch_size=asked.max_batch_size,
    )
    cache.initialized = True
    source.module("generator.cpu_cache")["PinnedArena"] = lambda size, what: Arena(device)
    generator = source.part("generator.generator", "Generator")(
        model,
        cache,
        Tokenizer(),
        max_chunk_size=asked.max_chunk_size,
        prefill_cooldown=asked.prefill_cooldown,
        cpu_cache_size=asked.cpu_pages * SLOT,
        recurrent_cache_size=asked.states,
        recurrent_checkpoint_interval=asked.checkpoint_interval,
        recurrent_checkpoint_interval_pp=asked.checkpoint_interval_pp,
    )
    return Built(generator, model)
