"""SGLang as it is mutated: which files are driven, and what is run on them here."""

from __future__ import annotations

from benchmarks.mutation.cases import Case
from benchmarks.mutation.engine import MutatedEngine
from benchmarks.mutation.own_cases import cases_of
from cachewitness.systems.sglang.configurations import configurations
from cachewitness.systems.sglang.source import KNOWN, load

PATHS = (
    *(
        f"mem_cache/{name}.py"
        for name in (
            *("allocation", "base_prefix_cache", "common", "memory_pool", "radix_cache"),
            *("allocator/base", "allocator/mamba", "allocator/paged", "allocator/swa"),
            *("allocator/token", "unified_radix_cache", "unified_cache/unified_tree_core"),
            *("unified_cache/components/base", "unified_cache/components/full"),
            *("unified_cache/components/mamba", "unified_cache/components/swa"),
        )
    ),
    "managers/schedule_batch.py",
)
"""The driven files: of each some function is entered by a run with the default configurations."""
PARTS = {
    "managers/schedule_batch.py": ("Req", "ReqKvInfo", "release_req"),
    "mem_cache/memory_pool.py": ("ReqToTokenPool", "HybridReqToTokenPool"),
    "mem_cache/radix_cache.py": ("RadixKey",),
}
"""Of these files: the others of their classes are of batches, of tensors and of the older cache."""


def _cases(source: str, seed: int) -> list[Case]:
    named = f"sglang:source={source}"
    return cases_of(named, "manager", configurations(), KNOWN, seed, seeds=8, turns=1)


ENGINE = MutatedEngine(
    name="sglang",
    title="SGLang",
    folder="sglang/srt",
    paths=PATHS,
    parts=PARTS,
    load=load,
    cases=_cases,
)
