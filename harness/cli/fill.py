"""`cachewitness fill`: test vectors from the references."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--policy", "chosen", multiple=True, metavar="NAME", help="Fill the vectors of this policy; may be repeated; default: all."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder to write to; default: the published vectors.",
)
def fill(chosen: tuple[str, ...], out: Path | None) -> None:
    """Write test vectors from the references, as DIR/<policy>/<kind>.json.

    What a vector expects follows from the reference alone, so filling twice writes the same bytes.
    """
    from harness.vectors import fill as filling
    from harness.vectors import store

    total = 0
    for policy in chosen or filling.asked_policies():
        for path, file in filling.write(policy, out or store.folder()):
            total += file.info.count
            click.echo(f"{path}: {file.info.count} vectors")
    click.echo(f"{total} vectors")
