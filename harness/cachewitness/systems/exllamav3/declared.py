"""What exllamav3's cache declares of itself, from what its source says and what a trace asks."""

from __future__ import annotations

from cachewitness.core.events import Eviction, Group, Header, Pool, Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.adapter import SECOND
from cachewitness.systems.exllamav3.observed import ATTENTION, CPU, RECURRENT
from cachewitness.systems.exllamav3.options import Asked

PROGRESS_STEPS = 16
"""One iteration may make as many steps of copies as jobs go back into the queue."""
CAPABILITIES = ["abort", "cancel"]
NOT_APPLICABLE = {
    "identity": "prompts of exllamav3 have no identity beside their tokens",
    "withdraw": "exllamav3 takes no request back out of a forward that was made",
}


def describe(trace: TraceHeader, asked: Asked, version: str) -> Header:
    """Return the header of a history: a pool of pages and one of states, whose page 0 nobody
    owns.
    """
    eviction = Eviction("random")
    pools = [Pool(id=ATTENTION, pages=asked.pages, null=[0], eviction=eviction)]
    groups = [Group(id=ATTENTION, kind="full", block_size=asked.page_size)]
    if asked.recurrent:
        pools.append(Pool(id=RECURRENT, pages=asked.places, null=[0], eviction=eviction))
        groups.append(
            Group(id=RECURRENT, kind="recurrent", block_size=asked.max_model_len, pool=RECURRENT)
        )
    if asked.cpu_pages:
        pools.append(
            Pool(id=CPU, pages=1 + asked.cpu_pages, null=[0], tier=SECOND, eviction=eviction)
        )
        groups.append(
            Group(id=len(groups), kind="full", block_size=asked.page_size, pool=CPU, source_group=0)
        )
    return Header(
        engine="exllamav3",
        level=trace.level,
        pools=pools,
        groups=groups,
        rules=Rules(
            alignment=asked.page_size,
            progress_steps=PROGRESS_STEPS,
            checkpoint_alignment=asked.page_size if asked.recurrent else 0,
        ),
        capabilities=CAPABILITIES,
        not_applicable=NOT_APPLICABLE,
        engine_version=version,
        trace=trace.name,
    )
