"""Where the rules come from, which of them are here, and where this reference differs from the
releases.

The document describes the manager of TensorRT-Edge-LLM 0.7 to 0.10: row-batched KV tensors and
`compactBatch`. Its newest sources have pages instead and no compaction; those are another policy
and are not here. What the releases do was read in their sources and not run: they need a device of
the vendor's. A document that says "right for every mapping" and a release that is not are told
apart under `DIFFERENCES`.
"""

from __future__ import annotations

from dataclasses import dataclass

REPOSITORY = "https://github.com/NVIDIA/TensorRT-Edge-LLM"
DOCUMENT = "Hybrid Cache Manager, C++ API reference (cpp/runtime/hybridCacheManager.h)"
PINNED_RELEASE = "0.7.1"
PINNED_COMMIT = "3647690"
READ_UP_TO = "0.10.0 (bb29145, 2026-08-17)"
RELEASES = ("0.7", "0.8", "0.9", "0.10")

MAX_BATCH_SIZE_DEFAULT = 4
SYSTEM_PROMPTS_DEFAULT = 4
"""How many captured system prompts are kept unless told otherwise. Our choice: the releases keep
all of them for ever."""


@dataclass(frozen=True)
class Rule:
    """One rule of the policy: its name, what it says, where it is said, and whether it is here."""

    name: str
    summary: str
    source: str
    implemented: bool = True


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules}


_HYBRID = "cpp/runtime/hybridCacheManager.cpp (0.7.1)"
_KV = "cpp/runtime/kvCacheManager.cpp (0.7.1)"
_MAMBA = "cpp/runtime/mambaCacheManager.cpp (0.7.1)"
_RUNTIME = "cpp/runtime/llmInferenceSpecDecodeRuntime.cpp (0.7.1)"
_OURS = "our choice"

RULES: dict[str, Rule] = _rules(
    Rule(
        "routing",
        "An absolute layer index leads to one sub-manager and a local index there.",
        _HYBRID,
    ),
    Rule(
        "construction",
        "Counts of layers agree with the sub-managers; sizes are positive.",
        f"{_HYBRID}; {_KV}; {_MAMBA}",
    ),
    Rule("one-batch-size", "The three maximum batch sizes agree.", _OURS),
    Rule(
        "kv-shape",
        "A KV layer is [maxBatch, 2, heads, maxSeqLen, headDim]; separate K and V are views of it.",
        "document",
    ),
    Rule(
        "states-start-at-zero",
        "Recurrent and conv states are zero when allocated, KV is not.",
        _MAMBA,
    ),
    Rule("head-dim-groups", "KV layers are grouped by head dim, in order of appearance.", _HYBRID),
    Rule("shared-lengths", "One lengths tensor [activeBatchSize] serves all layers.", "document"),
    Rule(
        "reset",
        "Reset sets the active batch and its reuse lengths; it touches neither KV nor states.",
        _HYBRID,
    ),
    Rule(
        "commit",
        "After prefill lengths grow element-wise, after decode by a scalar; then the cache is not"
        " empty.",
        _HYBRID,
    ),
    Rule("lengths-in-range", "Lengths stay within [0, maxSequenceLength].", _OURS),
    Rule(
        "active-batch",
        "The active batch size is in [0, maxBatchSize] and set by the caller after an eviction.",
        "document",
    ),
    Rule(
        "compaction",
        "KV, lengths, recurrent and conv rows move together, as one simultaneous permutation.",
        "document",
    ),
    Rule(
        "compaction-contract",
        "Survivors go one to one onto rows [0, newBatch); all else is refused.",
        f"document; {_OURS}",
    ),
    Rule("capture", "A capture is a copy of one slot; of KV, its first n tokens.", "document"),
    Rule("capture-half", "KV is captured and restored in half precision alone.", _HYBRID),
    Rule(
        "captured-position",
        "A capture knows the position that it belongs to, and cannot be paired with another.",
        _OURS,
    ),
    Rule(
        "restore-before-reset",
        "The runtime restores or zeroes states; the reset that follows declares lengths.",
        _RUNTIME,
    ),
    Rule(
        "system-prompt",
        "A system prompt is cached under its tokens and its LoRA weights.",
        _RUNTIME,
    ),
    Rule("system-prompt-salt", "Salt and media are part of that key.", _OURS),
    Rule(
        "system-prompt-aligned",
        "What is captured at L is reused as L tokens; prefill starts at token L.",
        _OURS,
    ),
    Rule(
        "whole-input",
        "A system prompt that is the whole input is captured one token before its end as well.",
        _OURS,
    ),
    Rule(
        "system-prompt-bound",
        "At most so many are kept; the one used longest ago goes first.",
        _OURS,
    ),
    Rule(
        "batch-eviction",
        "Rows of ended requests are evicted before the next step, survivors numbered ascending.",
        _RUNTIME,
    ),
    Rule(
        "joining",
        "Waiting requests take free rows of a running batch; `static`: only when it is empty.",
        _OURS,
    ),
    Rule(
        "speculation",
        "Scattering of accepted intermediate states (EAGLE, MTP).",
        _MAMBA,
        implemented=False,
    ),
    Rule(
        "fp8-scales",
        "FP8 KV with its scales; here FP8 rows are bytes that move.",
        _KV,
        implemented=False,
    ),
    Rule(
        "paged-context-cache",
        "Pages, snapshots and block hashes of the context cache.",
        "0.10.0",
        implemented=False,
    ),
    Rule(
        "bounded-windows",
        "Pages of sliding windows that leave the window are retired.",
        "after 0.10",
        implemented=False,
    ),
)

