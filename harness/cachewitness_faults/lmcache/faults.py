"""Faults in the installed LMCache: a piece of the source of its look-up, its keys or its
transfers is changed while it runs.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.source_edits import Edit, edited
from cachewitness.systems.lmcache.kind import NAME
from cachewitness.systems.lmcache.modules import PATCHES

KEYS, HASHES = "v1.distributed.api", "v1.multiprocess.token_hasher"
LOOKUP, MOVES = "v1.multiprocess.modules.lookup", "v1.multiprocess.object_group_transfer"
READERS = "v1.multiprocess.custom_types"
TRANSFER = "v1.multiprocess.modules.lmcache_driven_transfer"


fault = partial(edited, engine=NAME, patches=PATCHES, level="scheduler")

FAULTS = (
    fault(
        Edit(
            KEYS, "", "ipc_key_to_object_keys", "cache_salt = ipc_key.cache_salt", 'cache_salt = ""'
        ),
        name="real-lmcache-salt-left-out",
        what="The salt is not in an object's key.",
        anomaly="cross-identity-hit",
        checker="identity",
        group="I",
    ),
    fault(
        Edit(
            HASHES,
            "TokenHasher",
            "hash_tokens",
            "(prefix_hash, tuple(tokens), None)",
            "(self.none_hash, tuple(tokens), None)",
        ),
        name="real-lmcache-chunk-of-another-prefix",
        what=(
            "A chunk is named by its own tokens alone, so its bytes may be those behind another"
            " prefix."
        ),
        anomaly="stale-hit",
        checker="safety-law",
        group="I",
    ),
    fault(
        Edit(
            MOVES,
            "",
            "transfer_kv_per_object_group",
            "lmcache_memcpy_async_h2d( memory_obj, cache_context.get_temp_object_group_buffer("
            " chunk_idx, object_group_id ), )",
            "buffer = cache_context.get_temp_object_group_buffer(chunk_idx, object_group_id)\n"
            "lmcache_memcpy_async_h2d(memory_obj, buffer)\n"
            "buffer.view(torch.uint8).flatten()[buffer.numel() * buffer.element_size() // 2 :] = 0",
        ),
        name="real-lmcache-truncated-object",
        what="The second half of an object does not arrive.",
        anomaly="stale-hit",
        checker="safety-law",
        group="K",
    ),
    fault(
        Edit(
            TRANSFER,
            "LMCacheDrivenTransferModule",
            "retrieve",
            "[None] * skip + window_objs",
            "[None] * skip + window_objs[::-1]",
        ),
        name="real-lmcache-chunks-in-the-wrong-order",
        what="The chunks of a retrieve are brought in the opposite order.",
        anomaly="stale-hit",
        checker="safety-law",
        group="K",
    ),
    fault(
        Edit(
            LOOKUP,
            "LookupModule",
            "_consume_prefetch_result",
            "return found_count",
            "return max(found_count - 1, 0)",
        ),
        name="real-lmcache-looked-up-short",
        what="A look-up serves one chunk less than it has found.",
        anomaly="lost-hit",
        checker="reuse-floor",
        group="N",
    ),
    fault(
        Edit(
            LOOKUP,
            "LookupModule",
            "_consume_prefetch_result",
            "return found_count",
            "return found_count + 1",
        ),
        name="real-lmcache-looked-up-long",
        what="A look-up serves one chunk more than it has found.",
        anomaly="engine-crashed",
        checker="engine",
        group="C",
    ),
    fault(
        Edit(
            TRANSFER,
            "LMCacheDrivenTransferModule",
            "retrieve",
            "self._ctx.resolve_obj_keys( key, list(range(num_object_groups)) )",
            "self._ctx.resolve_obj_keys(\n"
            "__import__('dataclasses').replace(key, worker_id=(key.worker_id + 1) % key.world_size),\n"  # noqa: E501
            "list(range(num_object_groups)),\n)",
        ),
        name="real-lmcache-workers-exchanged",
        what="A worker is brought what another worker has stored.",
        anomaly="stale-hit",
        checker="safety-law",
        group="K",
    ),
    fault(
        Edit(
            KEYS,
            "",
            "_lookup_kv_ranks",
            "for worker_id in range(ipc_key.world_size)",
            "for worker_id in range(1)",
        ),
        name="real-lmcache-looked-up-for-one-worker",
        what="A look-up asks for what the first worker has stored, and for no other's.",
        anomaly="engine-crashed",
        checker="engine",
        group="C",
    ),
    fault(
        Edit(
            KEYS,
            "",
            "ipc_key_to_object_keys",
            "kv_ranks = _lookup_kv_ranks(ipc_key)",
            "kv_ranks = [ObjectKey.ComputeKVRank(ipc_key.world_size, 0, ipc_key.world_size, 0)]",
        ),
        Edit(
            KEYS,
            "",
            "_lookup_kv_ranks",
            "for worker_id in range(ipc_key.world_size)",
            "for worker_id in range(1)",
        ),
        name="real-lmcache-one-share-for-all-workers",
        what=(
            "What the first worker has stored is every worker's, as if all layers were latent"
            " attention."
        ),
        anomaly="stale-hit",
        checker="safety-law",
        group="K",
    ),
    fault(
        Edit(
            READERS,
            "IPCCacheServerKey",
            "require_num_kv_readers",
            "return self.num_kv_readers",
            "return 1",
        ),
        name="real-lmcache-locked-for-one-reader",
        what="What several workers are to read is locked for one of them.",
        anomaly="engine-crashed",
        checker="engine",
        group="C",
    ),
)
