"""The option `--table`, the same for every command that has rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def table_option(rows: str) -> Callable[[Any], Any]:
    """Return the option, for a command that writes such rows."""
    what = (
        f"Write {rows} as a table for pandas: CSV, or Parquet if FILE ends in .parquet (extra"
        " `tables`)."
    )
    return click.option(
        "--table", "table", type=click.Path(path_type=Path), metavar="FILE", help=what
    )


def ready(table: Path | None) -> None:
    """Make sure, before a long run, that the table can be written. Raises UsageError if not."""
    if table is None:
        return
    from cachewitness._util import frame
    from cachewitness.sessions.run import store

    store.ready(table, "--table")
    frame.check(table, "--table")
