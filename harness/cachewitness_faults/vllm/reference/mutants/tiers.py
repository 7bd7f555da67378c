"""Faults in the second tier."""

from __future__ import annotations

from typing import Any

import msgspec

from cachewitness.core.events import Move
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import REFERENCE, adapter, core, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness.engines.observe_tier import TIER


@mutant(
    name="load-forgotten",
    mirrors="vllm-project/vllm#34526",
    anomaly="stale-hit",
    checker="safety-law",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def load_forgotten(engine: Driver) -> None:
    """A hit in the second tier is reported and never brought back."""

    def begin_step(original: Any, *step: Any) -> None:
        original(*step)
        begin: Any = engine.events[-1]
        begin.copies = [move for move in begin.copies if move.src_pool != TIER]

    wrap(engine, "_begin", begin_step)


@mutant(
    name="tier-survives-new-weights",
    mirrors="vllm-project/vllm#57727",
    anomaly="cross-identity-hit",
    checker="identity",
    group="L",
    engines=REFERENCE,
    level="scheduler",
)
def tier_survives_new_weights(engine: Driver) -> None:
    """New weights end the keys of the device alone.

    Load new weights, and keep what the tier has of the old ones.
    """

    def reset_tier(original: Any, reason: str = "reset") -> None:
        if reason != "version":
            original(reason)

    wrap(adapter(engine).manager, "reset_tier", reset_tier)


@mutant(
    name="tier-never-asked",
    mirrors="vllm-project/vllm#43650",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=REFERENCE,
    level="scheduler",
)
def tier_never_asked(engine: Driver) -> None:
    """Everything is stored in the second tier, nothing is looked up there."""
    tier = getattr(core(engine), "tier", None)
    if tier is not None:
        wrap(tier, "get", lambda original, key: None)


@mutant(
    name="stored-a-step-late",
    mirrors="vllm-project/vllm#42959",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def stored_a_step_late(engine: Driver) -> None:
    """What a step wrote is stored after the next, when its blocks may be another's.

    Store what a step has written after the next one, from blocks that nobody holds for that.
    """
    late: list[Any] = []

    def begin_step(original: Any, *step: Any) -> None:
        original(*step)
        begin: Any = engine.events[-1]
        begin.stores, late[:] = list(late), list(begin.stores)

    wrap(engine, "_begin", begin_step)


@mutant(
    name="loads-the-place-beside",
    mirrors="dingodb/DingoCache#231",
    anomaly="stale-hit",
    checker="safety-law",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def loads_the_place_beside(engine: Driver) -> None:
    """What comes back from the tier is the neighbour of what was found.

    Read one place further than the one that was found.
    """
    places = next((pool.pages for pool in engine.header.pools if pool.id == TIER), 0)

    def beside(move: Move) -> Move:
        return msgspec.structs.replace(move, src=(move.src + 1) % places)

    def begin_step(original: Any, *step: Any) -> None:
        original(*step)
        begin: Any = engine.events[-1]
        begin.copies = [beside(move) if move.src_pool == TIER else move for move in begin.copies]

    wrap(engine, "_begin", begin_step)


@mutant(
    name="stores-share-a-place",
    mirrors="NVIDIA/TensorRT-LLM#8813",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def stores_share_a_place(engine: Driver) -> None:
    """Two blocks of a step are stored in one place.

    Store all that a step has written where the first of it belongs.
    """

    def begin_step(original: Any, *step: Any) -> None:
        original(*step)
        begin: Any = engine.events[-1]
        begin.stores = [
            msgspec.structs.replace(move, dst=begin.stores[0].dst) for move in begin.stores
        ]

    wrap(engine, "_begin", begin_step)


@mutant(
    name="reset-of-all-spares-the-tier",
    mirrors="vllm-project/vllm#57727",
    anomaly="stale-hit",
    checker="safety-law",
    group="L",
    engines=REFERENCE,
    level="scheduler",
)
def reset_of_all_spares_the_tier(engine: Driver) -> None:
    """A reset of every tier reports success while one still serves."""

    def reset_tier(original: Any, reason: str = "reset") -> None:
        if reason != "reset":
            original(reason)

    wrap(adapter(engine).manager, "reset_tier", reset_tier)


@mutant(
    name="store-of-a-step-cut-short",
    mirrors="vllm-project/vllm#56709 (a chunk in front of the ones looked up was never stored)",
    anomaly="lost-store",
    checker="stores",
    group="N",
    engines=REFERENCE,
    level="scheduler",
)
def store_of_a_step_cut_short(engine: Driver) -> None:
    """Of what a step has keyed the first block alone is stored in the second tier."""
    pool = getattr(core(engine), "tiered_pool", None)
    if pool is None:
        return

    def store_to_tier(original: Any) -> Any:
        del pool.keys_to_store[1:]
        return original()

    wrap(pool, "store_to_tier", store_to_tier)


MUTANTS = declared(globals())
