"""Every fault that is planted into a real vLLM's own classes, and nowhere else; and those in
LMCache's connector for it.
"""

from __future__ import annotations

from cachewitness.engines.mutant import Mutant
from cachewitness_faults.lmcache.connector_faults import FAULTS as LMCACHE_FAULTS
from cachewitness_faults.vllm.connector_faults import CONNECTED, CONNECTOR_OF
from cachewitness_faults.vllm.context_parallel_faults import RANKS
from cachewitness_faults.vllm.hisparse_faults import HISPARSE, WAY_OF
from cachewitness_faults.vllm.imitated_faults import IMITATED
from cachewitness_faults.vllm.scheduler_faults import SCHEDULED
from cachewitness_faults.vllm.scheduler_request_faults import REQUESTED
from cachewitness_faults.vllm.second_worker_faults import SECOND
from cachewitness_faults.vllm.shipped_connector_faults import (
    SHIPPED_CONNECTED,
    SHIPPED_CONNECTOR_OF,
)
from cachewitness_faults.vllm.shipped_faults import SHIPPED
from cachewitness_faults.vllm.shipped_scheduler_faults import SHIPPED_SCHEDULER
from cachewitness_faults.vllm.simple_faults import SIMPLE
from cachewitness_faults.vllm.worker_faults import WORKER

UNDONE = SHIPPED + SHIPPED_SCHEDULER + SHIPPED_CONNECTED
TELL_HITS = ("vllm-hit-told-behind-itself",)
"""Faults in what routers are told of hits."""
FAULTS = {
    mutant.name: mutant
    for mutant in SIMPLE + UNDONE + IMITATED + SCHEDULED + REQUESTED + CONNECTED + WORKER
}
IN_HISPARSE = {mutant.name: mutant for mutant in HISPARSE}
"""Faults in HiSparse, which needs a layout of its own."""
OVER_RANKS = {mutant.name: mutant for mutant in RANKS}
"""Faults in blocks that lie on several ranks, which are run where ranks are asked for."""
IN_SECOND_RUNNER = {mutant.name: mutant for mutant in SECOND}
"""Faults in the second model runner, which is run where it is asked for."""
IN_LMCACHE = {mutant.name: mutant for mutant in LMCACHE_FAULTS}
"""Faults in LMCache's connector, which vLLM takes from the installed LMCache."""
MUTANTS = (
    *FAULTS.values(),
    *IN_HISPARSE.values(),
    *IN_SECOND_RUNNER.values(),
    *OVER_RANKS.values(),
    *IN_LMCACHE.values(),
)
LMCACHE_CONNECTOR_OF = dict.fromkeys(IN_LMCACHE, "lmcache")


def kind_of(mutant: Mutant) -> str:
    """Return `shipped` for a fix that is undone, of a bug that passed vLLM's own tests; `imitated`
    where that cannot be.

    `scheduler` is one of its scheduler's lines, `connector` one of its connectors' or of what the
    scheduler does with them, `worker` one of its worker's. Any other is `simple`: one wrong method.
    """
    kinds = {
        "shipped": UNDONE,
        "imitated": IMITATED,
        "scheduler": SCHEDULED + REQUESTED,
        "connector": CONNECTED,
        "worker": WORKER,
    }
    return next((kind for kind, mutants in kinds.items() if mutant in mutants), "simple")


def needs(mutant: Mutant) -> str:
    """Return the options of the engine without which there is nothing to plant the fault into,
    as they are written.
    """
    connector = {**CONNECTOR_OF, **SHIPPED_CONNECTOR_OF, **LMCACHE_CONNECTOR_OF}.get(
        mutant.name, ""
    )
    hits = ",key_events=full" if mutant.name in TELL_HITS else ""
    hisparse = f",hisparse={WAY_OF[mutant.name]}" if mutant.name in WAY_OF else ""
    second = ",runner=second" if mutant.name in IN_SECOND_RUNNER else ""
    ranks = ",context_parallel=2" if mutant.name in OVER_RANKS else ""
    return f",connector={connector}" if connector else hisparse or second or ranks or hits
