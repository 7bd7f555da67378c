"""Faults in LMCache's own connector for vLLM and in what its server does for it: a piece of the
source is changed.

What they mirror is named where it was reported, or where LMCache's source says that it was a bug or
would be one.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness.systems.lmcache.modules import PATCHES

CONNECTOR, ADAPTER = (
    "integration.vllm.lmcache_mp_connector",
    "integration.vllm.vllm_multi_process_adapter",
)
METADATA, STORES = (
    "integration.vllm.lmcache_mp_metadata",
    "v1.multiprocess.modules.lmcache_driven_transfer",
)
OWNER, WORKER, ASKED = "LMCacheMPConnector", "LMCacheMPWorkerAdapter", "LMCacheMPRequestMetadata"

fault = partial(edited, level="scheduler", group="K", patches=PATCHES)

FAULTS: tuple[Mutant, ...] = (
    fault(
        Edit(
            METADATA,
            ASKED,
            "GetStoreMetadata",
            "allocated_tokens, computed_tokens,",
            "allocated_tokens,",
        ),
        name="lmcache-connector-stores-what-is-not-computed",
        what="What a request has blocks for is stored, computed or not.",
        anomaly="partial-commit",
        checker="commit-order",
    ),
    fault(
        Edit(
            METADATA,
            ASKED,
            "GetStoreMetadata",
            "max( tracker.num_vllm_hit_tokens, tracker.num_lmcache_hit_tokens )",
            "(tracker.num_vllm_hit_tokens + tracker.num_lmcache_hit_tokens)",
        ),
        name="lmcache-connector-counts-a-hit-twice",
        what="What both the device and LMCache have of a prompt counts twice as computed.",
        anomaly="partial-commit",
        checker="commit-order",
    ),
    fault(
        Edit(
            METADATA,
            ASKED,
            "GetRetrieveMetadata",
            "end_token_idx = tracker.num_lmcache_hit_tokens",
            "end_token_idx = max(tracker.num_lmcache_hit_tokens - lmcache_tokens_per_chunk,"
            " start_token_idx)",
        ),
        name="lmcache-connector-loads-a-chunk-short",
        what="The last chunk of a hit is not asked for.",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            METADATA,
            ASKED,
            "GetRetrieveMetadata",
            "skip_first_n_tokens = tracker.num_vllm_hit_tokens - start_token_idx",
            "skip_first_n_tokens = tracker.num_vllm_hit_tokens - start_token_idx +"
            " lmcache_tokens_per_chunk",
        ),
        name="lmcache-connector-skips-a-chunk-too-many",
        what="The first chunk that a hit has beyond the device's is not written.",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            CONNECTOR,
            OWNER,
            "_get_or_create_request_tracker",
            "self.request_trackers.pop(request_id)",
            "pass",
        ),
        name="lmcache-connector-keeps-the-blocks-of-a-preempted-request",
        what=(
            "A request that was preempted is not looked up again, and goes on storing from the"
            " blocks that it had."
        ),
        anomaly="lost-hit",
        checker="reuse-floor",
    ),
    fault(
        Edit(
            CONNECTOR,
            OWNER,
            "_process_cached_requests",
            "if request_id not in cached_reqs.resumed_req_ids:",
            "if request_id is not None:",
        ),
        name="lmcache-connector-notes-the-blocks-of-a-resumed-request-twice",
        what=(
            "The blocks of a request that comes back are noted twice, so those behind them are in"
            " the wrong places."
        ),
        anomaly="partial-commit",
        checker="commit-order",
    ),
    fault(
        Edit(
            STORES,
            "LMCacheDrivenTransferModule",
            "store_with_chunk_mask",
            "if not skip_mask[i]",
            "if True",
        ),
        name="lmcache-connector-skipped-state-recorded-as-stored",
        what=(
            "A chunk without a state at its end, which is to be left out, is stored all the same:"
            " its null block."
        ),
        mirrors="LMCache/LMCache#5004",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            ADAPTER,
            WORKER,
            "handle_preemptions",
            "self.transfer_ctx.flush_inflight_stores()",
            "pass",
        ),
        name="lmcache-connector-preemption-not-flushed",
        what="Blocks of a preempted request are given to others while they are still stored.",
        anomaly="partial-commit",
        checker="commit-order",
    ),
    fault(
        Edit(ADAPTER, WORKER, "get_finished", "if not r_result:", "if r_result is None:"),
        name="lmcache-connector-failed-load-not-told",
        what="A load that failed is told as one that has ended.",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            METADATA,
            "LMCacheMPRequestTracker",
            "append_block_ids",
            "if relocation_window == 0",
            "if True",
        ),
        name="lmcache-connector-moved-block-of-drafts-kept",
        what=(
            "A block of drafts that moved behind a prompt's end keeps its old place too, and is"
            " stored as the state there."
        ),
        mirrors="LMCache/LMCache#4984",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
    ),
    fault(
        Edit(
            CONNECTOR,
            OWNER,
            "get_num_new_matched_tokens",
            "reserve_last_token=self._reserve_last_token_for_lookup",
            "reserve_last_token=False",
        ),
        name="lmcache-connector-last-token-not-reserved",
        what=(
            "A prompt is served with the state after its last token, which is then computed once"
            " more."
        ),
        mirrors="LMCache/LMCache#5151",
        anomaly="state-position-skew",
        checker="safety-law",
    ),
    fault(
        Edit(
            ADAPTER,
            "LMCacheMPSchedulerAdapter",
            "free_lookup_locks",
            "cache_salt=cache_salt,",
            'cache_salt="",',
        ),
        name="lmcache-connector-locks-freed-without-salt",
        what="What is let go of is named without its salt, so what was locked stays so.",
        mirrors="LMCache/LMCache#3770",
        anomaly="leak",
        checker="ownership",
    ),
    fault(
        Edit(
            CONNECTOR,
            OWNER,
            "update_state_after_alloc",
            "if free_end > 0:",
            "if False:",
        ),
        name="lmcache-connector-locks-of-what-the-device-has-kept",
        what="What was looked up and is not loaded, since the device has it, stays locked.",
        mirrors="vllm-project/vllm#35931",
        anomaly="leak",
        checker="ownership",
    ),
)
"""Each is shown with the connector `lmcache`, which has the installed LMCache as its store."""
