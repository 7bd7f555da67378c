"""Construction: which layer is where, which KV layers are run together, and what is refused.

`config`: `layer_types`, a letter for each decoder layer, A for attention and M for Mamba; `kv_layers`, [heads, head dim] of
each attention layer; `max_batch_size`, `max_sequence_length`; `state`, [heads, head dim, size, conv dim, conv kernel] of Mamba
layers. Other fields replace what follows from these. Routes are [kind, local index].
"""

from __future__ import annotations

from typing import Any

from harness.vectors.case import Case
from harness.vectors.form import SizingInput

PLAIN: dict[str, Any] = {"max_batch_size": 4, "max_sequence_length": 128, "state": [2, 64, 16, 64, 4]}


def cases() -> list[Case]:
    """Return every question."""
    return [*_built(), *_counts_refused(), *_sizes_refused()]


def _case(name: str, comment: str, flags: str, types: str, layers: list[list[int]], **more: Any) -> Case:
    return Case(
        f"sizing/{name}", comment, flags.split(), SizingInput({**PLAIN, "layer_types": types, "kv_layers": layers, **more})
    )


def _built() -> list[Case]:
    return [
        _case("attention-alone", "two attention layers", "routing", "AA", [[2, 64], [2, 64]]),
        _case("mamba-alone", "pure Mamba: no KV at all is legal", "routing", "MM", []),
        _case("one-layer", "one layer", "routing", "A", [[1, 64]]),
        _case("alternating", "every other layer is attention", "routing", "MAMA", [[2, 64], [2, 64]]),
        _case("one-in-four", "attention every fourth layer", "routing", "MMMAMMMA", [[2, 64], [2, 64]]),
        _case("attention-first", "attention, then Mamba", "routing", "AAMM", [[2, 64], [2, 64]]),
        _case(
            "two-head-dims",
            "two head dims, interleaved: two groups",
            "head-dims",
            "AAMAA",
            [[8, 64], [2, 256], [4, 64], [1, 256]],
        ),
        _case("three-head-dims", "three head dims, in order of appearance", "head-dims", "AAA", [[1, 256], [1, 64], [1, 128]]),
        _case("most-heads-last", "the most heads are the last layer's", "head-dims", "AAA", [[1, 64], [2, 64], [8, 64]]),
    ]


ONE = [[2, 64]]
KV, MAMBA, HYBRID = "KVCacheManager: ", "MambaCacheManager: ", "HybridCacheManager: "


def _refused(name: str, comment: str, field: str, words: str, types: str, layers: list[list[int]], **more: Any) -> Case:
    config = {**PLAIN, "layer_types": types, "kv_layers": layers, **more}
    return Case(f"sizing/refused/{name}", comment, ["bad-config"], SizingInput(config), refused=field, words=words)


def _counts_refused() -> list[Case]:
    return [
        _refused("no-layers", "no layers", "layerTypes", HYBRID + "layerTypes must not be empty.", "", []),
        _refused(
            "batch-0",
            "a batch of nobody",
            "maxBatchSize",
            HYBRID + "maxBatchSize must be positive.",
            "A",
            ONE,
            max_batch_size=0,
        ),
        _refused(
            "attention-count",
            "a layer less than its configurations",
            "numAttentionLayers",
            HYBRID + "number of kAttention layers in layerTypes (1) must equal kvConfig.numAttentionLayers (2).",
            "AM",
            [[2, 64], [2, 64]],
        ),
        _refused(
            "mamba-count",
            "a Mamba layer too few",
            "numRecurrentLayers",
            HYBRID + "number of kMamba layers in layerTypes (1) must equal mambaConfig.numRecurrentLayers (2).",
            "AM",
            ONE,
            recurrent_layers=2,
        ),
    ]


def _sizes_refused() -> list[Case]:
    return [
        _refused(
            "length-0",
            "sequences of no tokens",
            "maxSequenceLength",
            KV + "maxSequenceLength must be positive.",
            "A",
            ONE,
            max_sequence_length=0,
        ),
        _refused(
            "heads-0",
            "an attention layer without heads",
            "numKVHeads",
            KV + "numKVHeads must be positive for layer 1.",
            "AA",
            [[1, 64], [0, 64]],
        ),
        _refused("head-dim-0", "heads of no size", "headDim", KV + "headDim must be positive for layer 0.", "A", [[1, 0]]),
        _refused(
            "state-0",
            "a state of no size",
            "recurrentStateSize",
            MAMBA + "recurrentStateSize must be positive.",
            "M",
            [],
            state=[2, 64, 0, 64, 4],
        ),
        _refused(
            "conv-kernel-0",
            "a convolution over nothing",
            "convKernel",
            MAMBA + "convKernel must be positive.",
            "M",
            [],
            state=[2, 64, 16, 64, 0],
        ),
        _refused(
            "kv-type", "KV in 32 bits", "KV cache dtype", KV + "Unsupported KV cache dtype.", "A", ONE, kv_cache_type="kFLOAT"
        ),
        _refused(
            "batches-differ",
            "two maximum batch sizes",
            "kvConfig.maxBatchSize",
            "kvConfig.maxBatchSize (3) must equal maxBatchSize (4)",
            "A",
            ONE,
            kv_max_batch_size=3,
        ),
    ]
