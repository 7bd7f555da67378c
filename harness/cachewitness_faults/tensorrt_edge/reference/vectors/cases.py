"""What TensorRT-Edge-LLM is asked, and the bugs that the questions hunt."""

from __future__ import annotations

from typing import Any

from cachewitness.core.trace_format import GroupSpec
from cachewitness.vectors import scripts
from cachewitness.vectors.case import Case, case
from cachewitness.vectors.form import CompactionInput, Flag, LookupInput, SizingInput
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

_READ = "TensorRT-Edge-LLM 0.7.1, read in its sources"

FLAGS: dict[str, Flag] = {
    "overwritten": Flag(
        "a row is overwritten before it was read: rows are copied one by one and not as one"
        " permutation",
        _READ,
    ),
    "torn": Flag("KV, lengths and states move apart", _READ),
    "unchecked-mapping": Flag(
        "a mapping that is no permutation of survivors is carried out, in part", _READ
    ),
    "empty-batch": Flag("a batch from which everybody is gone, or nobody, is not handled"),
    "stale-length": Flag("a row that moved keeps the length of who was there before"),
    "routing": Flag(
        "an absolute layer index is used where a local one is meant, or the other way round"
    ),
    "head-dims": Flag("layers of several head dims are run with one of them"),
    "bad-config": Flag("counts of layers, or sizes, that do not agree are accepted"),
    "state-position": Flag(
        "a state of N tokens is paired with a KV length of N − 1: a token is applied twice", _READ
    ),
    "whole-input": Flag("a system prompt that is the whole input leaves nothing to compute"),
    "partial-hit": Flag("a longer or shorter capture is taken for the one that is asked for"),
    "identity": Flag("content of another salt, LoRA or image is restored"),
    "stale": Flag("content of before a reset, or of other weights, is restored"),
    "lost-work": Flag("a preempted request goes on from a row that it no longer has"),
    "rows": Flag("a row is given to two requests, or to none"),
}


# --- compaction -----------------------------------------------------------------------------------
# Compaction: `mapping[i]` is the new row of slot i, −1 if it was evicted. `lengths` in tokens, of
# the batch before. Right mappings take the survivors one to one onto rows [0, new batch). The rows
# that are left over are nobody's.


MAX_BATCH = 8


def compaction_cases() -> list[Case]:
    """Return every question."""
    return [*_compaction_ascending(), *_compaction_permuted(), *_compaction_refused()]


def _compaction(
    name: str,
    comment: str,
    flags: str,
    mapping: list[int],
    new: int,
    lengths: list[int] | None = None,
) -> Case:
    own = [10 * (row + 1) for row in range(len(mapping))] if lengths is None else lengths
    return case("compaction", name, comment, flags, CompactionInput(MAX_BATCH, own, mapping, new))


def _compaction_ascending() -> list[Case]:
    return [
        _compaction("keep/one", "a batch of one that stays", "empty-batch", [0], 1),
        _compaction("keep/full", "a full batch that stays", "empty-batch", list(range(8)), 8),
        _compaction("all-gone", "everybody is gone", "empty-batch", [-1, -1, -1], 0),
        _compaction("one-gone", "a batch of one, which is gone", "empty-batch", [-1], 0),
        _compaction("empty", "an empty batch", "empty-batch", [], 0),
        _compaction("first-gone", "the first slot is evicted", "overwritten", [-1, 0, 1, 2], 3),
        _compaction(
            "last-gone", "the last slot is evicted: nothing moves", "stale-length", [0, 1, 2, -1], 3
        ),
        _compaction(
            "middle-gone", "a slot in the middle is evicted", "overwritten", [0, -1, 1, 2], 3
        ),
        _compaction(
            "every-other",
            "every other slot is evicted",
            "overwritten",
            [-1, 0, -1, 1, -1, 2, -1, 3],
            4,
        ),
        _compaction(
            "last-alone",
            "only the last slot stays",
            "overwritten",
            [-1, -1, -1, -1, -1, -1, -1, 0],
            1,
        ),
        _compaction(
            "empty-row",
            "a slot of no tokens moves with its states",
            "torn stale-length",
            [-1, 0, 1],
            2,
            [5, 0, 7],
        ),
        _compaction(
            "full-batch-first-gone",
            "a full batch without its first",
            "overwritten",
            [-1, 0, 1, 2, 3, 4, 5, 6],
            7,
        ),
    ]


