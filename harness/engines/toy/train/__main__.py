"""Retrain a checkpoint from its seed: `python -m harness.engines.toy.train NAME [FOLDER]`.

The same machine gives the same parameters; another gives others that answer as well, because sums are rounded differently.
"""

from __future__ import annotations

from pathlib import Path

import click
import torch

from harness._util.data import fixtures
from harness.engines.toy.problems.fixture import CONTEXT_TOKENS_MIN
from harness.engines.toy.problems.words import VOCABULARY
from harness.engines.toy.train.loop import train
from harness.engines.toy.train.recipes import RECIPES, Recipe, as_data
from reference_impl.toy_model import checkpoint, export
from reference_impl.toy_model.tokenizer import as_hugging_face


@click.command()
@click.argument("name", type=click.Choice([*RECIPES]))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
def main(name: str, folder: Path | None) -> None:
    """Train the checkpoint NAME from its seed and write it to FOLDER (by default, over the one in the fixtures)."""
    recipe = RECIPES[name]
    if recipe.published:
        check_blocks_fill(recipe)
    torch.set_num_threads(1)  # at these sizes a second thread costs more than it brings
    parameters, accuracy = train(recipe, _say)
    click.echo(f"held-out accuracy: {_shares(accuracy)}")
    target = folder or fixtures() / "checkpoints" / name
    made = as_data(recipe) | {"accuracy": {group: round(share, 4) for group, share in accuracy.items()}}
    tokenizer = as_hugging_face(VOCABULARY)
    if recipe.published:
        export.export(target, recipe.config, parameters, tokenizer, made, dtype=torch.bfloat16)
    else:
        checkpoint.save(target, recipe.config, parameters, tokenizer, made)
    click.echo(f"written to {target}")


def check_blocks_fill(recipe: Recipe) -> None:
    """Refuse a shape with which an engine that unifies page sizes would never fill a block, so that nothing could be cached."""
    block = export.unified_block_size(recipe.config)
    if block > recipe.block_max or 4 * block > CONTEXT_TOKENS_MIN:
        raise click.ClickException(
            f"recipe {recipe.name}: blocks of {block} tokens; at most {recipe.block_max} are wanted, and four of them must fit "
            f"into the {CONTEXT_TOKENS_MIN} tokens that questions share: make states smaller or keys and values larger"
        )


def _say(step: int, loss: float, accuracy: dict[str, float], seconds: float) -> None:
    click.echo(f"step {step:5}  loss {loss:.3f}  {_shares(accuracy)}  {seconds:.0f} s")


def _shares(accuracy: dict[str, float]) -> str:
    return "  ".join(f"{group} {share:.3f}" for group, share in accuracy.items())


if __name__ == "__main__":
    main()
