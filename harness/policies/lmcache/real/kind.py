"""The engine `real-lmcache`: vLLM's reference scheduler, with the installed LMCache as its second tier.

Which prefixes are found, which objects are kept and evicted, and which bytes arrive in which block is LMCache's own doing; the
scheduler, the connector beside it and the device's cache are the references'. Not driven, and refused: steps in flight, drafts,
several engines of different kernels, media, prefix caching switched off, and releases that vLLM's connector works around.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from harness._util.errors import UsageError
from harness.engines.adapter import Driven
from harness.engines.answering import chosen
from harness.engines.driver import Driver
from harness.engines.kind import EngineKind, WrittenFor
from harness.engines.mutant import Mutant
from harness.engines.observe_tier import TIER
from harness.engines.protocol import Engine
from harness.engines.real_lmcache.modules import part
from harness.history.events import Header
from harness.policies.lmcache.engine import assemble
from harness.policies.lmcache.options import configure
from harness.policies.lmcache.real.faults import FAULTS, NAME, PATCHES
from harness.policies.lmcache.real.pages import Pages
from harness.policies.lmcache.real.server import RealServer
from harness.trace.format import TraceHeader
from reference_impl.lmcache import spec
from reference_impl.vllm_extended.config import options_of

NOT_DRIVEN = {"async_depth": 0, "num_speculative_tokens": 0, "enable_caching": True}
"""vLLM's options that have to be as they are by default."""
WITHOUT = ("adapter", "kernels")
"""What a trace may need and this engine has not: LMCache's keys know neither."""


class Served(Driver):
    """The reference's driver, which empties LMCache when it is closed."""

    def __init__(self, header: Header, adapter: Driven, server: RealServer) -> None:
        super().__init__(header, adapter)
        self._server = server

    def close(self) -> None:
        """Let LMCache forget everything."""
        super().close()
        self._server.close()


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build the engine for a trace.

    Raises EngineMissing if LMCache cannot be imported, UsageError for what it or the reference of vLLM refuses, and for what is
    not driven.
    """
    keeps = chosen(NAME, options, "caching", ("on", "off")) == "on"
    release = str(part("_version", "__version__"))
    own, config = configure(header, "")
    asked = options_of(config)
    for name, value in NOT_DRIVEN.items():
        if getattr(asked, name) != value:
            raise UsageError(
                f"--engine real-lmcache: option '{name}={getattr(asked, name)}' is not driven with the installed LMCache"
            )
    if own.engines > 1 or own.release != spec.NEWEST:
        raise UsageError(f"--engine real-lmcache: one engine is driven, of LMCache {spec.NEWEST}; see the policy's reference")
    device = Pages(header.layout.groups, header.pages)
    PATCHES.undo()
    driver: Any = assemble(header, own, config, NAME, partial(RealServer, device=device, keeps=keeps))
    server = driver.adapter.connector.lmcache.server
    engine = Served(_declared(driver.header, release, pads=server.pads), driver.adapter, server)
    engine.device = device
    return engine


def _declared(header: Header, release: str, *, pads: bool) -> Header:
    """Return the header less what LMCache is not told. Where objects are padded no page says when memory runs short."""
    capabilities = [name for name in header.capabilities if name not in WITHOUT]
    pools = [msgspec.structs.replace(pool, eviction=None) if pads and pool.id == TIER else pool for pool in header.pools]
    return msgspec.structs.replace(header, capabilities=capabilities, engine_version=release, pools=pools)


def _faults() -> Mapping[str, Mutant]:
    return {fault.name: fault for fault in FAULTS}


ENGINE = EngineKind(
    name=NAME,
    summary="the installed LMCache's own look-up, store and retrieve, on a CPU, behind vLLM's reference scheduler",
    heights=("scheduler",),
    open=open_engine,
    options={
        "caching": "on (default), or off: nothing is stored in LMCache, so its look-ups find nothing",
        "mutant": "a seeded fault patched into it (see `ls mutants`)",
    },
    controls={"uncached": {"caching": "off"}},
    controlled=("scheduler",),
    tier="LMCache",
    policies=("lmcache",),
    replays=False,
    isolated=True,
    written_for=WrittenFor("LMCache", "lmcache", spec.NEWEST, spec.NEWEST),
    faults=_faults,
)