def _compaction_permuted() -> list[Case]:
    return [
        _compaction(
            "swap", "two slots change places, nobody is gone", "overwritten torn", [1, 0], 2
        ),
        _compaction("rotate-up", "three slots move on by one", "overwritten torn", [1, 2, 0], 3),
        _compaction(
            "rotate-down", "three slots move back by one", "overwritten torn", [2, 0, 1], 3
        ),
        _compaction("reverse", "the order is turned round", "overwritten torn", [3, 2, 1, 0], 4),
        _compaction(
            "reverse-full",
            "a full batch is turned round",
            "overwritten torn",
            [7, 6, 5, 4, 3, 2, 1, 0],
            8,
        ),
        _compaction(
            "swap-around-a-gap",
            "the outer slots change places over an evicted one",
            "overwritten",
            [1, -1, 0],
            2,
        ),
        _compaction(
            "last-to-front",
            "the last slot fills the hole, as a swap-remove does",
            "overwritten",
            [-1, 1, 2, 0],
            3,
        ),
        _compaction(
            "descending-survivors",
            "survivors are numbered downwards",
            "overwritten",
            [-1, 2, 1, -1, 0],
            3,
        ),
        _compaction("two-cycles", "two pairs change places", "overwritten torn", [1, 0, 3, 2], 4),
        _compaction(
            "upwards", "a survivor moves to a higher row", "overwritten", [1, -1, 0, -1], 2
        ),
        _compaction(
            "swap-with-empty",
            "a slot of no tokens changes places with a full one",
            "torn stale-length",
            [1, 0],
            2,
            [0, 9],
        ),
        _compaction(
            "same-lengths", "equal lengths tell nobody apart", "torn", [1, 0, 2], 3, [4, 4, 4]
        ),
    ]


def _compaction_refused() -> list[Case]:
    def refused(name: str, comment: str, mapping: list[int], new: int, words: str) -> Case:
        own = [10 * (row + 1) for row in range(len(mapping))]
        asked = CompactionInput(MAX_BATCH, own, mapping, new)
        return case(
            "compaction",
            f"refused/{name}",
            comment,
            "unchecked-mapping",
            asked,
            refused="batchMapping newBatch",
            words=words,
        )

    return [
        refused(
            "two-on-one-row",
            "two slots on one row",
            [0, 0, 1],
            2,
            "sends slots 0 and 1 to one row, 0",
        ),
        refused(
            "beyond-new-batch", "a row from newBatch on", [0, 2, -1], 2, "batchMapping[1] is 2"
        ),
        refused(
            "beyond-old-batch",
            "a row that the old batch does not have",
            [0, 5],
            2,
            "batchMapping[1] is 5",
        ),
        refused(
            "nobody-on-a-row", "a row that nobody gets", [0, -1, -1], 2, "sends nobody to row 1"
        ),
        refused(
            "below-evicted",
            "−2 is neither a row nor an eviction",
            [0, -2],
            1,
            "batchMapping[1] is -2",
        ),
        refused("more-than-before", "a larger batch than before", [0, 1], 3, "newBatch 3"),
        refused("less-than-nothing", "a batch of −1", [-1], -1, "newBatch -1"),
        refused("one-too-few", "a survivor more than rows", [0, 1, 2], 2, "batchMapping[2] is 2"),
    ]


# --- sizing ---------------------------------------------------------------------------------------
# Construction: which layer is where, which KV layers are run together, and what is refused.
# `config`: `layer_types`, a letter for each decoder layer, A for attention and M for Mamba;
# `kv_layers`, [heads, head dim] of each attention layer; `max_batch_size`, `max_sequence_length`;
# `state`, [heads, head dim, size, conv dim, conv kernel] of Mamba layers. Other fields replace what
# follows from these. Routes are [kind, local index].


PLAIN: dict[str, Any] = {
    "max_batch_size": 4,
    "max_sequence_length": 128,
    "state": [2, 64, 16, 64, 4],
}


def sizing_cases() -> list[Case]:
    """Return every question."""
    return [*_sizing_built(), *_sizing_counts_refused(), *_sizing_sizes_refused()]


def _sizing(
    name: str, comment: str, flags: str, types: str, layers: list[list[int]], **more: Any
) -> Case:
    return case(
        "sizing",
        name,
        comment,
        flags,
        SizingInput({**PLAIN, "layer_types": types, "kv_layers": layers, **more}),
    )


