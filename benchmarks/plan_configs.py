"""Write docs/results/plan-configs.md: what `plan vllm` makes of published configurations.

    python -m benchmarks.plan_configs

The facts are in fixtures/published_configs.toml. A test compares the page with what this module
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
from cachewitness.plan import sources
from cachewitness.systems.vllm.reference.plan import Request, plan

PAGE = "plan-configs"
MEMORY = 40 << 30
TOKENS = 8192


@dataclass(frozen=True)
class Row:
    """One configuration. `refused` is the reason why there is no plan; else `block` are the tokens
    in a block of attention (None without one), and `answer` is the plan's own sentence.
    """

    model: str
    kind: str
    source: str
    refused: str = ""
    block: int | None = None
    answer: str = ""


def main() -> int:
    """Write the page and return the exit code."""
    files.write(pages.folder("results") / f"{PAGE}.md", [rendered().encode()])
    print(f"docs/results/{PAGE}.md")
    return 0


def rendered() -> str:
    """Return the text of the page."""
    found = rows()
    return pages.render(PAGE, rows=found, planned=sum(not row.refused for row in found))


def rows() -> list[Row]:
    """Return every configuration, planned."""
    path = data.fixtures() / "published_configs.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        return [_row(Path(folder) / "config.json", each) for each in table["config"]]


def _row(path: Path, config: dict[str, Any]) -> Row:
    fields = config["fields"]
    path.write_text(json.dumps(fields), encoding="utf-8")
    common = (config["model"], fields["model_type"], config["source"])
    try:
        length = min(TOKENS, sources.model(str(path)).max_length)
        answer = plan(Request(str(path), memory=MEMORY, prompt_tokens=length))
    except UsageError as error:
        return Row(*common, refused=str(error).rpartition(f"{path}: ")[2])
    named = {line.name: line.value for line in answer.lines}
    block = named.get("unified_block_tokens", named.get("alignment_tokens"))
    return Row(*common, block=block if isinstance(block, int) else None, answer=answer.answer)


if __name__ == "__main__":
    sys.exit(main())
