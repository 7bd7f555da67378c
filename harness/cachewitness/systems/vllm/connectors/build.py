"""Puts a scheduler of vLLM's together with a connector of vLLM's, as its configuration names it.

Source of the names: vLLM 0.33.0, `config/kv_transfer.py`, `v1/kv_cache_interface.py`,
`KVCacheTensor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from tempfile import mkdtemp
from typing import Any, NamedTuple

from msgspec import structs

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Header, Stores, TierRules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.observe_tier import TIER
from cachewitness.systems.lmcache.connector import LAYOUT, LMCache, fitted, prepare
from cachewitness.systems.lmcache.outage import OUTAGE
from cachewitness.systems.vllm.build import fill, settle
from cachewitness.systems.vllm.connectors.any_connector import BASE, KEPT, AnyConnector
from cachewitness.systems.vllm.connectors.example import PAGES, Example
from cachewitness.systems.vllm.connectors.kinds import Connector, Side
from cachewitness.systems.vllm.connectors.model_runner import ModelRunner
from cachewitness.systems.vllm.connectors.offloading import CHUNK_BYTES, Offloading
from cachewitness.systems.vllm.connectors.simple import SimpleOffload
from cachewitness.systems.vllm.connectors.tier import KeyNames
from cachewitness.systems.vllm.connectors.tiers import with_tiers
from cachewitness.systems.vllm.header import with_tier
from cachewitness.systems.vllm.plugged import imported
from cachewitness.systems.vllm.reference.engine import TRANSFERS_AWAITED
from cachewitness.systems.vllm.source import Source
from cachewitness_reference.vllm_extended.config import Options

SINCE = (0, 33)
"""The oldest release whose connectors the adapter was written for."""

PAGE_BYTES = 64
"""The size of a page of the device, in bytes: of no account but in the connectors' sums."""

MODEL = {"use_mla": False, "model": "none", "dtype": "float32", "get_total_num_kv_heads": lambda: 1}
"""What connectors ask the model for beyond what the scheduler does."""

STORE_STEPS = 2
"""How many steps behind the end of its request a store begins at the latest: connectors hear of the
end with the next step, and defer stores by one more."""

WAIT_STEPS = 2
"""How many steps a load takes beyond its copy: it is asked for in one, and its request goes on in
the one behind its end."""


NEVER = 1 << 30
"""A chunk, in tokens, that no prompt fills: `MultiConnector` takes what its first child has, so
nothing longer is owed."""


class Kind(NamedTuple):
    """A connector: its name in vLLM, the names of its children if it has some, and what its
    configuration says beside that.

    `stores` is what is put into its memory, None where that is not known. `blocks`: so many blocks
    make a chunk of its memory's. `pages` is the size of a memory that
    nobody limits. One of another package has a `module`, and behaves as its `base`, a connector of
    vLLM. `patient`: aborts of requests for which something is loaded wait for that, and a
    reset that leaves something was refused.
    """

    name: str
    children: Sequence[str] = ()
    extra: Mapping[str, Any] = {}
    blocks: int = 1
    pages: int = 0
    patient: bool = False
    stores: Stores | None = None
    base: str = ""
    module: str = ""

    @property
    def of_vllm(self) -> str:
        """The connector of vLLM that this one is, or derives from."""
        return self.base or self.name

    @property
    def goes_on(self) -> bool:
        """Whether sessions are driven behind it; with others they were not tried."""
        return self.of_vllm in (
            "SimpleCPUOffloadConnector",
            "OffloadingConnector",
            "MultiConnector",
        )


class ConnectorChoice(NamedTuple):
    """The connector that was asked for, and what becomes of requests whose load fails
    (`kv_load_failure_policy`).
    """

    kind: Kind
    load_failure: str = "recompute"


def _offloading(pages: int, blocks: int, unit: int) -> dict[str, Any]:
    return {
        "cpu_bytes_to_use": pages // blocks * CHUNK_BYTES,
        "blocks_per_chunk": blocks,
        "self_describing_kv_events": True,
    }


def _simple(pages: int, blocks: int, unit: int) -> dict[str, Any]:
    return {"cpu_bytes_to_use": pages * PAGE_BYTES, "num_cpu_blocks": pages}


def _example(pages: int, blocks: int, unit: int) -> dict[str, Any]:
    return {"shared_storage_path": mkdtemp(prefix="cachewitness-")}


def _lmcache(pages: int, blocks: int, unit: int) -> dict[str, Any]:
    return prepare(pages, unit * blocks)


def _unlimited(pages: int, blocks: int, unit: int) -> dict[str, Any]:
    return {}


LMCACHE = "LMCacheMPConnector"

