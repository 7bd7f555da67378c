"""What is trained, and how: everything that a checkpoint depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from cachewitness.toy.problems.contexts import FULL_SIZE, Size
from cachewitness.toy.problems.words import VOCABULARY
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.tokenizer import vocabulary


@dataclass(frozen=True)
class Stage:
    """From this step on, prefixes are of this size, with between `examples[0]` and `examples[1]`
    worked examples.

    Behind each are at least `questions` questions, a share `recitals` of which asks for many facts
    at once. In a share `same` of the batches all prefixes tell of the same goods and people.
    """

    start: int
    examples: tuple[int, int]
    size: Size = FULL_SIZE
    questions: int = 8
    recitals: float = 0.5
    same: float = 0.7


@dataclass(frozen=True)
class Recipe:
    """A model and its training. Rates are peak learning rates.

    Rates rise over `warmup_steps`, hold, and from step `decay_start` on fall linearly to a
    fiftieth. Training begins with random parameters or with those of the checkpoint `grown_from`,
    grown. A path that does not carry what is asked for is cut in a share `cut` of the questions. A
    `published` model is written in Hugging Face form, in the dtype of that name; engines that unify
    page sizes must give it blocks of at most `block_max` tokens if it has states.

    What it learns are word problems, in stages, or the text of `packages`, in windows of so many
    tokens.
    """

    name: str
    config: ToyConfig
    stages: tuple[Stage, ...]
    steps: int
    decay_start: int
    warmup_steps: int = 100
    tokens_per_step: int = 3600
    seed: int = 1
    cut: float = 0.8
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    grown_from: str = ""
    published: str = ""
    block_max: int = 128
    packages: tuple[str, ...] = ()
    window: int = 0


def as_data(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain data, to be kept with what it made; what only text has is left
    out of another one.
    """
    data = asdict(recipe)
    for name in () if recipe.packages else ("packages", "window"):
        del data[name]
    return data


SMALL_FIRST = (
    Stage(0, (0, 1), Size(4, 3, 0), recitals=0.8),
    Stage(120, (0, 3), Size(8, 4, 1), recitals=0.6),
    Stage(250, (1, 5), recitals=0.5),
    Stage(450, (3, 9), recitals=0.4),
    Stage(700, (8, 12), recitals=0.3),
    Stage(1000, (12, 12), recitals=0.2),
)
"""Recall is learnt near by, among a few facts, then over prefixes of full length."""
FEWER_FACTS = tuple(
    replace(stage, start=start)
    for stage, start in zip(SMALL_FIRST, (0, 80, 160, 280, 420, 580), strict=True)
)
"""The same, sooner, for a model that has half of the facts to learn."""

BYTES = vocabulary(())
"""Printable ASCII characters, newline and all bytes, a token each."""
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "toy",
            ToyConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=128,
                intermediate_size=320,
                layer_types=(
                    "linear_attention",
                    "sliding_attention",
                    "linear_attention",
                    "full_attention",
                ),
                partial_rotary_factor=0.5,
                chunk_size=32,
            ),
            SMALL_FIRST,
            steps=1700,
            decay_start=900,
        ),
        Recipe(
            "window",
            ToyConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=128,
                intermediate_size=320,
                layer_types=("sliding_attention", "sliding_attention", "full_attention"),
                partial_rotary_factor=0.5,
                attention_gate="softplus",
            ),
            FEWER_FACTS,
            steps=1100,
            decay_start=500,
            published="float32",
        ),
        Recipe(
            "qwen3_5",
            ToyConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=128,
                intermediate_size=320,
                layer_types=(
                    "linear_attention",
                    "full_attention",
                    "linear_attention",
                    "full_attention",
                ),
                head_dim=160,
                partial_rotary_factor=0.1,
                linear_key_head_dim=128,
                linear_value_head_dim=128,
                rms_norm_eps=1e-6
                / 16,  # outputs are half as large and spread over four times the dimensions
            ),
            (
                Stage(0, (4, 8), recitals=0.3),
                Stage(150, (8, 12), recitals=0.3),
                Stage(280, (12, 12), recitals=0.2),
            ),
            steps=450,
            decay_start=120,
            warmup_steps=50,
            muon_rate=0.01,
            adam_rate=1e-3,
            grown_from="toy",
            published="bfloat16",
        ),
        Recipe(
            "bytes",
            ToyConfig(
                vocab_size=len(BYTES),
                hidden_size=256,
                intermediate_size=1280,
                layer_types=(
                    "linear_attention",
                    "linear_attention",
                    "linear_attention",
                    "full_attention",
                ),
                head_dim=64,
                partial_rotary_factor=0.25,
                linear_key_head_dim=64,
                linear_value_head_dim=64,
            ),
            (),
            steps=1000,
            decay_start=560,
            warmup_steps=50,
            tokens_per_step=3072,
            published="bfloat16",
            packages=("networkx", "torch"),
            window=768,
        ),
    )
}
