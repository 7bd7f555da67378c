"""The policies that `benchmarks/long_sequence.py` serves a long sequence on, each driven by its own
API.

Blocks have 16 tokens, a window 1 024, checkpoints and intervals are 4 096 apart. Pools hold the
sequence twice, so that nothing is evicted: what is measured is the sequence's length and not the
pool's pressure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.long_sequence_watch import CHUNK, DECODES, Subject, Watch
from cachewitness_reference.furiosa.config import CacheConfig, Layers
from cachewitness_reference.furiosa.config import Options as FuriosaOptions
from cachewitness_reference.furiosa.request import Request as FuriosaRequest
from cachewitness_reference.furiosa.scheduler import Scheduler as FuriosaScheduler
from cachewitness_reference.lmcache.connector import LMCacheMPConnector
from cachewitness_reference.lmcache.groups import (
    KVLayerGroups,
    LayerSpec,
    create_engine_group_infos,
)
from cachewitness_reference.lmcache.server import LMCacheServer
from cachewitness_reference.openvino_genai.config import SchedulerConfig
from cachewitness_reference.openvino_genai.scheduler import Scheduler as OpenVINOScheduler
from cachewitness_reference.openvino_genai.sequence import SequenceGroup
from cachewitness_reference.openvino_genai.sizing import LayoutBytes, derive
from cachewitness_reference.primitives import BlockId
from cachewitness_reference.tensorrt_edge.config import (
    Config,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from cachewitness_reference.tensorrt_edge.runtime import Request as EdgeRequest
from cachewitness_reference.tensorrt_edge.runtime import Runtime
from cachewitness_reference.vllm.align_split import split_for
from cachewitness_reference.vllm.config import build
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request, RequestStatus

BLOCK, WINDOW, INTERVAL = 16, 1_024, 4_096


def twice(length: int) -> int:
    """Return the blocks that hold a sequence, and what it generates, twice."""
    return 2 * (length + CHUNK) // BLOCK + 2


class VLLM:
    """Full attention, a window and a state, retention at an interval; `retain` is keying under
    the retention masks.
    """

    def __init__(self, length: int) -> None:
        groups = [
            {"kind": "full", "block_size": BLOCK},
            {"kind": "sliding", "block_size": BLOCK, "window": WINDOW},
            {"kind": "recurrent", "block_size": BLOCK},
        ]
        options = {
            "retention_interval": INTERVAL,
            "max_model_len": 2 * length + CHUNK,
            "max_num_batched_tokens": CHUNK,
        }
        self.config = build(groups, 3 * twice(length), options)
        self.manager = KVCacheManager(self.config)

    def serve(self, tokens: Sequence[int], watch: Watch) -> None:
        """See `Subject`."""
        manager = self.manager
        key = self.manager.coordinator.cache_blocks

        def timed(*args: Any, **kwargs: Any) -> None:
            with watch.phase("retain"):
                key(*args, **kwargs)

        manager.coordinator.cache_blocks = timed  # type: ignore[method-assign]
        cold = Request("cold", tokens, BLOCK)
        while (left := len(tokens) - cold.num_computed_tokens) > 0:
            with watch.phase("allocate"):
                self._step(cold, split_for(self.config, cold, min(CHUNK, left), 0, CHUNK))
        with watch.phase("release"):
            manager.free(cold)
        with watch.phase("look up"):
            again = Request("again", tokens, BLOCK)
            manager.new_step_starts()
            blocks, hit, again.shared_prefix_boundary = manager.get_computed_blocks(again)
        assert 0 < len(tokens) - hit <= BLOCK
        assert manager.allocate_slots(again, len(tokens) - hit, hit, blocks) is not None
        again.num_computed_tokens = len(tokens)
        again.status = RequestStatus.RUNNING
        for token in range(DECODES):
            again.append_output_token_ids(token)
            with watch.phase("decode"):
                self._step(again, 1)

    def _step(self, request: Request, count: int) -> None:
        manager = self.manager
        manager.new_step_starts()
        assert manager.allocate_slots(request, count) is not None
        manager.take_kv_cache_block_copies()
        manager.take_new_block_ids()
        request.num_computed_tokens += count
        request.status = RequestStatus.RUNNING


class Furiosa:
    """Two pools and the tree; `retain` is storing in the tree and giving back what the window
    has left.
    """

    def __init__(self, length: int) -> None:
        options = FuriosaOptions(max_model_len=2 * length + CHUNK, max_num_batched_tokens=CHUNK)
        self.scheduler = FuriosaScheduler(
            CacheConfig(Layers(BLOCK, WINDOW), options, twice(length), twice(length))
        )

    def serve(self, tokens: Sequence[int], watch: Watch) -> None:
        """See `Subject`."""
        scheduler = self.scheduler
        scheduler.add(cold := FuriosaRequest("cold", tokens))
        while cold.num_computed < len(tokens):
            with watch.phase("allocate"):
                step = scheduler.schedule()
            with watch.phase("retain"):
                scheduler.complete(step)
        with watch.phase("release"):
            scheduler.finish(["cold"])
        with watch.phase("look up"):
            again = FuriosaRequest("again", tokens)
            found = scheduler.manager.match(again)
        assert found.length == len(tokens) - 1
        scheduler.add(again)
        scheduler.complete(scheduler.schedule())
        for token in range(DECODES):
            scheduler.generated("again", [token])
            with watch.phase("decode"):
                scheduler.complete(scheduler.schedule())


class OpenVINO:
    """KV blocks and checkpoints; `retain` is what follows a step."""

    def __init__(self, length: int) -> None:
        config = SchedulerConfig(
            num_kv_blocks=twice(length),
            max_num_batched_tokens=CHUNK,
            enable_prefix_caching=True,
            cache_interval_multiplier=INTERVAL // BLOCK,
        )
        capacity = derive(config, LayoutBytes(1, 1, BLOCK))
        self.scheduler = OpenVINOScheduler(config, capacity, BLOCK, hybrid=True)

    def serve(self, tokens: Sequence[int], watch: Watch) -> None:
        """See `Subject`."""
        scheduler = self.scheduler
        scheduler.add_request(cold := SequenceGroup("cold", tokens, BLOCK))
        while cold.num_processed < len(tokens):
            with watch.phase("allocate"):
                output = scheduler.schedule()
            with watch.phase("retain"):
                scheduler.complete(output)
        with watch.phase("release"):
            scheduler.finish("cold")
        with watch.phase("look up"):
            scheduler.add_request(again := SequenceGroup("again", tokens, BLOCK))
            scheduler.restore_new()
        assert 0 < len(tokens) - again.num_processed <= INTERVAL
        while again.num_processed < len(tokens):
            scheduler.complete(scheduler.schedule())
        for token in range(DECODES):
            scheduler.append("again", [token])
            with watch.phase("decode"):
                scheduler.complete(scheduler.schedule())


class LMCache:
    """The connector and its store behind tables that somebody else keeps; `allocate` finds what
    to store, `retain` keeps it.
    """

    def __init__(self, length: int) -> None:
        layers = [
            {0: LayerSpec("full", BLOCK, shape=(1,))},
            {1: LayerSpec("sliding", BLOCK, WINDOW, shape=(2,))},
        ]
        groups = KVLayerGroups(create_engine_group_infos(layers), 256, separate_object_groups=True)
        server = LMCacheServer(groups, 4 * twice(length))
        self.connector = LMCacheMPConnector(
            server, reserve_last_token=False, save_decode_cache=True
        )

    def serve(self, tokens: Sequence[int], watch: Watch) -> None:
        """See `Subject`."""
        connector = self.connector
        columns = (len(tokens) + CHUNK) // BLOCK
        table = tuple(
            [BlockId(1 + pool * columns + column) for column in range(columns)] for pool in (0, 1)
        )
        connector.on_new_request("cold", tokens)
        assert connector.get_num_new_matched_tokens("cold", 0) == 0
        connector.update_state_after_alloc("cold", 0)
        for start in range(0, len(tokens), CHUNK):
            with watch.phase("allocate"):
                metadata = connector.build_connector_meta(
                    {"cold": min(CHUNK, len(tokens) - start)}, {"cold": table}
                )
            with watch.phase("retain"):
                connector.update_connector_output(metadata)
        with watch.phase("release"):
            connector.request_finished("cold")
        with watch.phase("look up"):
            connector.on_new_request("again", tokens)
            found = connector.get_num_new_matched_tokens("again", 0)
        assert 0 <= len(tokens) - found < 256
        connector.update_state_after_alloc("again", found)
        connector.update_connector_output(
            connector.build_connector_meta({"again": len(tokens) - found}, {"again": table})
        )
        for token in range(DECODES):
            connector.on_new_tokens("again", [token])
            with watch.phase("decode"):
                connector.update_connector_output(
                    connector.build_connector_meta({"again": 1}, {"again": table})
                )


class TensorRTEdge:
    """A row of a batch with its whole prompt captured; `retain` is commit and capture."""

    def __init__(self, length: int) -> None:
        config = Config(
            (LayerType.ATTENTION, LayerType.MAMBA),
            KVConfig(1, 1, length + DECODES, (KVLayerConfig(1, 64),)),
            MambaConfig(1, 1, 1, 1, 1, 1, 1),
            1,
        )
        self.runtime = Runtime(HybridCachePolicy(config))

    def serve(self, tokens: Sequence[int], watch: Watch) -> None:
        """See `Subject`."""
        runtime = self.runtime
        runtime.add(cold := EdgeRequest("cold", list(tokens), system_prompt=len(tokens) - 1))
        while cold.computed < len(tokens):
            with watch.phase("allocate"):
                step = runtime.begin_step(budget=CHUNK)
            with watch.phase("retain"):
                runtime.end_step(step)
        with watch.phase("release"):
            runtime.end("cold")
        with watch.phase("look up"):
            runtime.add(again := EdgeRequest("again", list(tokens), system_prompt=len(tokens) - 1))
            step = runtime.begin_step(budget=CHUNK)
        assert step.chunks["again"] == (len(tokens) - 1, len(tokens))
        runtime.end_step(step)
        for token in range(DECODES):
            again.tokens.append(token)
            with watch.phase("decode"):
                runtime.end_step(runtime.begin_step(budget=CHUNK))


SUBJECTS: dict[str, Callable[[int], Subject]] = {
    "vllm": VLLM,
    "openvino_genai": OpenVINO,
    "lmcache": LMCache,
    "furiosa": Furiosa,
    "tensorrt_edge": TensorRTEdge,
}
"""Every policy by name: what builds a fresh one for a sequence of so many tokens."""
