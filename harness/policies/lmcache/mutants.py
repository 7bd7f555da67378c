"""Faults in LMCache's store and in its connector."""

from __future__ import annotations

from typing import Any

from harness.engines.fault_tools import wrap
from harness.engines.mutant import Mutant, Plant
from reference_impl.lmcache.server import Transfer

LMCACHE = ("lmcache",)


def prefix_counted_in_one_group(engine: Any) -> None:
    """Count the chunks of the first object group, and serve so many of all."""
    server = _connector(engine).server

    def lookup(original: Any, request_id: str, tokens: Any, num_tokens: int) -> int:
        session = server._hashed(request_id, tokens)
        hit = 0
        while hit < num_tokens // server.groups.chunk_size and server.l1.contains(
            server._key(session, hit, 0, server.ranks[0])
        ):
            hit += 1
        return hit

    def retrieve(original: Any, request_id: str, *args: Any) -> Any:
        transfer = original(request_id, *args)
        return transfer if transfer.ok else Transfer(request_id)

    wrap(server, "lookup", lookup)
    wrap(server, "retrieve", retrieve)


def null_blocks_stored(engine: Any) -> None:
    """Store what the null block holds where a group has nothing."""
    wrap(_connector(engine).server, "_has_content", lambda original, blocks: True)


def failed_store_found(engine: Any) -> None:
    """Make the objects of a store visible although the last page of it was never copied."""

    def begin_step(original: Any, op: Any) -> None:
        original(op)
        begin: Any = engine.manager.events[-1]
        begin.stores = begin.stores[:-1]

    wrap(engine, "_begin", begin_step)


def last_token_not_reserved(engine: Any) -> None:
    """Look the last token up too where a state cannot be resumed before it."""
    _connector(engine).reserve_last_token = False


def moved_blocks_not_tracked(engine: Any) -> None:
    """Follow a table by what was added to it, and miss what was replaced."""
    connector = _connector(engine)
    known: dict[str, list[list[Any]]] = {}

    def build_connector_meta(original: Any, scheduled: Any, tables: Any) -> Any:
        for r, table in tables.items():
            old = known.get(r, [[] for _ in table])
            known[r] = [row + list(new[len(row) :]) for row, new in zip(old, table, strict=True)]
        return original(scheduled, {r: known[r] for r in tables})

    wrap(connector, "build_connector_meta", build_connector_meta)


def salt_left_out_of_objects(engine: Any) -> None:
    """Name objects without the salt and the adapter of the request."""
    server = _connector(engine).server
    wrap(server, "start_session", lambda original, request_id, salt="", adapter="": original(request_id))


def objects_survive_reset(engine: Any) -> None:
    """Say that every object was forgotten, and keep them."""
    wrap(_connector(engine).server, "clear", lambda original: True)


def _connector(engine: Any) -> Any:
    return engine.connector.lmcache


def _where_there_is_a_store(plant: Plant) -> Plant:
    """Without prefix caching nothing is behind the scheduler, and there is nothing to plant into."""
    return lambda engine: plant(engine) if hasattr(engine, "connector") else None


MUTANTS = (
    Mutant(
        "lmcache-prefix-counted-in-one-group",
        "the chunks of one object group are counted, and so many of all are served",
        "LMCache/LMCache#2863",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        _where_there_is_a_store(prefix_counted_in_one_group),
        LMCACHE,
        "scheduler",
        group="C",
    ),
    Mutant(
        "lmcache-null-blocks-stored",
        "what lies in the null block is stored as a chunk's state",
        "vllm-project/vllm#53084",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        _where_there_is_a_store(null_blocks_stored),
        LMCACHE,
        "scheduler",
        group="A",
    ),
    Mutant(
        "lmcache-failed-store-found",
        "a store fails on its last page, and its object is found all the same",
        "LMCache/LMCache#4991",
        "partial-commit",
        "commit-order",
        _where_there_is_a_store(failed_store_found),
        LMCACHE,
        "scheduler",
        group="K",
    ),
    Mutant(
        "lmcache-last-token-not-reserved",
        "a prompt of whole chunks is served whole, with a state behind its last token",
        "LMCache before 0.5.6",
        "state-position-skew",
        "safety-law",
        _where_there_is_a_store(last_token_not_reserved),
        LMCACHE,
        "scheduler",
        group="P",
    ),
    Mutant(
        "lmcache-moved-blocks-not-tracked",
        "a block that left a request's table is stored as if it were still there",
        "LMCache/LMCache#4984",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        _where_there_is_a_store(moved_blocks_not_tracked),
        LMCACHE,
        "scheduler",
        group="A",
    ),
    Mutant(
        "lmcache-salt-left-out-of-objects",
        "objects are named by their tokens alone",
        "vllm-project/vllm#53495, #54342",
        "cross-identity-hit",
        "identity",
        _where_there_is_a_store(salt_left_out_of_objects),
        LMCACHE,
        "scheduler",
        group="I",
    ),
    Mutant(
        "lmcache-objects-survive-reset",
        "a reset of the store reports success and forgets nothing",
        "vllm-project/vllm#57727",
        "stale-hit",
        "safety-law",
        _where_there_is_a_store(objects_survive_reset),
        LMCACHE,
        "scheduler",
        group="L",
    ),
)
