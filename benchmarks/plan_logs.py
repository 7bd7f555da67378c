"""Write docs/results/plan-logs.md: what `plan vllm --from-log` makes of logs that public reports
quote.

    python -m benchmarks.plan_logs

The facts are in fixtures/server_logs/vllm.toml. A test compares the page with what this module
renders.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachewitness._util import data, files, pages
from cachewitness._util.errors import UsageError
from cachewitness.plan.result import Value
from cachewitness.systems.vllm.reference.log_plan import explained
from cachewitness.systems.vllm.reference.serve_command import read

PAGE = "plan-logs"


@dataclass(frozen=True)
class Row:
    """One log. `numbers` are its numbers as (line, logged, planned, explained); `refused` is the
    reason why there is no plan, `found` names the flags that the plan named, `note` what else is to
    be known.
    """

    model: str
    source: str
    flags: str
    release: str
    numbers: list[tuple[Value, ...]]
    why: str = ""
    refused: str = ""
    found: str = ""
    note: str = ""

    @property
    def comes_out(self) -> bool:
        """Whether every number comes out to the last digit."""
        return bool(self.numbers) and all(number[3] == "yes" for number in self.numbers)


def main() -> int:
    """Write the page and return the exit code."""
    files.write(pages.folder("results") / f"{PAGE}.md", [rendered().encode()])
    print(f"docs/results/{PAGE}.md")
    return 0


def rendered() -> str:
    """Return the text of the page."""
    found = rows()
    return pages.render(PAGE, rows=found, right=sum(row.comes_out for row in found))


def rows() -> list[Row]:
    """Return every log, compared."""
    path = data.fixtures() / "server_logs" / "vllm.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        return [_row(Path(folder), table["configs"], log) for log in table["log"]]


def _row(folder: Path, configs: dict[str, Any], log: dict[str, Any]) -> Row:
    config = folder / "config.json"
    config.write_text(json.dumps(configs[log["config"]]), encoding="utf-8")
    text = folder / "server.log"
    text.write_text("\n".join(log["lines"]), encoding="utf-8")
    fields = read(f"vllm serve model {log['flags']}").fields
    if "drafter" in log:
        drafter = folder / "drafter.json"
        drafter.write_text(json.dumps(configs[log["drafter"]]), encoding="utf-8")
        fields |= {"draft_config": str(drafter)}
    common = (log["model"], log["source"], log["flags"], log["release"])
    try:
        answer = explained(text, {"layout": str(config), "release": log["release"]} | fields)
    except UsageError as error:
        return Row(*common, [], log.get("why", ""), str(error).rpartition(str(config))[2])
    numbers = [row[:4] for row in answer.tables[0].rows]
    return Row(
        *common, numbers, log.get("why", ""), found=log.get("found", ""), note=log.get("note", "")
    )


if __name__ == "__main__":
    sys.exit(main())
