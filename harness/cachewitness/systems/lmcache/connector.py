"""LMCache's own connector for vLLM, `LMCacheMPConnector`, with the installed LMCache as its server.

Everything is LMCache's: the connector of the scheduler with its trackers, that of the worker with
its adapter, and the modules of the server, which look up, lock, reserve, copy and evict. Between
them no message is sent: their client asks a server in this process (`real_lmcache`). The thread
that asks once in ten seconds whether the server lives asks when it is told to, where the server
goes away now and then (`lmcache-dies`, `lmcache-stalls`); elsewhere it always does.

A copy's bytes are moved when LMCache asks for it, and say from and into which blocks. As a copy of
the ledger's it takes steps; LMCache hears that it is over when it is, and then lets its objects be
found, or its locks go.

Sources: LMCache 0.5.6, `integration/vllm/lmcache_mp_connector.py`, `vllm_multi_process_adapter.py`,
`lmcache_mp_metadata.py`; vLLM 0.33.0,
`distributed/kv_transfer/kv_connector/v1/lmcache_mp_connector.py`, which takes LMCache's class if
there is one.
"""

from __future__ import annotations

import importlib
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from cachewitness.engines.cache_state import Claim, KeyId
from cachewitness.systems.lmcache.client import Client
from cachewitness.systems.lmcache.marks import EACH, LAYERS, MarkedBlocks
from cachewitness.systems.lmcache.modules import InPlace, Sizes
from cachewitness.systems.lmcache.outage import LASTS, OUTAGE
from cachewitness.systems.lmcache.server_process import Server, Transfer
from cachewitness.systems.vllm.connectors.copies import Job
from cachewitness.systems.vllm.connectors.kinds import CopiesOf
from cachewitness.systems.vllm.connectors.tier import Books, KeyNames
from cachewitness.systems.vllm.source import Source

ADAPTER = "lmcache.integration.vllm.vllm_multi_process_adapter"
WORKER = "lmcache.v1.multiprocess.transfer_context.worker_transfer"
LAYOUT = "LBNHC"
"""How layers lie in memory: vLLM's default, each layer on its own, the tokens of a block one behind
the other."""


FOR_EVER = 1 << 30
"""Steps of a copy that a server makes which is away: until it is back."""


def prepare(pages: int, chunk: int) -> dict[str, Any]:
    """Start a server with so many pages and tokens to a chunk; return what vLLM's configuration has
    to say of it.

    Raises EngineMissing if LMCache is not installed.
    """
    client = Client(Server(Sizes(chunk, pages, separate=True)))
    adapter: Any = importlib.import_module(ADAPTER)
    adapter.RequestClientFactory = SimpleNamespace(create=lambda url, *, context: client)
    adapter.HeartbeatThread = client.heartbeat
    worker: Any = importlib.import_module(WORKER)
    worker.wrap_kv_caches = lambda caches: [InPlace(tensor) for tensor in caches.values()]
    return {"lmcache.mp.mp_transfer_mode": "lmcache_driven"}


def fitted(config: Any) -> Any:
    """Return vLLM's configuration of the cache with layers and sizes of blocks as the device
    here has them.
    """
    return replace(
        config,
        kv_cache_groups=[
            _fitted(index, group) for index, group in enumerate(config.kv_cache_groups)
        ],
    )


def _fitted(index: int, group: Any) -> Any:
    spec = group.kv_cache_spec
    if hasattr(spec, "head_size"):
        width = EACH // spec.block_size // 2
        spec = replace(spec, head_size=width, head_size_v=width)
    else:
        spec = replace(spec, shapes=((EACH,),))
    return replace(
        group,
        layer_names=[f"layers.{index * LAYERS + layer}" for layer in range(LAYERS)],
        kv_cache_spec=spec,
    )


class _Pending:
    """A copy of LMCache's as a job of the device."""

    def __init__(self, copies: CopiesOf, job: Job) -> None:
        self._copies = copies
        self._job = job

    def query(self) -> bool:
        """Whether it is over."""
        return self._job.over

    def wait(self) -> None:
        """Wait until it is."""
        self._copies.wait([self._job])

    def succeeded(self) -> bool:
        """Whether it brought everything."""
        return not self._job.failed


