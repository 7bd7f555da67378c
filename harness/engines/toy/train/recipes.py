"""What is trained, and how: everything that a checkpoint depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.engines.toy.problems.contexts import FULL_SIZE, Size
from harness.engines.toy.problems.words import VOCABULARY
from reference_impl.toy_model.config import ToyConfig


@dataclass(frozen=True)
class Stage:
    """From this step on, contexts are of this size, with between `examples[0]` and `examples[1]` worked examples."""

    start: int
    examples: tuple[int, int]
    size: Size = FULL_SIZE


@dataclass(frozen=True)
class Phase:
    """A part of the training, with optimizers of its own.

    Rates rise over `warmup_steps`, hold, and from step `decay_start` on fall linearly to a fiftieth. With `repeats`, recitals
    tell some facts twice. In a share `dropped` of the sequences recurrent memories are dropped behind the price list, in a
    share `hidden` full attention must do without old statements of what people own.
    """

    steps: int
    stages: tuple[Stage, ...]
    repeats: bool
    decay_start: int
    warmup_steps: int = 100
    dropped: float = 0.9
    hidden: float = 0.9


@dataclass(frozen=True)
class Recipe:
    """A model and its training. Rates are peak learning rates.

    Training begins with random parameters or with those of the checkpoint `grown_from`, grown. A `published` model is rounded
    to bfloat16 and written in Hugging Face form; engines that unify page sizes must give it blocks of at most `block_max`
    tokens.
    """

    name: str
    config: ToyConfig
    phases: tuple[Phase, ...]
    tokens_per_step: int = 3000
    seed: int = 1
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    window: int = 32
    recited: int = 12
    grown_from: str = ""
    published: bool = False
    block_max: int = 128


def as_data(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain data, to be kept with what it made."""
    return asdict(recipe)


FAR_FIRST = Phase(
    1200,
    (Stage(0, (1, 4), Size(4, 2, 3)), Stage(300, (1, 4), Size(8, 4, 6)), Stage(600, (1, 4)), Stage(1050, (4, 8))),
    repeats=False,
    decay_start=1200,
)
"""Teaches full attention to look prices up: a recital tells nothing twice, so nothing can be copied from near by."""
THEN_REPEATS = Phase(
    1500,
    (
        Stage(0, (1, 4), Size(8, 2, 3)),
        Stage(120, (1, 4), Size(12, 4, 6)),
        Stage(240, (1, 6)),
        Stage(600, (4, 14)),
        Stage(1100, (14, 14)),
    ),
    repeats=True,
    decay_start=500,
)
"""Teaches recurrent memories what people own, at first from near by; then everything over contexts of full length."""
WITHOUT_WINDOW = Phase(
    400, (Stage(0, (4, 8)), Stage(150, (8, 14)), Stage(280, (14, 14))), repeats=True, decay_start=100, warmup_steps=50
)
"""Lets a grown model unlearn its window."""

ATTENTION_ALONE = tuple(replace(phase, dropped=0.0, hidden=0.0) for phase in (FAR_FIRST, THEN_REPEATS))
"""The same for a model without recurrent memories, whose full attention must find the latest statement by itself."""

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
            (FAR_FIRST, THEN_REPEATS),
        ),
        Recipe(
            "window",
            ToyConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=128,
                intermediate_size=320,
                layer_types=("sliding_attention", "sliding_attention", "full_attention"),
                partial_rotary_factor=0.5,
            ),
            ATTENTION_ALONE,
        ),
        Recipe(
            "qwen3_5",
            ToyConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=128,
                intermediate_size=320,
                layer_types=("linear_attention", "full_attention", "linear_attention", "full_attention"),
                head_dim=160,
                partial_rotary_factor=0.1,
                linear_key_head_dim=128,
                linear_value_head_dim=128,
                rms_norm_eps=1e-6 / 16,  # outputs are half as large and spread over four times the dimensions
            ),
            (WITHOUT_WINDOW,),
            muon_rate=0.01,
            adam_rate=1e-3,
            grown_from="toy",
            published=True,
        ),
    )
}