def _sizing_built() -> list[Case]:
    return [
        _sizing("attention-alone", "two attention layers", "routing", "AA", [[2, 64], [2, 64]]),
        _sizing("mamba-alone", "pure Mamba: no KV at all is legal", "routing", "MM", []),
        _sizing("one-layer", "one layer", "routing", "A", [[1, 64]]),
        _sizing(
            "alternating", "every other layer is attention", "routing", "MAMA", [[2, 64], [2, 64]]
        ),
        _sizing(
            "one-in-four", "attention every fourth layer", "routing", "MMMAMMMA", [[2, 64], [2, 64]]
        ),
        _sizing("attention-first", "attention, then Mamba", "routing", "AAMM", [[2, 64], [2, 64]]),
        _sizing(
            "two-head-dims",
            "two head dims, interleaved: two groups",
            "head-dims",
            "AAMAA",
            [[8, 64], [2, 256], [4, 64], [1, 256]],
        ),
        _sizing(
            "three-head-dims",
            "three head dims, in order of appearance",
            "head-dims",
            "AAA",
            [[1, 256], [1, 64], [1, 128]],
        ),
        _sizing(
            "most-heads-last",
            "the most heads are the last layer's",
            "head-dims",
            "AAA",
            [[1, 64], [2, 64], [8, 64]],
        ),
    ]


ONE = [[2, 64]]
KV, MAMBA, HYBRID = "KVCacheManager: ", "MambaCacheManager: ", "HybridCacheManager: "


def _sizing_refused(
    name: str,
    comment: str,
    field: str,
    words: str,
    types: str,
    layers: list[list[int]],
    **more: Any,
) -> Case:
    config = {**PLAIN, "layer_types": types, "kv_layers": layers, **more}
    return case(
        "sizing",
        f"refused/{name}",
        comment,
        "bad-config",
        SizingInput(config),
        refused=field,
        words=words,
    )


def _sizing_counts_refused() -> list[Case]:
    return [
        _sizing_refused(
            "no-layers", "no layers", "layerTypes", HYBRID + "layerTypes must not be empty.", "", []
        ),
        _sizing_refused(
            "batch-0",
            "a batch of nobody",
            "maxBatchSize",
            HYBRID + "maxBatchSize must be positive.",
            "A",
            ONE,
            max_batch_size=0,
        ),
        _sizing_refused(
            "attention-count",
            "a layer less than its configurations",
            "numAttentionLayers",
            HYBRID
            + "number of kAttention layers in layerTypes (1) must equal kvConfig.numAttentionLayers"
            " (2).",
            "AM",
            [[2, 64], [2, 64]],
        ),
        _sizing_refused(
            "mamba-count",
            "a Mamba layer too few",
            "numRecurrentLayers",
            HYBRID
            + "number of kMamba layers in layerTypes (1) must equal mambaConfig.numRecurrentLayers"
            " (2).",
            "AM",
            ONE,
            recurrent_layers=2,
        ),
    ]


def _sizing_sizes_refused() -> list[Case]:
    return [
        _sizing_refused(
            "length-0",
            "sequences of no tokens",
            "maxSequenceLength",
            KV + "maxSequenceLength must be positive.",
            "A",
            ONE,
            max_sequence_length=0,
        ),
        _sizing_refused(
            "heads-0",
            "an attention layer without heads",
            "numKVHeads",
            KV + "numKVHeads must be positive for layer 1.",
            "AA",
            [[1, 64], [0, 64]],
        ),
        _sizing_refused(
            "head-dim-0",
            "heads of no size",
            "headDim",
            KV + "headDim must be positive for layer 0.",
            "A",
            [[1, 0]],
        ),
        _sizing_refused(
            "state-0",
            "a state of no size",
            "recurrentStateSize",
            MAMBA + "recurrentStateSize must be positive.",
            "M",
            [],
            state=[2, 64, 0, 64, 4],
        ),
        _sizing_refused(
            "conv-kernel-0",
            "a convolution over nothing",
            "convKernel",
            MAMBA + "convKernel must be positive.",
            "M",
            [],
            state=[2, 64, 16, 64, 0],
        ),
        _sizing_refused(
            "kv-type",
            "KV in 32 bits",
            "KV cache dtype",
            KV + "Unsupported KV cache dtype.",
            "A",
            ONE,
            kv_cache_type="kFLOAT",
        ),
        _sizing_refused(
            "batches-differ",
            "two maximum batch sizes",
            "kvConfig.maxBatchSize",
            "kvConfig.maxBatchSize (3) must equal maxBatchSize (4)",
            "A",
            ONE,
            kv_max_batch_size=3,
        ),
    ]


# --- lookup ---------------------------------------------------------------------------------------
# At which length a captured system prompt is reused. It is found whole or not at all. `cached`: the
# lengths at which this very sequence was captured. `config.system_prompt`: how many of the
# request's tokens are a system prompt; `replay_last_token`: everybody computes the last token of
# its system prompt again.


