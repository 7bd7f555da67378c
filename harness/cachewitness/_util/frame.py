"""Rows as a file for pandas and spreadsheets: CSV, or Parquet by its suffix, which keeps types
and needs pandas.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cachewitness._util.errors import UsageError

SUFFIXES = (".csv", ".parquet")
WRITERS = ("pyarrow", "fastparquet")
"""With any of these pandas writes Parquet."""
INSTALL = "pip install 'cachewitness[tables]'"


def check(path: Path, option: str) -> None:
    """Make sure, before anything runs, that rows can be written so.

    Raises UsageError for another suffix, or without what writes it.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{option}: {path} is neither a .csv nor a .parquet")
    if path.suffix == ".parquet":
        try:
            import pandas  # noqa: F401

            if not any(map(find_spec, WRITERS)):
                raise ImportError(name=WRITERS[0])
        except ImportError as error:
            raise UsageError(
                f"{option}: {path} needs {error.name}: {INSTALL}; or name a .csv"
            ) from None


def content(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], path: Path) -> bytes:
    """Return rows as the suffix of a file says, `columns` first to last; a row that lacks one has
    none there.

    `id` is a column, and no two rows have the same one.
    """
    assert len({row["id"] for row in rows}) == len(rows)
    if path.suffix == ".parquet":
        import pandas

        table: bytes = pandas.DataFrame(
            [dict(row) for row in rows], columns=list(columns)
        ).to_parquet(index=False)
        return table
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: "" if value is None else value for name, value in row.items()} for row in rows
    )
    return text.getvalue().encode("utf-8", "replace")
