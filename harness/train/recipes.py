"""What is trained, and how: everything that a checkpoint depends on."""

from __future__ import annotations

from dataclasses import dataclass

from harness.problems.words import pieces
from reference_impl.toy_model.config import ToyConfig
from reference_impl.toy_model.tokenizer import vocabulary

VOCABULARY = vocabulary(pieces())


@dataclass(frozen=True)
class Stage:
    """From this share of all steps on, contexts have between `examples[0]` and `examples[1]` worked examples."""

    start: float
    examples: tuple[int, int]


@dataclass(frozen=True)
class Recipe:
    """A model and its training. Rates are peak learning rates; `rounded` stores bfloat16."""

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
    stages: tuple[Stage, ...] = (Stage(0, (1, 3)), Stage(0.2, (3, 8)), Stage(0.45, (6, 14)), Stage(0.85, (14, 14)))
    rounded: bool = False


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
            rounded=True,
        ),
    )
}
