"""Train a checkpoint from its seed: `python -m cachewitness_training NAME FOLDER`.

The same machine gives the same parameters; another gives others that answer as well, because sums
are rounded differently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch

from cachewitness._util.errors import UsageError
from cachewitness.toy.problems.fixture import CONTEXT_TOKENS
from cachewitness.toy.problems.words import VOCABULARY
from cachewitness_reference.toy_model import checkpoint, export
from cachewitness_reference.toy_model.tokenizer import as_hugging_face
from cachewitness_training.loop import train
from cachewitness_training.needs import Needs
from cachewitness_training.recipes import BYTES, RECIPES, Recipe, as_data


@click.command()
@click.argument("name", type=click.Choice([*RECIPES]))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Write into FOLDER though it holds files.")
def main(name: str, folder: Path, overwrite: bool) -> None:
    """Train the checkpoint NAME from its seed and write it to FOLDER.

    What has been reached is kept in FOLDER.training, from which the same command goes on after it
    was killed.
    """
    recipe = RECIPES[name]
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise click.ClickException(
            f"{folder}: holds files already; give another folder, or --overwrite to write over them"
        )
    if recipe.published and "linear_attention" in recipe.config.layer_types:
        check_blocks_fill(recipe)
    torch.set_num_threads(1)  # at these sizes a second thread costs more than it brings
    kept = folder.with_name(f"{folder.name}.training")
    try:
        parameters, found = train(recipe, kept, _print_progress)
    except UsageError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"held out:{_format_measured(found.get('right') or found['nats'])}")
    _write(folder, recipe, parameters, found)
    kept.unlink(missing_ok=True)
    click.echo(f"written to {folder}")


def _write(
    folder: Path, recipe: Recipe, parameters: dict[str, torch.Tensor], found: dict[str, Any]
) -> None:
    made = as_data(recipe) | found
    tokenizer = as_hugging_face(BYTES if recipe.packages else VOCABULARY)
    if recipe.published:
        export.export(
            folder,
            recipe.config,
            parameters,
            tokenizer,
            made,
            dtype=getattr(torch, recipe.published),
        )
    else:
        checkpoint.save(folder, recipe.config, parameters, tokenizer, made)


def check_blocks_fill(recipe: Recipe) -> None:
    """Refuse a shape with which an engine that unifies page sizes would never fill a block, so
    that nothing could be cached.
    """
    block = export.unified_block_size(recipe.config)
    if block > recipe.block_max or 4 * block > CONTEXT_TOKENS:
        raise click.ClickException(
            f"recipe {recipe.name}: blocks of {block} tokens; at most {recipe.block_max} are"
            f" wanted, and four of them must fit into the {CONTEXT_TOKENS} tokens that questions"
            " share: make states smaller or keys and values larger"
        )


def _print_progress(step: int, loss: float, measured: Needs | None, seconds: float) -> None:
    click.echo(f"step {step:5}  loss {loss:.3f}  {seconds:.0f} s{_format_measured(measured or {})}")


def _format_measured(measured: Needs) -> str:
    """Return the shares of right answers or the nats a byte, a line for each damage."""
    return "".join(
        f"\n  {damage:22} {'  '.join(f'{group} {share:.2f}' for group, share in found.items())}"
        for damage, found in measured.items()
    )


if __name__ == "__main__":
    main()
