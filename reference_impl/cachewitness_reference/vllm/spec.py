"""Where the rules come from, which of them are here, and what each release of vLLM does by default.

Everything in this package was read in the published sources of vLLM and, where `RULES` says so,
compared with them run in lock-step. No rule is silently half there: `implemented` is false for what
is left out, and an option that would need it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

REPOSITORY = "https://github.com/vllm-project/vllm"
NEWEST = "0.33"
PINNED_RELEASE = "0.33.0"
PINNED_ON = "2026-11-20"
CORE = "vllm/v1/core"

NULL_BLOCK_ID = 0
"""The placeholder that stands for a column nobody needs. It is never allocated, written, read or
counted."""


@dataclass(frozen=True)
class Release:
    """What a release does unless told otherwise.

    `retention`: which groups the retention interval thins out (`dense`: there is no such option).
    `retention_zero_ignored`: an interval of 0 is accepted where no group could obey it.
    `pin_shared_prefix_boundary`: shared-prefix boundaries count as reachable.
    `eagle_replay_boundaries`: with EAGLE the replay boundaries lie one unit lower, where its hits
    end. Before there were such boundaries, the release with the sparse default made an exception:
    `dense_default_for_eagle` keeps hybrid models with EAGLE dense unless an interval is given.
    """

    retention: Literal["dense", "sliding", "sliding+mamba"]
    retention_default: int | None
    retention_zero_ignored: bool
    pin_shared_prefix_boundary: bool
    eagle_replay_boundaries: bool
    partial_hash_hits: bool
    mamba_all: bool
    dense_default_for_eagle: bool = False


_DENSE = Release("dense", None, False, False, False, False, True)
_SLIDING = Release("sliding", None, False, False, False, False, True)
_MAMBA = Release("sliding+mamba", None, False, False, False, False, True)
_JUNCTION = Release("sliding+mamba", None, False, True, False, True, True)
_SPARSE_BUT_EAGLE = Release(
    "sliding+mamba", 0, True, True, False, True, True, dense_default_for_eagle=True
)
_SPARSE = Release("sliding+mamba", 0, True, True, True, True, True)
_TODAY = Release("sliding+mamba", 0, True, True, True, True, False)

RELEASES: dict[str, Release] = {
    "0.22": _DENSE,
    "0.23": _SLIDING,  # PR 43447: VLLM_PREFIX_CACHE_RETENTION_INTERVAL, sliding window alone
    "0.24": _MAMBA,  # PR 45845: the interval governs Mamba snapshots as well
    "0.25": _MAMBA,
    "0.26": _JUNCTION,  # shared-prefix boundaries are pinned; hits inside a block
    "0.27": _JUNCTION,
    "0.28": _JUNCTION,
    "0.29": (
        _SPARSE_BUT_EAGLE
    ),  # the environment variable becomes a configuration field, and its default 0
    "0.30": (
        _SPARSE
    ),  # PR 52216: EAGLE has replay boundaries of its own; the exception for it is gone
    "0.31": _SPARSE,
    "0.32": _TODAY,  # Mamba mode `all` is gone
    "0.33": _TODAY,
}


@dataclass(frozen=True)
class Rule:
    """One rule of the policy: its name, what it says, where vLLM says it, and whether it is
    here.
    """

    name: str
    summary: str
    source: str
    implemented: bool = True


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules}


_SINGLE = f"{CORE}/single_type_kv_cache_manager.py (0.33.0)"
_COORDINATOR = f"{CORE}/kv_cache_coordinator.py (0.33.0)"
_MANAGER = f"{CORE}/kv_cache_manager.py (0.33.0)"
_POOL = f"{CORE}/block_pool.py (0.33.0)"
_UTILS = f"{CORE}/kv_cache_utils.py (0.33.0)"
_SCHEDULER = f"{CORE}/sched/scheduler.py (0.33.0)"
_INTERFACE = "vllm/v1/kv_cache_interface.py (0.33.0)"

RULES: dict[str, Rule] = _rules(
    Rule("full-attention", "A hit is the run of cached blocks from the start.", _SINGLE),
    Rule(
        "sliding-window",
        "A hit needs the window's blocks before its end; earlier columns are null.",
        _SINGLE,
    ),
    Rule(
        "mamba-none", "One block per request holds the running state; nothing is cached.", _SINGLE
    ),
    Rule(
        "mamba-align",
        "Slot p holds the state after (p + 1) blocks; slots between chunk ends are null.",
        _SINGLE,
    ),
    Rule(
        "mamba-all",
        "Every block has a state of its own, written at every boundary.",
        f"{CORE} (0.24.0, gone in 0.32)",
    ),
    Rule("hash-chain", "A digest covers the whole prefix and its extra keys.", _UTILS),
    Rule(
        "hash-block-size",
        "Hashes may be finer than blocks; a block is named by its last hash.",
        _UTILS,
    ),
    Rule(
        "hybrid-fixpoint",
        "Groups shrink a candidate length in turn until all accept it.",
        _COORDINATOR,
    ),
    Rule(
        "alignment",
        "Hits are multiples of the LCM of block sizes, or of the hash block with partial hits.",
        _COORDINATOR,
    ),
    Rule("partial-hits", "A hit may end inside a block, which is then copied on write.", _SINGLE),
    Rule(
        "shared-prefix-boundary",
        "Where the longest group hit ends, the lagging group keeps its state.",
        _MANAGER,
    ),
    Rule(
        "align-split",
        "Chunks end where a state is to be kept.",
        f"{_SCHEDULER}, _mamba_block_aligned_split",
    ),
    Rule("same-step-guard", "A state keyed in this step cannot be hit before the next.", _SINGLE),
    Rule(
        "null-block",
        "Block 0 stands for skipped columns; it is never counted, keyed or freed.",
        _POOL,
    ),
    Rule(
        "free-queue",
        "Keyed blocks are appended when freed (LRU), others prepended (LIFO); tails go first.",
        _POOL,
    ),
    Rule("eviction", "A block loses its keys when it is handed out again.", _POOL),
    Rule("duplicates", "Several blocks may carry one key; a look-up returns the oldest.", _POOL),
    Rule("reset", "Forget every key, if and only if nobody holds a block.", _POOL),
    Rule("reset-running", "Preempt everybody, then reset.", f"{_SCHEDULER}, reset_prefix_cache"),
    Rule(
        "reset-on-weight-update",
        "New weights end every key.",
        f"{_POOL}, reset_prefix_cache (its stated use)",
    ),
    Rule(
        "cache-events",
        "BlockStored, BlockRemoved, AllBlocksCleared.",
        "vllm/distributed/kv_events.py (0.33.0)",
    ),
    Rule(
        "eagle-drop",
        "Attention groups match one unit more and give it back.",
        f"{_UTILS}, eagle_proof_margin",
    ),
    Rule(
        "eagle-replay-boundaries",
        "Reachable boundaries lie one unit lower, and one block is kept above.",
        _COORDINATOR,
    ),
    Rule(
        "admission",
        "A new request is admitted if its whole sequence fits, window recycling counted in.",
        _MANAGER,
    ),
    Rule(
        "watermark", "A share of the pool stays free when a waiting request joins others.", _MANAGER
    ),
    Rule(
        "preemption",
        "The running request that came last gives up its blocks and computes again.",
        _SCHEDULER,
    ),
    Rule("abort", "A request that ends early frees its blocks; its keys stay.", _SCHEDULER),
    Rule(
        "retention-dense",
        "Every aligned boundary is kept (before 0.23, or the interval unset).",
        _SINGLE,
    ),
    Rule(
        "retention-sliding",
        "One window tail per interval and at the replay boundary (0.23).",
        "PR 43447",
    ),
    Rule(
        "retention-mamba",
        "One snapshot per interval and at the replay boundary (0.24).",
        "PR 45845",
    ),
    Rule(
        "retention-sparse-default",
        "The interval is 0 unless set: reachable boundaries alone (from 0.29; hybrid models with"
        " EAGLE from 0.30).",
        "PR 52216",
    ),
    Rule(
        "withdrawal",
        "Keys of a step that is taken back vanish with it.",
        "issues 43569 and 57580; not in vLLM",
    ),
    Rule(
        "speculative-blocks",
        "A state after each draft, in a page of its own; slots ahead for drafts.",
        _SINGLE,
    ),
    Rule(
        "draft-rollback",
        "Rejected drafts are not computed: their slots are written again.",
        f"{_SCHEDULER}, update_from_output",
    ),
    Rule(
        "async-scheduling",
        "A step is scheduled before the tokens of the last one, or the last two, are known.",
        f"{CORE}/sched/async_scheduler.py",
    ),
    Rule("chunked-local", "Chunked-local attention.", _SINGLE, implemented=False),
    Rule(
        "hash-lookahead",
        "Hashes that cover the tokens after their block.",
        _UTILS,
        implemented=False,
    ),
    Rule(
        "multi-module-mtp",
        "Re-prefilled tails of several draft modules.",
        _COORDINATOR,
        implemented=False,
    ),
    Rule(
        "internal-checkpoint",
        "A state exported from inside the last chunk.",
        _INTERFACE,
        implemented=False,
    ),
    Rule(
        "align-split-history",
        "Chunk ends as releases before 0.32 chose them.",
        _SCHEDULER,
        implemented=False,
    ),
    Rule("context-parallel", "Blocks sharded over ranks.", _COORDINATOR, implemented=False),
    Rule(
        "connector-load",
        "What a connector has beyond the local hit is loaded before the step.",
        f"{_SCHEDULER}, schedule",
    ),
    Rule(
        "connector",
        "Connectors that load while other steps run, several connectors.",
        _MANAGER,
        implemented=False,
    ),
    Rule(
        "priority-scheduling",
        "Victims by priority rather than by arrival.",
        _SCHEDULER,
        implemented=False,
    ),
    Rule(
        "cross-attention",
        "Encoder blocks, sinks, ring buffers, hidden states.",
        _SINGLE,
        implemented=False,
    ),
)