SIDES: Mapping[
    str,
    tuple[Callable[[int, int, int], dict[str, Any]], Callable[[Source, Any, Any, KeyNames], Side]],
] = {
    "OffloadingConnector": (_offloading, Offloading),
    "SimpleCPUOffloadConnector": (_simple, SimpleOffload),
    "ExampleConnector": (_example, Example),
    LMCACHE: (_lmcache, LMCache),
    BASE: (_unlimited, AnyConnector),
}
"""By name in vLLM: how a connector is told how many pages its memory has, of chunks of so many
blocks, and what drives it.

The third number is the least common multiple of the groups' blocks, in tokens.
"""

STORED = ("full", "recurrent")
"""The groups all of whose keyed pages `OffloadingConnector` puts into its memory: the states at the
boundaries that vLLM's manager hands to it (`take_boundary_state_offloads`). The others store a
while behind the step, when a state or a window's block may have been given back.
"""
PROMPTS = Stores(keyed=True, steps=STORE_STEPS)
OUTPUTS = Stores(answers=True, keyed=True, steps=STORE_STEPS)

KINDS: Mapping[str, Kind] = {
    "example": Kind("ExampleConnector", pages=PAGES),
    "offloading": Kind("OffloadingConnector", stores=PROMPTS),
    "offloading-chunks": Kind("OffloadingConnector", blocks=2, stores=PROMPTS),
    "offloading-outputs": Kind(
        "OffloadingConnector", extra={"offload_prompt_only": False}, stores=OUTPUTS
    ),
    "offloading-sync": Kind(
        "OffloadingConnector", extra={"sync_load_budget_bytes": 1 << 40}, stores=PROMPTS
    ),
    "offloading-tiers": Kind(
        "OffloadingConnector",
        extra={"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs"}]},
        stores=PROMPTS,
    ),
    "simple": Kind("SimpleCPUOffloadConnector", stores=OUTPUTS),
    "simple-lazy": Kind("SimpleCPUOffloadConnector", extra={"lazy_offload": True}),
    "lmcache": Kind(LMCACHE, patient=True, stores=PROMPTS),
    "lmcache-strict": Kind(LMCACHE, stores=PROMPTS),
    "lmcache-chunks": Kind(LMCACHE, blocks=2, patient=True, stores=PROMPTS),
    "lmcache-dies": Kind(LMCACHE, extra={OUTAGE: "dies"}, patient=True),
    "lmcache-stalls": Kind(LMCACHE, extra={OUTAGE: "stalls"}, patient=True),
    "lmcache-outputs": Kind(
        LMCACHE, extra={"lmcache.mp.save_decode_cache": True}, patient=True, stores=OUTPUTS
    ),
    "multi": Kind("MultiConnector", ("SimpleCPUOffloadConnector", "OffloadingConnector")),
}
"""The connectors that can be named in the engine's option `connector`."""


OFFLOADING = "OffloadingConnector"
OF_A_SPEC = frozenset({"spec_name", "secondary_tiers"})
"""What of a configuration that connector alone reads."""


def asked_for(
    name: str, load_failure: str, source: Source, extra: Mapping[str, Any] | None = None
) -> ConnectorChoice | None:
    """Return a connector by name, or one of another package by `module:Class`; None for none.
    `extra` is what its configuration says beside what the harness sets.

    Raises UsageError if it is unknown, or this release is too old for it.
    """
    if not name:
        return None
    if ":" not in name and name not in KINDS:
        raise UsageError(f"--engine: vllm has no connector {name!r}; known are {', '.join(KINDS)}")
    if source.is_before(SINCE):
        raise UsageError(
            f"vLLM {source.version}: its connectors are driven from {SINCE[0]}.{SINCE[1]} on"
        )
    kind = _plugged(name) if ":" in name else KINDS[name]
    if kind.of_vllm != OFFLOADING and extra and not OF_A_SPEC.isdisjoint(extra):
        raise UsageError(
            f"--engine vllm:connector={name}: takes no offloading spec and no tiers;"
            " connector=offloading does"
        )
    return ConnectorChoice(kind._replace(extra={**kind.extra, **(extra or {})}), load_failure)


def _plugged(name: str) -> Kind:
    """Return a connector of another package, which is driven as the nearest of vLLM's that it
    derives from; what it puts into its memory is not known.
    """
    found = imported("connector", name)
    base = _driven(found)
    if not base:
        raise UsageError(
            f"--engine vllm:connector={name}: derives from no connector of vLLM's; their base class"
            f" is {BASE}"
        )
    ours = next((kind for kind in KINDS.values() if kind.name == base), Kind(BASE, pages=KEPT))
    return ours._replace(name=found.__name__, base=base, module=found.__module__, stores=None)


