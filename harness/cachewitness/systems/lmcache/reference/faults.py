"""The fault in LMCache's policy that the documentation shows.

All others are in `cachewitness_faults.lmcache`.
"""

from __future__ import annotations

from typing import Any

from cachewitness.engines.mutant import declared, mutant
from cachewitness.systems.lmcache.reference.planting import name_objects, where_there_is_a_store


@mutant(
    name="lmcache-kernels-left-out-of-objects",
    mirrors=(
        "LMCache 0.5.6 (its document forbids to share a server for want of it);"
        " LMCache/LMCache#4467"
    ),
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=("lmcache",),
    level="scheduler",
)
@where_there_is_a_store
def kernels_left_out_of_objects(engine: Any) -> None:
    """A key says nothing of attention backend and kernel block size, so engines that differ in
    them read each other's pages.
    """
    name_objects(engine, lambda salt, adapter, kernels: (salt, adapter, ""))


MUTANTS = declared(globals())