AXES: dict[str, str] = {
    "window": "all tokens: a row keeps every one",
    "recurrent": "at exactly the captured length, any token",
    "last token": "one token: the capture is of L - 1 (releases: of L)",
    "group miss": "total miss: a system prompt is restored whole or not at all",
    "duplicate": "the first capture is kept, no second is made",
    "eviction": "LRU over captures not in use (releases: none)",
    "publication": "after the step that ends at the system prompt",
    "compaction": "rows move at once, in any order (releases: in place, ascending)",
}

DIFFERENCES: dict[str, str] = {
    "compaction in place": (
        "Releases copy rows one by one, by ascending old row, so only mappings that keep the order"
        " of survivors come out right; with oldBatch == newBatch they leave KV where it is and move"
        " the rest. `in_place` does so too."
    ),
    "compaction unchecked": (
        "Releases accept duplicates, rows from newBatch on and mappings with holes, and check the"
        " active batch only after KV has moved. Here all is checked before anything moves."
    ),
    "BF16 states": "Releases cannot compact bfloat16 states; here any floating dtype moves.",
    "head dims": (
        "Releases compact KV of head dims 64, 128, 256 and 512 alone; here any positive one."
    ),
    "separate views": (
        "From 0.7 to 0.9.0 separate K and V tile the buffer as [2, maxBatch, ...], against the"
        " combined view. Here both views show the same cache."
    ),
    "lengths before the first reset": (
        "Releases show [maxBatch] lengths until the first reset and increment them all; here the "
        "view is the active batch, which is empty."
    ),
    "all empty": (
        "The document's summary (the cache of all sequences is empty) and its word on the return"
        " value (no prefill has been committed yet) differ between a reset with reuse and the first"
        " commit. Here, as in the releases, a cache that holds reused tokens is not empty."
    ),
    "vacated rows": (
        "Releases leave stale lengths in rows that a compaction vacates; here such a row is of"
        " nobody until it is reset."
    ),
    "system prompt at N - 1": (
        "Releases restore the state after N tokens and then compute token N - 1 again, which"
        " recurrent layers apply twice. Here a capture at L is only ever paired with a reuse of L"
        " tokens."
    ),
    "positions": (
        "Releases attach no position to a capture and check no bounds; restoring states is the"
        " runtime's own code."
    ),
    "system prompt by a prefill of its own": (
        "Releases compute a system prompt in a batch of one and restore it; here the "
        "first request's prefill stops where it ends."
    ),
}