def _driven(kind: type) -> str:
    """Return the connector that the harness drives among a class and those it derives from; empty
    if there is none.
    """
    return next((one.__name__ for one in kind.__mro__ if one.__name__ in SIDES), "")


def pages_of(header: TraceHeader, options: Options, kind: Kind) -> int:
    """Return how many pages the connector's memory has: the trace's `tier_pages`, or as many as the
    device has.

    They are whole chunks, one at least. A memory that nobody limits has its own size.
    """
    return kind.pages or max((options.tier_pages or header.pages) // kind.blocks, 1) * kind.blocks


def configure(
    source: Source, config: Any, kv_cache_config: Any, asked: ConnectorChoice, pages: int
) -> Any:
    """Name the connector in vLLM's configuration; return the cache's, which says where its pages
    lie.
    """
    kind = asked.kind
    if kind.name == LMCACHE:
        kv_cache_config = fitted(kv_cache_config)
        settle(source, config.cache_config, {"kv_cache_layout": LAYOUT})
    unit = math.lcm(*(group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups))
    children = {"connectors": [_named(name, pages, unit) for name in kind.children]}
    extra = {
        **(children if kind.children else SIDES[kind.of_vllm][0](pages, kind.blocks, unit)),
        **with_tiers(kind.extra),
    }
    transfer: dict[str, Any] = {
        "kv_connector": kind.name,
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    if kind.module:
        transfer["kv_connector_module_path"] = kind.module
    transfer["kv_load_failure_policy"] = asked.load_failure
    settings = fill(
        source, source.part("config", "KVTransferConfig"), transfer, ["kv_load_failure_policy"]
    )
    settle(source, config, {"kv_transfer_config": settings})
    vars(config.model_config).update(MODEL)
    layers = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
    size = kv_cache_config.num_blocks * PAGE_BYTES
    placed = {"size": size, "layers": layers, "layer_stride": 0, "block_stride": PAGE_BYTES}
    return replace(
        kv_cache_config,
        kv_cache_tensors=[fill(source, source.interface.KVCacheTensor, placed, placed)],
    )


def _named(name: str, pages: int, unit: int) -> dict[str, Any]:
    return {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_connector_extra_config": SIDES[name][0](pages, 1, unit),
    }


def connector_of(
    source: Source,
    scheduler: Any,
    config: Any,
    kv_cache_config: Any,
    sizes: tuple[int, int],
    kind: Kind,
    pages: int,
) -> Connector:
    """Return the connector of a scheduler, with the worker's. `sizes` are (scheduler block size,
    hash block size) in tokens.
    """
    runner = ModelRunner(source, scheduler.connector, config, kv_cache_config)
    names = KeyNames(sizes[1])
    mine, workers = (
        [*getattr(whole, "_connectors", (whole,))] for whole in (scheduler.connector, runner.worker)
    )
    sides = [
        SIDES[_driven(type(one))][1](source, one, worker, names)
        for one, worker in zip(mine, workers, strict=True)
    ]
    chunk = NEVER if kind.children or kind.pages else sizes[0] * kind.blocks
    connector = Connector(runner, sides, names, pages, chunk, chunk if kind.blocks > 1 else 0)
    connector.patient = kind.patient
    connector.stores = kind.stores
    if kind.of_vllm == OFFLOADING:
        connector.stored = STORED
    return connector


def connected_header(
    header: Header, connector: Connector, delay: int, *, engine_aborts: bool
) -> Header:
    """Return what the engine declares, with the connector's memory as a second tier that is asked
    behind the device.

    `engine_aborts`: a request whose load fails is ended.
    """
    kept = [group.id for group in header.groups if group.kind in connector.stored]
    stores = structs.replace(connector.stores, groups=kept) if connector.stores and kept else None
    tiered = with_tier(header, connector.pages, None, stores)
    pools = [
        structs.replace(pool, null=[*connector.null]) if pool.id == TIER else pool
        for pool in tiered.pools
    ]
    transfers = WAIT_STEPS + TRANSFERS_AWAITED * delay
    waits = tiered.rules.progress_steps + transfers + connector.waits
    tier = TierRules(
        chunk=connector.chunk,
        fenced=connector.fenced,
        engine_aborts=engine_aborts,
        least=connector.least,
        once=connector.once,
        unordered=connector.unordered,
        drops=connector.drops,
        whole_chunks=connector.whole_chunks,
    )
    rules = structs.replace(tiered.rules, tier=tier, progress_steps=waits)
    if rules.key_events is not None:
        events = structs.replace(
            rules.key_events, bare=not connector.describes, tiers=connector.reports
        )
        rules = structs.replace(rules, key_events=events)
    able = [name for name in tiered.capabilities if name not in connector.lacks]
    return structs.replace(tiered, pools=pools, rules=rules, capabilities=able)
