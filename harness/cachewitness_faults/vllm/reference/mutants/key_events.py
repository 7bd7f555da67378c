"""Faults in what routers are told of keys."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import msgspec

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, core, wrap
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="key-event-of-eviction-lost",
    mirrors="NVIDIA/TensorRT-LLM#16335",
    anomaly="lost-key-event",
    checker="key-events",
    group="I",
    engines=BOTH,
)
def key_event_of_eviction_lost(engine: Driver) -> None:
    """A block whose parent is gone is evicted without an event.

    Take a block for one that was never in the tree of prefixes if its parent is not there any more.
    """
    parents: dict[Any, Any] = {}
    gone: set[Any] = set()

    def is_reported(event: Any) -> bool:
        if _is(event, "BlockStored"):
            parent = event.parent_block_hash
            for block_hash in event.block_hashes:
                parents[block_hash], parent = parent, block_hash
                gone.discard(block_hash)
            return True
        orphaned = _is(event, "BlockRemoved") and all(
            parents.get(block_hash) in gone for block_hash in event.block_hashes
        )
        gone.update(event.block_hashes if _is(event, "BlockRemoved") else parents)
        return not orphaned

    wrap(
        core(engine),
        "take_events",
        lambda original: [event for event in original() if is_reported(event)],
    )


@mutant(
    name="key-event-parent-lost",
    mirrors="llm-d/llm-d-inference-sim#570",
    anomaly="false-key-event",
    checker="key-events",
    group="I",
    engines=BOTH,
)
def key_event_parent_lost(engine: Driver) -> None:
    """Blocks behind a hit are told as if they began a prompt."""

    def take_events(original: Any) -> list[Any]:
        return [
            _changed(event, parent_block_hash=None) if _is(event, "BlockStored") else event
            for event in original()
        ]

    wrap(core(engine), "take_events", take_events)


@mutant(
    name="key-event-group-lost",
    mirrors="smg-project/smg#1652",
    anomaly="malformed-key-event",
    checker="key-events",
    group="I",
    engines=BOTH,
)
def key_event_group_lost(engine: Driver) -> None:
    """Events do not say to which cache group their blocks belong."""

    def take_events(original: Any) -> list[Any]:
        return [
            event if _is(event, "AllBlocksCleared") else _changed(event, group_idx=None)
            for event in original()
        ]

    wrap(core(engine), "take_events", take_events)


@mutant(
    name="key-event-told-twice",
    mirrors="",
    anomaly="false-key-event",
    checker="key-events",
    group="I",
    engines=BOTH,
)
def key_event_told_twice(engine: Driver) -> None:
    """A block that is evicted to make room is told to be gone twice: by who takes it and by who
    gave it.

    Tell again of every block that `get_new_blocks` evicts.
    """
    pool = core(engine).block_pool

    def get_new_blocks(original: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(pool.kv_event_queue)
        blocks = original(*args, **kwargs)
        pool.kv_event_queue += pool.kv_event_queue[before:]
        return blocks

    wrap(pool, "get_new_blocks", get_new_blocks)


@mutant(
    name="key-events-cleared-by-a-refused-reset",
    mirrors="",
    anomaly="lost-key-event",
    checker="key-events",
    group="L",
    engines=BOTH,
)
def key_events_cleared_by_a_refused_reset(engine: Driver) -> None:
    """Routers are told that all is gone although the reset was refused."""
    pool = core(engine).block_pool
    homes = [sys.modules[base.__module__] for base in type(pool).__mro__]
    cleared = next(home.AllBlocksCleared for home in homes if hasattr(home, "AllBlocksCleared"))

    def reset_prefix_cache(original: Any) -> bool:
        done: bool = original()
        if not done:
            pool.kv_event_queue.append(cleared())
        return done

    wrap(pool, "reset_prefix_cache", reset_prefix_cache)


def _is(event: Any, kind: str) -> bool:
    return type(event).__name__ == kind


def _changed(event: Any, **fields: Any) -> Any:
    if dataclasses.is_dataclass(event):
        return dataclasses.replace(event, **fields)  # type: ignore[type-var]
    return msgspec.structs.replace(event, **fields)


MUTANTS = declared(globals())
"""Faults in key events, in the order in which they are listed."""
