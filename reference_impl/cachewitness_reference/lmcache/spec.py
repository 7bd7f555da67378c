"""Where the rules come from, which of them are here, and in what the releases of LMCache differ.

The rules were read in the published sources of the releases named below, and where `RULES` says so,
seen on the running system. The document that describes them ("Hybrid Attention Models") is that of
0.5.3 at the latest: since 0.5.4 a step may be longer than two blocks. Both rules are here, chosen
by release.
"""

from __future__ import annotations

from dataclasses import dataclass

REPOSITORY = "https://github.com/LMCache/LMCache"
NEWEST = "0.5.6"
PINNED_RELEASE = "0.5.6"
PINNED_ON = "2026-11-20"

DEFAULT_CHUNK_SIZE = 256
"""Tokens in a chunk unless `--chunk-size` says otherwise; a hybrid model never fits it and has to
say otherwise."""

EVICTION_TRIGGER_WATERMARK = 0.8
"""Eviction begins when this share of the memory is used."""

EVICTION_RATIO = 0.2
"""Of the keys that are tracked, this share goes at once, at least one. A share of the count, not of
the memory."""

SALT_FORBIDDEN = frozenset("@/\\\x00")
SALT_LENGTH_MAX = 128
"""Characters that a salt must not contain (they separate fields and paths), and how many it may
have."""

FULL_ATTENTION_WINDOW_CHUNKS = -1
"""The window of an object group that has none: every chunk of a prefix is needed."""

NULL_BLOCK_ID = 0
"""The engine's block for a column that nobody needs. It holds nothing, so nothing is stored from it
or loaded into it."""


@dataclass(frozen=True)
class Release:
    """What a release does.

    `step_below_two_blocks`: a budget of two blocks or more is refused with recurrent layers (`[N,
    2N)`); later releases have the lower bound alone. `mamba_modes` keep reusable states.
    `separable`: there is a flag `--separate-object-groups`, and `separate_object_groups` is its
    default. `reserves_last_token`: a look-up for a recurrent model leaves the last token out.
    """

    step_below_two_blocks: bool
    mamba_modes: tuple[str, ...]
    separable: bool
    separate_object_groups: bool
    reserves_last_token: bool


_BOUNDED = Release(
    True, ("align",), separable=False, separate_object_groups=False, reserves_last_token=False
)
_SEPARATED = Release(
    True, ("align",), separable=True, separate_object_groups=True, reserves_last_token=False
)
_MERGED = Release(
    True, ("align",), separable=True, separate_object_groups=False, reserves_last_token=False
)
_UNBOUNDED = Release(
    False, ("align",), separable=True, separate_object_groups=False, reserves_last_token=False
)
_ALL_MODES = Release(
    False, ("align", "all"), separable=True, separate_object_groups=False, reserves_last_token=False
)
_TODAY = Release(
    False, ("align", "all"), separable=True, separate_object_groups=False, reserves_last_token=True
)

RELEASES: dict[str, Release] = {
    "0.4.7": _BOUNDED,  # recurrent layers are served at all; one object group for everything
    "0.5.0": _BOUNDED,
    "0.5.1": _SEPARATED,  # --separate-object-groups, on unless told otherwise
    "0.5.2": _SEPARATED,
    "0.5.3": _MERGED,  # the same, off unless told otherwise
    "0.5.4": _UNBOUNDED,  # only a budget below one block is refused
    "0.5.5": _ALL_MODES,
    "0.5.6": (
        # a prompt of whole chunks leaves its last one out, since a state after the last token
        # cannot be resumed
        _TODAY
    ),
}


@dataclass(frozen=True)
class Rule:
    """One rule of the policy: its name, what it says, where LMCache says it, and whether it is
    here.
    """

    name: str
    summary: str
    source: str
    implemented: bool = True


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules}


_CONNECTOR = "lmcache/integration/vllm/lmcache_mp_connector.py (0.5.6)"
_METADATA = "lmcache/integration/vllm/lmcache_mp_metadata.py (0.5.6)"
_GROUPS = "lmcache/v1/kv_layer_groups.py (0.5.6)"
_EDITS = "lmcache/integration/vllm/kv_cache_group_edits.py (0.5.6)"
_TRANSFER = "lmcache/v1/multiprocess/modules/lmcache_driven_transfer.py (0.5.6)"
_LOOKUP = "lmcache/v1/multiprocess/modules/lookup.py (0.5.6)"
_L1 = "lmcache/v1/distributed/l1_manager.py (0.5.6)"
_API = "lmcache/v1/distributed/api.py (0.5.6)"
_FOLD = "lmcache/v1/distributed/bitmap_ops/fold.py (0.5.6)"
_LRU = "lmcache/v1/distributed/eviction_policy/lru.py (0.5.6)"
_DOCUMENT = "docs, Hybrid Attention Models"

