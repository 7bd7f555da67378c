"""What is trained, and how: everything that a checkpoint depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.problems.contexts import FULL_SIZE, Size
from harness.problems.words import pieces
from reference_impl.toy_model.config import ToyConfig
from reference_impl.toy_model.tokenizer import vocabulary

VOCABULARY = vocabulary(pieces())


@dataclass(frozen=True)
class Stage:
    """From this share of all steps on, contexts are of this size, with between `examples[0]` and `examples[1]` examples."""

    start: float
    examples: tuple[int, int]
    size: Size = FULL_SIZE


@dataclass(frozen=True)
class Recipe:
    """A model and its training. Rates are peak learning rates.

    A `published` model is rounded to bfloat16 and written in Hugging Face form; engines that unify page sizes must give it
    blocks of at most `block_max` tokens.
    """

    name: str
    config: ToyConfig
    steps: int = 3000
    tokens_per_step: int = 3000
    seed: int = 1
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    warmup_steps: int = 100
    decay_start: float = 0.5
    routed: float = 0.9
    window: int = 32
    recited: int = 12
    stages: tuple[Stage, ...] = (
        Stage(0, (1, 4), Size(4, 2, 3)),
        Stage(0.08, (1, 4), Size(8, 4, 6)),
        Stage(0.16, (1, 4)),
        Stage(0.35, (4, 8)),
        Stage(0.55, (6, 14)),
        Stage(0.85, (14, 14)),
    )
    published: bool = False
    block_max: int = 128

    def shortened(self, steps: int) -> Recipe:
        """Return the recipe with another number of steps."""
        return replace(self, steps=steps)


def as_data(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain data, to be kept with what it made."""
    return asdict(recipe)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "toy",
            ToyConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=128,
                intermediate_size=320,
                layer_types=("linear_attention", "sliding_attention", "linear_attention", "full_attention"),
                partial_rotary_factor=0.5,
                chunk_size=32,
            ),
        ),
        Recipe(
            "qwen3_5",
            ToyConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=128,
                intermediate_size=256,
                layer_types=("linear_attention", "full_attention", "linear_attention", "full_attention"),
                num_attention_heads=3,
                num_key_value_heads=3,
                head_dim=96,
                partial_rotary_factor=0.25,
                linear_num_key_heads=2,
                linear_num_value_heads=2,
                linear_key_head_dim=128,
                linear_value_head_dim=128,
            ),
            steps=2500,
            published=True,
        ),
    )
}
