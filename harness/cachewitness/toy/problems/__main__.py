"""Writes the frozen problems: `python -m cachewitness.toy.problems [FOLDER]`, by default the
fixtures of this checkout.
"""

from __future__ import annotations

from pathlib import Path

import click

from cachewitness._util.data import fixtures
from cachewitness.toy.problems.fixture import write


@click.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Write into FOLDER though it holds files.")
def main(folder: Path | None, overwrite: bool) -> None:
    """Write the frozen problems into FOLDER."""
    folder = folder or fixtures() / "gsm8k_format"
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise click.ClickException(
            f"{folder}: holds files already; give another folder, or --overwrite to write over them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write(folder)
    click.echo(f"written to {folder}")


if __name__ == "__main__":
    main()