RULES: dict[str, Rule] = _rules(
    Rule(
        "unified-block-size",
        "The block is raised in kernel blocks until attention pages hold a state.",
        _DOCUMENT,
    ),
    Rule("chunk-multiple", "A chunk is a multiple of every group's block.", _CONNECTOR),
    Rule(
        "step-below-two-blocks",
        "N <= max_num_batched_tokens < 2N (0.4.7 to 0.5.3).",
        f"{_CONNECTOR}, then",
    ),
    Rule(
        "step-of-a-block",
        "max_num_batched_tokens >= N (0.5.4).",
        f"{_CONNECTOR}, validate_mamba_step_alignment",
    ),
    Rule(
        "group-kinds",
        "Cross attention, and recurrent layers without reusable states, are refused.",
        _EDITS,
    ),
    Rule(
        "engine-groups",
        "One engine group per cache group of the engine; block ids mean something only inside.",
        _GROUPS,
    ),
    Rule("kernel-groups", "Layers of one engine group and one shape are moved together.", _GROUPS),
    Rule(
        "object-groups",
        "Kernel groups with the same window in chunks are stored as one object, or all of them.",
        _GROUPS,
    ),
    Rule(
        "state-window",
        "A state is a window of one block: only the last one before a hit is needed.",
        _GROUPS,
    ),
    Rule("opaque-page", "A state is moved as the bytes of a page; nobody looks inside.", _EDITS),
    Rule("object-key", "Content of the whole prefix, model, rank, object group, salt.", _API),
    Rule(
        "rolling-hash",
        "A digest per full chunk, over the one before it; a partial chunk has none.",
        "token_hasher.py",
    ),
    Rule("media-ids", "Tokens of an image are replaced by ids made from its hash.", _METADATA),
    Rule(
        "fold", "A length is servable if every group has the chunks of its window before it.", _FOLD
    ),
    Rule("retain", "A look-up locks just what its hit needs.", _FOLD),
    Rule(
        "last-token-reserve",
        "With recurrent layers the last token is left out of a look-up (0.5.6).",
        _CONNECTOR,
    ),
    Rule(
        "full-hit-recompute",
        "Of a fully cached prompt the last token is computed again.",
        _CONNECTOR,
    ),
    Rule(
        "store-whole-chunks",
        "What is computed is stored chunk by chunk, from where the last store ended.",
        _METADATA,
    ),
    Rule(
        "prompt-only",
        "Generated tokens are not stored unless save_decode_cache says so.",
        _METADATA,
    ),
    Rule("null-mask", "A chunk without content in a group is not stored there.", _TRANSFER),
    Rule(
        "downsample",
        "Of a window shorter than a chunk, its last blocks alone are stored.",
        _TRANSFER,
    ),
    Rule("underflow", "If a group names too few blocks, nothing of the store is kept.", _TRANSFER),
    Rule("first-writer", "A key that is resident is not written again.", _L1),
    Rule(
        "group-memory",
        "An object group that does not fit is left out; those before it are kept.",
        _TRANSFER,
    ),
    Rule(
        "retrieve-window", "Of each object group the last chunks of its window are read.", _TRANSFER
    ),
    Rule("retrieve-skip", "Blocks that the engine has already are not written.", _METADATA),
    Rule("retrieve-all", "If one key is missing, nothing was retrieved.", _TRANSFER),
    Rule(
        "eviction-by-count",
        "At the watermark a share of the unlocked keys goes, least recently used first.",
        _LRU,
    ),
    Rule(
        "eviction-order",
        "Later chunks go before earlier ones, later object groups before earlier ones.",
        _LRU,
    ),
    Rule(
        "touch",
        "A hit touches what it needs, the end of a session everything of its request.",
        _LOOKUP,
    ),
    Rule("tier-outlives-reset", "A reset of the engine's cache leaves LMCache's alone.", _DOCUMENT),
    Rule(
        "spec-relocation",
        "A draft's block that moves is forgotten where it was (0.5.6).",
        _METADATA,
        implemented=False,
    ),
    Rule(
        "async-load",
        "A request waits while it is loaded; a load that fails is bypassed.",
        _CONNECTOR,
        implemented=False,
    ),
    Rule(
        "second-level",
        "Remote storage behind the memory, prefetched by the same fold.",
        "l2_adapters",
        implemented=False,
    ),
    Rule(
        "lock-expiry",
        "Read locks end after 300 s, write locks after 600 s.",
        _L1,
        implemented=False,
    ),
    Rule(
        "other-eviction", "ARC, IsolatedLRU, quotas by salt.", "eviction_policy", implemented=False
    ),
    Rule(
        "lazy-offload",
        "Stores put off until blocks are about to be evicted.",
        _CONNECTOR,
        implemented=False,
    ),
    Rule(
        "context-parallel",
        "Blocks sharded over ranks; ranks per server.",
        _CONNECTOR,
        implemented=False,
    ),
)

AXES: dict[str, str] = {
    "window": "whole chunks: ceil(W / chunk), of a short window W tokens",
    "recurrent": "chunk end, if a step ended there",
    "last token": "last chunk left out with states, else n - 1",
    "group miss": "shortened to what all have (fold)",
    "duplicate": "first writer wins",
    "eviction": (
        "share of the keys at a watermark, by use; later chunks and later object groups first"
    ),
    "publication": "when the copy has been made",
    "compaction": "none",
}
"""Where the policy stands in what systems differ in. The engine's own cache in front of it has
vLLM's rules."""