class LMCache:
    """The connector, both sides, and its server, which is closed with it."""

    fenced = True
    unordered = False
    tells_failures = once = True
    describes = reports = drops = whole_chunks = False
    kept = 0
    lacks: Sequence[str] = ("adapter",)
    forward = None
    null: Sequence[int] = ()

    def __init__(self, source: Source, connector: Any, worker: Any, names: KeyNames) -> None:
        self._client: Client
        (self._client,) = connector.scheduler_adapter.req_clients.values()
        self._server: Server = self._client.server
        self._worker = worker
        self._config = connector._kv_cache_config
        self._client.outages.how = (
            connector._vllm_config.kv_transfer_config.kv_connector_extra_config.get(OUTAGE, "")
        )
        self.waits = LASTS if self._client.outages.how else 0
        self._holds = self._hides = False
        self._jobs: list[tuple[Job, Transfer]] = []
        """Copies under way, and those that LMCache has not heard of that they are over."""
        self.close = weakref.finalize(self, self._server.close)

    @property
    def asked(self) -> Counter[str]:
        """How often its server was asked for what while it was away."""
        return self._client.outages.asked

    @property
    def away(self) -> bool:
        """Whether its server is away."""
        return self._client.outages.away

    def attach(self, pool: Any, copies: CopiesOf) -> None:
        """Register the device's caches, and take what stands in for its copies."""
        self._copies = copies
        groups = self._config.kv_cache_groups
        sizes = [group.kv_cache_spec.block_size for group in groups]
        self._server.blocks = device = MarkedBlocks(sizes, self._config.num_blocks)
        caches: dict[str, Any] = {}
        for group, layers, size in zip(groups, device.tensors, sizes, strict=True):
            tokens = size if hasattr(group.kv_cache_spec, "head_size") else 1
            seen = [layer.view(len(layer), tokens, 1, -1).permute(0, 2, 1, 3) for layer in layers]
            caches |= dict(zip(group.layer_names, seen, strict=True))
        self._client.begin = self._begin
        self._worker.register_kv_caches(caches)

    def _begin(self, transfer: Transfer, stores: bool) -> _Pending:
        """Begin the copies of the ledger's that a transfer of LMCache's is."""
        blocks = [copy.block for copy in transfer.copied]
        pages = [copy.page for copy in transfer.copied]
        steps = FOR_EVER if self.away else 0
        if stores:
            job = self._copies.begin(blocks, pages, stores=True, steps=steps)
            self._copies.fill_for(pages, [copy.group for copy in transfer.copied])
        else:
            job = self._copies.begin(pages, blocks, stores=False, steps=steps)
        self._jobs.append((job, transfer))
        return _Pending(self._copies, job)

    def hold_back(self, *, held: bool) -> None:
        """Do nothing: it stores what requests have computed."""

    def tell(self, meta: Any) -> None:
        """Let LMCache evict, as it does once a second, and let its server go away or come back
        if it is time.
        """
        self._finish()
        self._server.evict()
        moment = self._client.step()
        how = self._client.outages.how
        self._holds = self.away or moment.back
        self._hides = self.away and not moment.goes
        if moment.noticed and how == "dies":
            self._lose()
        if moment.back and how == "stalls":
            for job, _ in self._jobs:
                job.steps_left = min(job.steps_left, 1)

    def _lose(self) -> None:
        """Have the copies under way come to nothing: who made them is dead."""
        for job, _ in self._jobs:
            job.failed = set(job.numbers)
            job.steps_left = 1
        self._jobs.clear()

    def books(self) -> Books:
        """Return what LMCache shows of itself: objects that can be found are keyed, and held while
        somebody reads them.

        While the server is away nothing can be found, and what it has it holds: a step longer, so
        that nothing is let go of.
        """
        self._finish()
        self._server.look()
        keys: dict[KeyId, Claim] = {}
        held = dict.fromkeys(self._server.staged(), 1)
        for name, pages, read in self._server.resident():
            for page, place in () if self._hides else pages.items():
                keys[place.group, page, name] = Claim(place.length, place.r)
            held |= dict.fromkeys(pages, 1) if read or self._holds else {}
        return Books(keys, held, self._server.sizes.pages - len(held))

    def _finish(self) -> None:
        """Let LMCache hear of the copies that are over."""
        over = [transfer for job, transfer in self._jobs if job.over]
        self._jobs = [(job, transfer) for job, transfer in self._jobs if not job.over]
        for transfer in over:
            self._server.finish(transfer)
