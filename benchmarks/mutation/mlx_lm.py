"""mlx-lm as it is mutated: which files are driven, and what is run on them here."""

from __future__ import annotations

import importlib

from benchmarks.mutation.cases import Case, in_turn
from benchmarks.mutation.engine import MutatedEngine
from benchmarks.mutation.own_cases import cases_of
from cachewitness.systems.mlx_lm.kind import configurations

RELEASE = "0.32"
MODELS = ("qwen3_next", "gemma3_text")
"""GatedDeltaNet beside attention, and sliding windows."""
PATHS = ("generate.py", "models/base.py", "models/cache.py")
"""The driven files: the batches, the masks and the caches."""
PARTS = {
    "generate.py": (
        *("PromptProcessingBatch", "GenerationBatch", "BatchGenerator"),
        *("_right_pad_prompts", "_merge_caches", "_extend_cache"),
    ),
    "models/base.py": ("create_attention_mask", "create_causal_mask", "create_ssm_mask"),
    "models/cache.py": (
        *("make_prompt_cache", "save_prompt_cache", "load_prompt_cache"),
        *("can_trim_prompt_cache", "trim_prompt_cache", "create_attention_mask", "dynamic_roll"),
        *("_BaseCache", "KVCache", "RotatingKVCache", "ArraysCache", "CacheList"),
        *("BatchKVCache", "BatchRotatingKVCache", "TokenBuffer", "PromptTrie", "LRUPromptCache"),
    ),
}
"""Of these files: the others are of one request without a batch, of texts, and of quantized,
concatenated and chunked caches."""


def _load(source: str) -> None:
    importlib.import_module("cachewitness.systems.mlx_lm.engine")


def _cases(source: str, seed: int) -> list[Case]:
    return in_turn(
        cases_of(
            f"mlx-lm:model={model}", "answers", configurations(), RELEASE, seed, seeds=2, turns=1
        )
        for model in MODELS
    )


ENGINE = MutatedEngine(
    name="mlx_lm",
    title="mlx-lm",
    folder="mlx_lm",
    paths=PATHS,
    parts=PARTS,
    load=_load,
    cases=_cases,
    budget=4.0,
    forks_warm=False,
)
