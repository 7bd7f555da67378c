"""Every answered question as a table: for notebooks and other statistics.

One row for each arm, question and filter, with what identifies the question (prompt hash, row,
tenant), what was answered, what was restored, and what a repetition needs (salt, seed, versions).
Its `id`, `arm/question/filter`, is the same in every run. Written as Parquet, which keeps types,
and as CSV, which opens anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.parity.scores.run import Outcome


def answers(outcome: Outcome, engine: str, seed: int) -> Any:
    """Return a pandas.DataFrame of all rows of all arms."""
    import pandas

    constant = {"engine": engine, "seed": seed} | {
        f"version_{name}": text for name, text in outcome.versions.items()
    }
    return pandas.DataFrame([row | constant for row in _rows(outcome)])


def write(outcome: Outcome, engine: str, seed: int, folder: Path) -> list[Path]:
    """Write the table into a folder, as Parquet and as CSV, and return the files.

    Raises UsageError if they cannot be written.
    """
    frame = answers(outcome, engine, seed)
    paths = [folder / "answers.parquet", folder / "answers.csv"]
    try:
        frame.to_parquet(paths[0], index=False)
        frame.to_csv(paths[1], index=False)
    except OSError as error:
        raise UsageError(f"{folder}: answers cannot be written ({error.strerror})") from None
    return paths


def _rows(outcome: Outcome) -> list[dict[str, Any]]:
    groups = sorted(
        {
            name
            for scores in outcome.scores.values()
            for a in scores.answers.values()
            for name in a.restored
            if name
        }
    )
    found = []
    for arm, scores in outcome.scores.items():
        for row in scores.rows:
            answer = scores.answers[row.doc]
            restored: Mapping[str, int] = {
                f"restored_{name}": answer.restored.get(name, 0) for name in groups
            }
            found.append(
                {"id": f"{arm}/{row.doc}/{row.filter}", "arm": arm}
                | msgspec.to_builtins(row)
                | {
                    "text": answer.text,
                    "tokens": len(answer.tokens),
                    "prompt_tokens": answer.prompt_tokens,
                    "restored": answer.restored.get("", 0),
                }
                | restored
                | {
                    "from_tier": answer.from_tier,
                    "preemptions": answer.preemptions,
                    "drafted": answer.drafted,
                    "evictions": answer.evictions,
                    "salt": outcome.salts[arm].get(row.doc, ""),
                }
            )
    return found
