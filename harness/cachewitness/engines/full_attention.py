"""What an engine declares of itself that has one pool of pages and one group, of full attention:
the smallest there is.
"""

from __future__ import annotations

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Eviction, Group, Header, Pool, Rules, Unkeyed
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.adapter import CAPABILITIES

NO_STATES = dict.fromkeys(("no-fabricated-snapshots", "interval-sparsity"), "no recurrent state")
"""Invariants that such an engine has no use for, and why."""


def describe(
    trace: TraceHeader,
    engine: str,
    eviction: Eviction | None = None,
    *,
    block_size: int = 0,
    unkeyed: Unkeyed | None = None,
) -> Header:
    """Return the history header of an engine that has the pages of a trace, in blocks of the
    trace's layout.

    `eviction` is the order in which it evicts, if it declares one; `block_size` in tokens if it has
    blocks of its own: the pool is then of as many tokens. `unkeyed` says which blocks get no key,
    None: all that a request computes get one. Raises UsageError for a layout with other groups.
    """
    group, *more = trace.layout.groups
    if more or group.kind != "full":
        raise UsageError(f"layout {trace.layout.name!r}: {engine} has one group, of full attention")
    size = block_size or group.block_size
    return Header(
        engine=engine,
        level=trace.level,
        pools=[Pool(id=0, pages=trace.pages * group.block_size // size, eviction=eviction)],
        groups=[Group(id=0, kind="full", block_size=size)],
        rules=Rules(alignment=size, unkeyed=unkeyed or Unkeyed()),
        capabilities=CAPABILITIES,
        not_applicable=NO_STATES,
        trace=trace.name,
    )