ROW = 256
GROUPS = [GroupSpec("full", ROW), GroupSpec("recurrent", ROW)]
"""A row of the batch is one block, as long as the longest sequence."""


def lookup_cases() -> list[Case]:
    """Return every question."""
    return [
        _lookup(
            "aligned",
            "a prompt of 40 was captured, the request goes on",
            "state-position",
            [40],
            40,
            50,
        ),
        _lookup("one-more", "a single token behind it", "state-position whole-input", [40], 40, 41),
        _lookup(
            "whole-input",
            "the system prompt is all there is, captured at its end alone",
            "whole-input",
            [40],
            40,
            40,
        ),
        _lookup(
            "whole-input-replayed",
            "and captured one token before",
            "whole-input state-position",
            [39, 40],
            40,
            40,
        ),
        _lookup("shorter-capture", "a shorter one was captured", "partial-hit", [39], 40, 50),
        _lookup("longer-capture", "a longer one was captured", "partial-hit", [41], 40, 50),
        _lookup(
            "among-others",
            "captured among others of the same beginning",
            "partial-hit",
            [16, 40, 48],
            40,
            60,
        ),
        _lookup("nothing-captured", "nothing was captured", "partial-hit", [], 40, 50),
        _lookup("no-system-prompt", "the request has none", "partial-hit", [40], 0, 50),
        _lookup("one-token", "a system prompt of one token", "state-position", [1], 1, 5),
        _lookup("one-token-whole", "and nothing behind it", "whole-input", [1], 1, 1),
        _lookup("full-row", "a prompt as long as a row", "state-position", [255], 255, ROW),
        _lookup(
            "replay",
            "with the last token computed again: captured at 39",
            "state-position",
            [39],
            40,
            50,
            replay_last_token=True,
        ),
        _lookup(
            "replay-not-at-40",
            "a capture at 40 is then of no use",
            "state-position",
            [40],
            40,
            50,
            replay_last_token=True,
        ),
        _lookup(
            "replay-one-token",
            "a system prompt of one token leaves nothing to restore",
            "whole-input",
            [1],
            1,
            5,
            replay_last_token=True,
        ),
    ]


def _lookup(
    name: str,
    comment: str,
    flags: str,
    captured: list[int],
    system: int,
    tokens: int,
    **config: Any,
) -> Case:
    asked = LookupInput(GROUPS, tokens, [captured, captured], {"system_prompt": system, **config})
    return case("lookup", name, comment, flags, asked)


# --- lifecycle ------------------------------------------------------------------------------------
# Whole lives on a few rows: requests with a common beginning, rows that move when somebody ends,
# rows that are taken away.


STORIES: dict[str, list[str]] = {
    "exact-replay": ["whole-input", "state-position"],
    "siblings-in-a-block": ["state-position", "partial-hit"],
    "siblings-at-a-block": ["state-position", "partial-hit"],
    "siblings-in-one-step": ["rows"],
    "preempt-and-resume": ["lost-work"],
    "abort-and-retry": ["rows"],
    "reset-with-running": ["stale"],
    "new-weights": ["stale"],
    "identities": ["identity"],
    "crowded": ["rows", "overwritten"],
}
"""What each scenario hunts."""


KEPT = 16
"""Places for captures: more than there are system prompts, so that which one makes room is no
question."""


def lifecycle_cases() -> list[Case]:
    """Return every question."""
    three = _configuration("full-swa-mamba")
    few = _configuration("full-mamba", max_batch_size=2)
    downwards = _configuration("full-mamba", survivors="descending")
    return [
        *scripts.replays(three, "manager", (1, 2, 16, 17, 33), ["whole-input", "state-position"]),
        *scripts.replays(
            _configuration("full-mamba", replay_last_token=True),
            "manager",
            (1, 2, 17),
            ["whole-input", "state-position"],
        ),
        *scripts.departures(
            downwards, "manager", ("dcba", "cdab", "abcd"), ["overwritten", "torn"]
        ),
        *scripts.departures(three, "manager", ("abcd", "badc"), ["overwritten", "torn"]),
        *scripts.turns(three, "manager", (1, 16), ["partial-hit"]),
        *scripts.stories(three, "manager", STORIES),
        *scripts.stories(few, "manager", STORIES, ("identities", "crowded")),
        *scripts.stories(
            downwards,
            "scheduler",
            STORIES,
            ("crowded", "preempt-and-resume", "siblings-in-one-step"),
        ),
    ]


def _configuration(layout: str, **options: Any) -> Configuration:
    return Configuration(layouts.load(layout), {"system_prompts": KEPT} | options, "tensorrt_edge")
