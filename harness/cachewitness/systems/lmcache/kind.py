"""The engine `real-lmcache`: vLLM's reference scheduler, with the installed LMCache as its second
tier.

Which prefixes are found, which objects are kept and evicted, and which bytes arrive in which block
is LMCache's own doing; the scheduler, the connector beside it and the device's cache are the
references'. Not driven, and refused: steps in flight, drafts, several engines of different kernels,
media, prefix caching switched off, and releases that vLLM's connector works around.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from cachewitness import (
    Configuration,
    Controls,
    Driver,
    Engine,
    EngineKind,
    Header,
    Layout,
    OwnConfigurations,
    OwnProcess,
    SecondTier,
    TraceHeader,
    UsageError,
    WrittenFor,
)
from cachewitness.engines.adapter import Driven
from cachewitness.engines.answering import chosen
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.engines.observe_tier import TIER
from cachewitness.systems.lmcache.modules import PATCHES, part
from cachewitness.systems.lmcache.pages import Pages
from cachewitness.systems.lmcache.reference.engine import assemble
from cachewitness.systems.lmcache.reference.options import configure, separates
from cachewitness.systems.lmcache.server import RealServer, Setting
from cachewitness.workloads import layouts
from cachewitness_reference.lmcache import spec
from cachewitness_reference.vllm_extended.config import options_of

NAME = "real-lmcache"
NOT_DRIVEN = {"async_depth": 0, "num_speculative_tokens": 0, "enable_caching": True}
"""vLLM's options that have to be as they are by default."""
OWN: Mapping[str, tuple[Any, str]] = {
    "workers": (1, "a number of workers, 1 or more: ranks of tensor parallelism"),
    "lost": (0, "a whole number: one in so many stores of a worker is not made, 0 for none"),
    "latent": (
        False,
        "true or false: whether full attention keeps one vector of a token, as MLA does",
    ),
}
"""What a trace may ask of this engine and not of the policy's reference: what it is by default, and
what it has to be."""
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

    Raises EngineMissing if LMCache cannot be imported, UsageError for what it or the reference of
    vLLM refuses, and for what is not driven.
    """
    keeps = chosen(NAME, options, "caching", ("on", "off")) == "on"
    release = str(part("_version", "__version__"))
    header, own_options = _taken(header, options)
    setting = Setting(keeps=keeps, **own_options)
    own, config = configure(header, "")
    asked = options_of(config)
    for name, value in NOT_DRIVEN.items():
        if getattr(asked, name) != value:
            raise UsageError(
                f"--engine real-lmcache: option '{name}={getattr(asked, name)}' is not driven with"
                " the installed LMCache"
            )
    if own.engines > 1 or own.release != spec.NEWEST:
        raise UsageError(
            f"--engine real-lmcache: one engine is driven, of LMCache {spec.NEWEST}; see the"
            " policy's reference"
        )
    kinds = {group.kind for group in header.layout.groups}
    if "recurrent" in kinds and not separates(own):
        raise UsageError(
            "--engine real-lmcache: LMCache's document requires 'separate_object_groups=true' for a"
            " layout with recurrent states; without it a null block is stored as a state"
        )
    replicated = setting.latent and kinds == {"full"}
    setting = setting._replace(replicated=replicated)
    device = Pages(
        header.layout.groups,
        header.pages,
        workers=setting.workers,
        latent=setting.latent,
        replicated=replicated,
    )
    PATCHES.undo()
    driver: Any = assemble(
        header, own, config, NAME, partial(RealServer, device=device, setting=setting)
    )
    server = driver.adapter.connector.lmcache.server
    free = server.pads or setting.workers > 1
    stores = keeps and not setting.lost
    declared = _declared(driver.header, release, pads=free, stores=stores)
    engine = Served(declared, driver.adapter, server)
    engine.device = device
    return engine


def _taken(header: TraceHeader, named: Mapping[str, str]) -> tuple[TraceHeader, dict[str, Any]]:
    """Return a trace's header less the options that this engine alone has, and those: the trace's,
    else the engine's name's.

    Raises UsageError for a wrong value.
    """
    options = dict(header.options)
    given = dict[str, Any]()
    for name, (least, what) in OWN.items():
        text = named.get(name, "")
        default = (
            int(text)
            if text.isdecimal()
            else {"": least, "true": True, "false": False}.get(text, text)
        )
        value = given[name] = options.pop(name, default)
        if type(value) is not type(least) or value < least:
            raise UsageError(f"--engine {NAME}: option '{name}={value}' must be {what}")
    return msgspec.structs.replace(header, options=options), given


def configurations() -> list[Configuration]:
    """Return what is run beside the policy's configurations: several workers, and latent
    attention.
    """
    full, mamba, three = (layouts.load(name) for name in ("full", "full-mamba", "full-swa-mamba"))
    apart: dict[str, Any] = {"separate_object_groups": True, "retention_interval": 0}
    return [
        _configuration(full, 40, workers=2, lost=3),
        _configuration(mamba, 64, **apart, workers=3, lost=4),
        _configuration(three, 96, **apart, workers=2),
        _configuration(full, 40, workers=2, latent=True),
        _configuration(mamba, 64, **apart, latent=True),
        _configuration(mamba, 64, **apart, workers=2, lost=3, latent=True),
    ]


def _configuration(layout: Layout, tier_pages: int, **options: Any) -> Configuration:
    return Configuration(layout, {"tier_pages": tier_pages, **options}, "lmcache")


def _declared(header: Header, release: str, *, pads: bool, stores: bool) -> Header:
    """Return the header less what LMCache is not told. Where objects are padded no page says
    when memory runs short; nor is a store owed then, or where not all is stored (`stores`): objects
    are lost on purpose, or a control stores none.
    """
    rules = header.rules
    if pads or not stores:
        rules = msgspec.structs.replace(rules, stores=None)
    capabilities = [name for name in header.capabilities if name not in WITHOUT]
    pools = [
        msgspec.structs.replace(pool, eviction=None) if pads and pool.id == TIER else pool
        for pool in header.pools
    ]
    return msgspec.structs.replace(
        header, capabilities=capabilities, engine_version=release, pools=pools, rules=rules
    )


ENGINE = EngineKind(
    name=NAME,
    summary=(
        "the installed LMCache's own look-up, store and retrieve, on a CPU, behind vLLM's reference"
        " scheduler"
    ),
    levels=("scheduler",),
    open=open_engine,
    options={
        "caching": (
            "on (default), or off: nothing is stored in LMCache, so its look-ups find nothing"
        ),
        **{name: f"{what}; an option of a trace too" for name, (_, what) in OWN.items()},
        "mutant": "a seeded fault patched into it (see `ls mutants`)",
    },
    configurations=OwnConfigurations(lambda options: configurations()),
    controls=Controls({"uncached": {"caching": "off"}}, levels=("scheduler",)),
    tier=SecondTier("LMCache"),
    policies=("lmcache",),
    replays=False,
    process=OwnProcess(),
    written_for=WrittenFor("LMCache", "lmcache", spec.NEWEST, spec.NEWEST),
    known=KnownFindings(by_release({"0.5": "lmcache-0.5.txt"})),
)
