"""LMCache as it is mutated: which files are driven, and what is run on them here."""

from __future__ import annotations

from benchmarks.mutation.cases import Case
from benchmarks.mutation.engine import MutatedEngine
from benchmarks.mutation.own_cases import cases_of
from cachewitness.engines import policy
from cachewitness.systems.lmcache import kind
from cachewitness.systems.lmcache.modules import part
from cachewitness_reference.lmcache import spec

PATHS = (
    *(
        f"v1/distributed/{name}.py"
        for name in (
            *("api", "eviction", "eviction_policy/lru", "internal_api", "l1_manager"),
            *("memory_manager/l1_memory_manager", "storage_manager"),
            *("storage_controllers/eviction_controller", "storage_controllers/prefetch_controller"),
            *("storage_controllers/prefetch_policy", "storage_controllers/utils"),
        )
    ),
    *(f"v1/memory_allocators/{name}_memory_allocator.py" for name in ("mixed", "tensor")),
    "v1/memory_management.py",
    *(
        f"v1/multiprocess/{name}.py"
        for name in (
            *("custom_types", "engine_context", "group_view", "object_group_transfer", "session"),
            *("token_hasher", "modules/lmcache_driven_transfer", "modules/lookup"),
        )
    ),
)
"""The driven files: of each some function is entered by a run with the default configurations."""


def _load(source: str) -> None:
    part("v1.multiprocess.modules.lookup", "LookupModule")
    part("v1.multiprocess.modules.lmcache_driven_transfer", "LMCacheDrivenTransferModule")


def _cases(source: str, seed: int) -> list[Case]:
    configurations = [*policy.get("lmcache").configurations(), *kind.configurations()]
    return cases_of(kind.NAME, "scheduler", configurations, spec.NEWEST, seed, seeds=1, turns=1)


ENGINE = MutatedEngine(
    name="lmcache",
    title="LMCache",
    folder="lmcache",
    paths=PATHS,
    load=_load,
    cases=_cases,
    forks_warm=False,
)
