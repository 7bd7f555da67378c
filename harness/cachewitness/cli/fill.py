"""`cachewitness fill`: test vectors from the references."""

from __future__ import annotations

from pathlib import Path

import click

from cachewitness._util import output
from cachewitness.cli.json_option import json_option
from cachewitness.cli.options import say_written


@click.command()
@click.option(
    "--policy",
    "chosen",
    multiple=True,
    metavar="NAME",
    help="Fill the vectors of this policy; may be repeated; default: all.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder to write to; default: the published vectors.",
)
@json_option("written")
def fill(chosen: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Write test vectors from the references, as DIR/<policy>/<kind>.json.

    What a vector expects follows from the reference alone, so filling twice writes the same bytes.
    """
    from cachewitness.vectors import fill as filling
    from cachewitness.vectors import store

    counts: dict[Path, int] = {}
    for policy in chosen or filling.asked_policies():
        for path, file in filling.write(policy, out or store.folder()):
            counts[path] = file.info.count
            if not as_json:
                output.echo(f"{path}: {file.info.count} vectors")
    if as_json:
        say_written(
            [*counts], as_json=True, counts={str(path): count for path, count in counts.items()}
        )
    else:
        output.echo(f"{sum(counts.values())} vectors")
