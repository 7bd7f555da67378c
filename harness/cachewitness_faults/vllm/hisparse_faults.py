"""Faults in vLLM's HiSparse: one piece of the source is taken out again, in the pools, the
coordinator or the connector.

Each is shown with the way of writing to the host that it is listed under (`WAY_OF`), on a layout
that HiSparse takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited

POOL, COORDINATOR = "v1.core.block_pool", "v1.hisparse.coordinator"
MANAGERS, CONNECTOR = (
    "v1.core.single_type_kv_cache_manager",
    "distributed.kv_transfer.kv_connector.v1.hisparse.connector",
)
OWNER = "HiSparseCoordinator"

fault = partial(edited, level="scheduler", group="K")

EAGER: tuple[Mutant, ...] = (
    fault(
        Edit(POOL, "BlockPool", "get_new_blocks", "self._notify_reuse(ret)", "pass"),
        name="vllm-hisparse-reuse-not-told",
        what="Who still reads a block that was released is not told that somebody else gets it.",
        anomaly="aliased-write",
        checker="ownership",
    ),
    fault(
        Edit(
            COORDINATOR,
            OWNER,
            "_lose_page",
            "if page_idx < state.synced_pages: state.stale_pages.add(page_idx)",
            "pass",
        ),
        name="vllm-hisparse-lost-page-not-told",
        what=(
            "The worker is not told that a block of the device is not the request's any more, and"
            " goes on reading it."
        ),
        anomaly="aliased-write",
        checker="ownership",
    ),
    fault(
        Edit(
            COORDINATOR,
            OWNER,
            "_plan_page_transfer",
            "for manager, block in zip(self.resident_managers, blocks):"
            " manager.block_pool.touch([block])",
            "pass",
        ),
        name="vllm-hisparse-transfer-without-a-pin",
        what=(
            "The blocks of the device that are copied to the host are not held for the copy, and"
            " are released behind it."
        ),
        anomaly="double-free",
        checker="ownership",
    ),
    fault(
        Edit(
            COORDINATOR,
            OWNER,
            "_plan_page_transfer",
            "self.host_manager.block_pool.touch([host_block])",
            "pass",
        ),
        name="vllm-hisparse-host-block-without-a-pin",
        what="The block of the host that is copied into is not held for the copy.",
        anomaly="double-free",
        checker="ownership",
    ),
    fault(
        Edit(COORDINATOR, OWNER, "_adopt_copies", "manager.block_pool.touch([block])", "pass"),
        name="vllm-hisparse-adopted-without-a-pin",
        what=(
            "A request reads a copy on the device that it does not hold, and gives it back in the"
            " end."
        ),
        anomaly="double-free",
        checker="ownership",
    ),
    fault(
        Edit(
            COORDINATOR,
            OWNER,
            "build_row_mirrors",
            "destination_start=( host_block.block_id * block_size + row_offset )",
            "destination_start=host_block.block_id * block_size",
        ),
        name="vllm-hisparse-mirror-at-the-head",
        what=(
            "Rows that begin inside a block are mirrored to the beginning of its block on the host."
        ),
        anomaly="partial-commit",
        checker="commit-order",
    ),
    fault(
        Edit(
            CONNECTOR,
            "HiSparseConnectorScheduler",
            "build_connector_meta",
            "source_block_ids.extend(new_block_ids[source_group_id])",
            "pass",
        ),
        name="vllm-hisparse-new-host-blocks-not-invalidated",
        what="Rows in a request's hot region stand for blocks of the host that others had before.",
        anomaly="use-after-free",
        checker="safety-law",
    ),
    fault(
        Edit(
            MANAGERS,
            "HiSparseHotManager",
            "add_local_computed_blocks",
            "self.require_hot(request_id)",
            "pass",
        ),
        name="vllm-hisparse-resumed-without-a-hot-region",
        what="A request that resumes on the host is given no hot region to read its rows in.",
        anomaly="use-after-free",
        checker="safety-law",
    ),
    fault(
        Edit(
            POOL,
            "BlockPool",
            "free_blocks",
            "if block.pool is not None and block.pool is not self:",
            "if block is None:",
        ),
        name="vllm-hisparse-host-blocks-freed-into-the-device",
        what=(
            "Blocks of the host that wait for a step in flight are given back to the device's pool."
        ),
        anomaly="double-free",
        checker="ownership",
    ),
    fault(
        Edit(COORDINATOR, OWNER, "_unpin_page", "state.pinned_clean.discard(page_idx)", "pass"),
        name="vllm-hisparse-released-again",
        what="A block that is released is released again with every step.",
        anomaly="engine-crashed",
        checker="engine",
    ),
)

LAZY: tuple[Mutant, ...] = (
    fault(
        Edit(
            COORDINATOR,
            OWNER,
            "_publish_host_blocks_if_ready",
            "num_tokens = min( publication.num_computed_tokens, state.ready_prefix_pages *"
            " self.host_manager.block_size, )",
            "num_tokens = publication.num_computed_tokens",
        ),
        name="vllm-hisparse-published-before-its-copy",
        what="A block of the host gets its key before it is copied there.",
        anomaly="partial-commit",
        checker="commit-order",
    ),
)

HISPARSE = EAGER + LAZY
WAY_OF: Mapping[str, str] = {
    **{fault.name: "eager" for fault in EAGER},
    **{fault.name: "lazy" for fault in LAZY},
}
"""By fault: the engine's option `hisparse` with which it is shown."""
