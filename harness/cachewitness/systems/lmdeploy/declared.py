"""What lmdeploy's cache declares of itself, from what its source says and what a trace asks."""

from __future__ import annotations

from cachewitness.core.events import Eviction, Group, Header, Pool, Rules, Unkeyed
from cachewitness.core.trace_format import GroupKind, TraceHeader
from cachewitness.systems.lmdeploy.observed import ATTENTION, RECURRENT
from cachewitness.systems.lmdeploy.options import Asked

PROGRESS_STEPS = 8
CAPABILITIES = ["abort", "adapter", "cancel"]
NOT_APPLICABLE = {"withdraw": "lmdeploy takes no request back out of a forward that was sent"}


def describe(trace: TraceHeader, asked: Asked, version: str, *, caching: bool) -> Header:
    """Return the header of a history: a pool of blocks and one of states, whose page 0 nobody
    owns.
    """
    eviction = Eviction("random", together=asked.recurrent)
    kind: GroupKind = "sliding" if asked.window else "full"
    pools = [Pool(id=ATTENTION, pages=asked.pages, null=[0], eviction=eviction)]
    groups = [Group(id=ATTENTION, kind=kind, block_size=asked.block_size, window=asked.window)]
    if asked.recurrent:
        pools.append(Pool(id=RECURRENT, pages=asked.states, null=[0], eviction=eviction))
        groups.append(
            Group(id=RECURRENT, kind="recurrent", block_size=asked.max_model_len, pool=RECURRENT)
        )
    return Header(
        engine="lmdeploy",
        level=trace.level,
        pools=pools,
        groups=groups,
        rules=Rules(
            caching=caching,
            alignment=1 if asked.recurrent else asked.block_size,
            progress_steps=PROGRESS_STEPS,
            unkeyed=Unkeyed(answers=True, duplicates=True),
        ),
        capabilities=CAPABILITIES,
        not_applicable=NOT_APPLICABLE,
        engine_version=version,
        trace=trace.name,
    )
