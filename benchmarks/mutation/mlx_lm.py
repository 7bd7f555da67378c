"""mlx-lm as it is mutated: which files are driven, what is run on them here, and its own tests laid
out so that they run without a model's files.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.mutation.cases import Case, in_turn
from benchmarks.mutation.engine import MutatedEngine, TestsOfItsOwn
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
TESTS = ("test_prompt_cache.py", "test_generate.py", "test_server.py", "test_models.py")
ALONE = "qwen3"
"""The model that its tests are given: attention alone, as theirs is."""


def _load(source: str) -> None:
    importlib.import_module("cachewitness.systems.mlx_lm.engine")


def _cases(source: str, seed: int) -> list[Case]:
    return in_turn(
        cases_of(
            f"mlx-lm:model={model}", "answers", configurations(), RELEASE, seed, seeds=2, turns=1
        )
        for model in MODELS
    )


def _lay_out(source: Path, tests: Path, work: Path) -> list[str]:
    """Lay the tests of caches and batches out. A model with random weights is in place of the one
    that they load from the network, and a letter is a token.
    """
    for name in TESTS:
        shutil.copy(tests / name, work / name)
    os.chdir(work)
    sys.path.insert(0, str(work))
    vars(importlib.import_module("mlx_lm.utils"))["load"] = _loaded
    return [*TESTS]


def _loaded(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    from cachewitness.systems.mlx_lm.server import model_of

    return model_of(ALONE), _Letters()


class _Letters:
    """A tokenizer whose tokens are letters."""

    eos_token_ids = frozenset[int]()

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        """Return the letters' numbers."""
        return [ord(letter) % 64 for letter in text]

    def decode(self, tokens: list[int]) -> str:
        """Return letters."""
        return "".join(chr(64 + token % 64) for token in tokens)

    def apply_chat_template(self, messages: list[dict[str, str]], **kwargs: Any) -> list[int]:
        """Return the tokens of all that is said."""
        return self.encode(" ".join(message["content"] for message in messages))


ENGINE = MutatedEngine(
    name="mlx_lm",
    title="mlx-lm",
    folder="mlx_lm",
    paths=PATHS,
    parts=PARTS,
    load=_load,
    cases=_cases,
    tests=TestsOfItsOwn(_lay_out),
    budget=4.0,
    forks_warm=False,
)
