"""The policy `lmcache`: vLLM's reference scheduler with LMCache's reference store behind it, as a
connector.

vLLM's cache is the device's; LMCache's first level is a pool of tier `cpu`, whose pages are pages.
A reset of the device's cache leaves it alone. Options of vLLM are vLLM's own, `vllm_release` among
them; LMCache's are `release`, `chunk_size` (in tokens; by default the least that every group's
block divides), `separate_object_groups`, `save_decode_cache`, `tier_pages` (pages of the first
level), `trigger_watermark`, `eviction_ratio` and `engines` (how many, each with kernels of its own,
share the store; the requests say whose they are).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Eviction, Stores, TierRules
from cachewitness.core.trace_format import GroupSpec, Layout, Submit, TraceHeader
from cachewitness.engines.adapter import Host
from cachewitness.engines.driver import Driver
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.scheduler_adapter import NewRequest, SchedulerAdapter
from cachewitness.systems.lmcache.reference.observe import ObservedFront, ObservedStore
from cachewitness.systems.lmcache.reference.options import StoreOptions, configure, separates
from cachewitness.systems.vllm.header import describe, with_tier
from cachewitness.systems.vllm.reference import engine as reference_vllm
from cachewitness.systems.vllm.reference.reporting_pool import observable_manager
from cachewitness_reference.lmcache import spec
from cachewitness_reference.lmcache.checks import (
    StartupError,
    validate_kv_cache_groups,
    validate_mamba_step_alignment,
)
from cachewitness_reference.lmcache.connector import ConnectorMetadata, LMCacheMPConnector
from cachewitness_reference.lmcache.groups import (
    KVLayerGroups,
    LayerKind,
    LayerSpec,
    RegistrationError,
    create_engine_group_infos,
)
from cachewitness_reference.lmcache.keys import KeyRefused, check_model_name, check_salt
from cachewitness_reference.lmcache.server import LMCacheServer, PageCopy
from cachewitness_reference.primitives import BlockId
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_manager import KVCacheBlocks
from cachewitness_reference.vllm.request import ExtraKeys, MultiModalFeature, Request
from cachewitness_reference.vllm.scheduler import SchedulerOutput
from cachewitness_reference.vllm.scheduler_interface import KVConnectorMetadata
from cachewitness_reference.vllm_extended.config import options_of

_KINDS: dict[str, LayerKind] = {"full": "full", "sliding": "sliding", "recurrent": "mamba"}


class ServedRequest(Request):
    """A request of one of several engines. What an engine has on its device is its own, whoever
    shares the store.
    """

    def __init__(self, *identity: Any, kernels: str = "", **parts: Any) -> None:
        self.kernels = kernels
        super().__init__(*identity, **parts)

    def extra_keys(self, start: int, end: int) -> ExtraKeys:
        """Return what tells tokens [start, end) apart beside themselves: whose engine's they
        are, too.
        """
        keys = super().extra_keys(start, end)
        return (*(keys or ()), ("engine", self.kernels)) if self.kernels else keys


class Connector:
    """LMCache's connector as vLLM's scheduler calls it, and what it finds and keeps as events."""

    def __init__(self, lmcache: LMCacheMPConnector, front: ObservedFront, groups: int) -> None:
        self.lmcache = lmcache
        self.front = front
        self.store = ObservedStore(lmcache, groups)
        self.reset_reason: Any = lambda: "reset"
        self._requests: dict[str, tuple[Request, int]] = {}
        self._metadata: dict[int, tuple[int, ConnectorMetadata]] = {}

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Look up what LMCache has beyond the device's hit."""
        self._admit(request)
        self._follow(request)
        external = self.lmcache.get_num_new_matched_tokens(request.request_id, num_computed_tokens)
        if request.skip_reading_prefix_cache:
            external = 0  # the scheduler drops what was found
        self.front.expect(request.request_id, external)
        return external

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Take note of an admission."""
        self.lmcache.update_state_after_alloc(request.request_id, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """Return the page copies of a step, and hold what is to be stored."""
        scheduled = scheduler_output.num_scheduled_tokens
        for r in scheduled:
            self._follow(self._requests[r][0])
        tables: dict[str, Any] = {r: self.front.tables(r) for r in scheduled}
        metadata = self.lmcache.build_connector_meta(scheduled, tables)
        self._metadata[id(scheduler_output)] = (self.front.step, metadata)
        self.store.placed(metadata.stores)
        self.front.events += self.store.changes(self.front.step, "evict")
        stores = [
            copy
            for store in metadata.stores
            for copy in store.copies
            if copy.block_id != spec.NULL_BLOCK_ID
        ]
        blocks = self.front.hold_for_stores(stores)
        found = [copy for retrieve in metadata.retrieves for copy in retrieve.copies]
        loads = [(_place(copy), self.front.block(copy.block_id)) for copy in found]
        return KVConnectorMetadata(
            loads, [(_place(copy), block) for copy, block in zip(stores, blocks, strict=True)]
        )

    def transfers(self) -> bool:
        """Whether a step in flight loads or stores."""
        return any(metadata.retrieves or metadata.stores for _, metadata in self._metadata.values())

    def update_connector_output(self, scheduler_output: SchedulerOutput) -> None:
        """Take note that a step has run: what it stored can be found."""
        step, metadata = self._metadata.pop(id(scheduler_output))
        self.lmcache.update_connector_output(metadata)
        self.front.events += self.store.changes(step, "evict")

    def request_finished(self, request: Request) -> None:
        """Forget a request that has ended, if LMCache was ever asked about it."""
        if self._requests.pop(request.request_id, None) is not None:
            self.lmcache.request_finished(request.request_id)

    def reset_cache(self) -> bool:
        """Forget every object."""
        done = self.lmcache.reset_cache()
        self.front.events += self.store.changes(self.front.step, self.reset_reason())
        return done

    def _admit(self, request: Request) -> None:
        """Tell LMCache of a request that is new, or has lost its blocks since it was last asked
        about it.
        """
        assert isinstance(request, ServedRequest), "requests are made by this engine"
        r = request.request_id
        if r not in self._requests:
            prompt = request.all_token_ids[: request.num_prompt_tokens]
            identity = {
                "salt": request.cache_salt,
                "adapter": request.adapter,
                "kernels": request.kernels,
            }
            self.lmcache.on_new_request(r, prompt, media=request.mm_features, **identity)
        elif request.num_preemptions != self._requests[r][1]:
            self.lmcache.on_preempted(r)
        self._requests[r] = (request, request.num_preemptions)

    def _follow(self, request: Request) -> None:
        """Tell LMCache what a request has generated since it was last asked about it."""
        known = len(self.lmcache.trackers[request.request_id].token_ids)
        self.lmcache.on_new_tokens(request.request_id, request.all_token_ids[known:])


def _place(copy: PageCopy) -> KVCacheBlock:
    return KVCacheBlock(BlockId(copy.page))


class LMCacheAdapter(SchedulerAdapter):
    """vLLM's reference scheduler with a connector; the second tier of the header is LMCache's
    first level.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        front: ObservedFront,
        new_request: NewRequest,
        connector: Connector,
    ) -> None:
        super().__init__(config, front, new_request)
        self.connector = connector
        connector.reset_reason = lambda: self.view.reason

    def attach(self, engine: Host) -> None:
        """Put the connector behind the scheduler."""
        super().attach(engine)
        self.scheduler.connector = self.connector

    def resets_at_once(self) -> bool:
        """As without LMCache, unless a step in flight loads or stores: what it stores is found
        when it has run.
        """
        return super().resets_at_once() and not self.connector.transfers()


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the engine for a trace.

    Raises UsageError for what vLLM or LMCache refuses, in their words, and for what neither
    specification has.
    """
    own, config = configure(header, options.get("release", ""))
    return assemble(header, own, config, "reference")


def layer_specs(layout: Layout, mamba_cache_mode: str = "align") -> list[dict[int, LayerSpec]]:
    """Return the layers of each group of a layout, as LMCache is told of them at registration."""
    specs: list[dict[int, LayerSpec]] = []
    first = 0
    for group in layout.groups:
        layers = range(first, first + group.layers)
        specs.append(dict.fromkeys(layers, _layer_spec(group, mamba_cache_mode)))
        first = layers.stop
    return specs


def _layer_spec(group: GroupSpec, mode: str) -> LayerSpec:
    return LayerSpec(
        _KINDS[group.kind], group.block_size, sliding_window=group.window, mamba_cache_mode=mode
    )


def build_connector(
    layout: Layout,
    config: KVCacheConfig,
    own: StoreOptions,
    make: Callable[..., Any] = LMCacheServer,
) -> LMCacheMPConnector:
    """Return a connector to a server of its own, which `make` makes. Raises UsageError with what
    LMCache says at start-up.
    """
    release = spec.RELEASES[own.release]
    mode = config.options.mamba_cache_mode
    specs = layer_specs(layout, mode)
    states = [group.block_size for group in layout.groups if group.kind == "recurrent"]
    chunk = own.chunk_size or math.lcm(*(group.block_size for group in layout.groups))
    try:
        validate_kv_cache_groups([list(group.values()) for group in specs], own.release)
        validate_mamba_step_alignment(
            config.options.max_num_batched_tokens, states, mode, own.release
        )
        groups = KVLayerGroups(
            create_engine_group_infos(specs), chunk, separate_object_groups=separates(own)
        )
        server = make(
            groups, own.tier_pages, watermark=own.trigger_watermark, ratio=own.eviction_ratio
        )
        reserve = release.reserves_last_token and bool(states)
        return LMCacheMPConnector(
            server, reserve_last_token=reserve, save_decode_cache=own.save_decode_cache
        )
    except (StartupError, RegistrationError) as error:
        raise UsageError(f"layout {layout.name!r}: {error}") from None


def assemble(
    header: TraceHeader,
    own: StoreOptions,
    config: KVCacheConfig,
    name: str,
    make: Callable[..., Any] = LMCacheServer,
) -> Driver:
    """Put LMCache, as `make` makes its server, behind vLLM's scheduler; without prefix caching
    nothing is behind it.
    """

    def new_request(op: Submit, tokens: list[int]) -> Request:
        try:
            check_salt(op.salt)
            check_model_name(op.kernels)
        except KeyRefused as error:
            raise UsageError(f"request {op.r!r}: {error}") from None
        features = [MultiModalFeature(item.at, item.length, item.hash) for item in op.media]
        identity = {"cache_salt": op.salt, "adapter": op.adapter, "kernels": op.kernels}
        return ServedRequest(
            op.r,
            tokens,
            config.hash_block_size,
            mm_features=features,
            skip_reading_prefix_cache=op.prompt_logprobs,
            **identity,
        )

    lmcache = build_connector(header.layout, config, own, make)
    tier = TierRules(lmcache.chunk_size, together=len(lmcache.server.groups.object_groups) == 1)
    rules = msgspec.structs.replace(reference_vllm.rules(header, config), tier=tier)
    queue = reference_vllm.FREE_LISTS[options_of(config).free_list]
    further = ["prompt_logprobs", *(["kernels"] if own.engines > 1 else [])]
    described = describe(header, name, own.release, rules, config.options, queue, further=further)
    manager = observable_manager(config)
    if not config.options.enable_caching:
        return Driver(described, SchedulerAdapter(config, ObservedManager(manager), new_request))
    front = ObservedFront(manager, lmcache)
    connector = Connector(lmcache, front, len(header.layout.groups))
    eviction = Eviction("lru-used", watermark=own.trigger_watermark)
    return Driver(
        with_tier(described, own.tier_pages, eviction, Stores(answers=own.save_decode_cache)),
        LMCacheAdapter(config, front, new_request, connector),
    )
