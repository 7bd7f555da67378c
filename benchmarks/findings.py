"""Write docs/results/findings.md, and a picture of each finding's trace, from fixtures/findings.

    python -m benchmarks.findings

fixtures/findings/findings.toml says what was found; nothing is run. What stops an engine is told in
words alone.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.trace_picture import drawn
from cachewitness._util import data, files, pages
from cachewitness.core.trace_format import load

REGISTER = "findings.toml"


class Finding(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of the register, whose head says what its fields mean."""

    name: str
    engine: str
    version: str
    anomaly: str
    asked: str
    happens: str
    passes: str
    report: str
    page: str
    seen: str = ""
    sentence: str = ""
    trace: str = ""
    shows: int = 0
    alone: list[str] = []

    @property
    def picture(self) -> str:
        """The file name of its trace's picture."""
        return f"{Path(self.trace).stem}.svg" if self.trace else ""

    @property
    def stored(self) -> str:
        """Where its trace is, from docs/results."""
        return f"../../{(folder() / self.trace).resolve().relative_to(folder().parents[1])}"

    @property
    def anchor(self) -> str:
        """The anchor of its heading, as GitHub makes it."""
        return re.sub(r"[^\w\- ]", "", self.name.lower()).replace(" ", "-")

    @property
    def reports(self) -> str:
        """The public report, as a link."""
        return linked(self.report)


class Stopped(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of what ends an engine's process, or has it wait for ever: words, and nothing
    that does it.
    """

    engine: str
    version: str
    anomaly: str
    what: str
    how: str
    report: str
    page: str
    seen: str = ""


def linked(report: str) -> str:
    """Return a public report, whose first number is a link; a number alone is of the same
    repository.
    """
    return re.sub(r"([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", report)


def folder() -> Path:
    """Return the folder of the register."""
    return data.fixtures() / "findings"


def register() -> list[Finding]:
    """Return what was found and can be seen again, in the register's order."""
    return msgspec.convert(_whole()["finding"], list[Finding])


def stopped() -> list[Stopped]:
    """Return what stopped an engine, in the register's order."""
    return msgspec.convert(_whole()["stopped"], list[Stopped])


def _whole() -> dict[str, Any]:
    return tomllib.loads((folder() / REGISTER).read_text(encoding="utf-8"))


def page() -> str:
    """Return docs/results/findings.md."""
    found = register()
    engines = {
        one.engine: [other for other in found if other.engine == one.engine] for one in found
    }
    rows = [
        [
            f"[{one.name}](#{one.anchor})",
            one.engine,
            one.seen or one.version,
            f"[`{one.anomaly}`](../reference/anomalies.md#{one.anomaly})",
        ]
        for one in found
    ]
    stops = [
        [
            one.engine,
            one.seen or one.version,
            one.what,
            f"[`{one.anomaly}`](../reference/anomalies.md#{one.anomaly})",
            one.how,
            linked(one.report),
            f"[{one.page.split('.')[0]}](../{one.page})",
        ]
        for one in stopped()
    ]
    return pages.render("findings", engines=engines, count=len(found), rows=rows, stops=stops)


def pictures() -> dict[str, str]:
    """Return the pictures, by file name in docs/results/findings."""
    made = {}
    for one in register():
        if one.trace:
            trace = load(folder() / one.trace)
            made[one.picture] = drawn(trace, one.shows or len(trace.ops))
    return made


def main() -> int:
    """Write the page and the pictures, and return the exit code."""
    files.write(pages.folder("results") / "findings.md", [page().encode()])
    drawings = pages.folder("results") / "findings"
    drawings.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        files.write(drawings / name, [picture.encode()])
    print(f"docs/results/findings.md and {len(pictures())} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
