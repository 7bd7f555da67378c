"""Write docs/findings.md, and a picture of each finding's trace, from fixtures/findings.

    python -m benchmarks.findings

fixtures/findings/findings.toml says what was found; nothing is run.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

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
        """Where its trace is, from docs/."""
        return f"../{(folder() / self.trace).resolve().relative_to(folder().parents[1])}"

    @property
    def anchor(self) -> str:
        """The anchor of its heading, as GitHub makes it."""
        return re.sub(r"[^\w\- ]", "", self.name.lower()).replace(" ", "-")

    @property
    def reports(self) -> str:
        """The public report, whose first number is a link; a number alone is of the same
        repository.
        """
        return re.sub(
            r"([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", self.report
        )


def folder() -> Path:
    """Return the folder of the register."""
    return data.fixtures() / "findings"


def register() -> list[Finding]:
    """Return what was found, in the register's order."""
    whole = tomllib.loads((folder() / REGISTER).read_text(encoding="utf-8"))
    return msgspec.convert(whole["finding"], list[Finding])


def page() -> str:
    """Return docs/findings.md."""
    found = register()
    engines = {
        one.engine: [other for other in found if other.engine == one.engine] for one in found
    }
    rows = [
        [
            f"[{one.name}](#{one.anchor})",
            one.engine,
            one.seen or one.version,
            f"[`{one.anomaly}`](anomalies.md#{one.anomaly})",
        ]
        for one in found
    ]
    return pages.render("findings", engines=engines, count=len(found), rows=rows)


def pictures() -> dict[str, str]:
    """Return the pictures, by file name in docs/findings."""
    made = {}
    for one in register():
        if one.trace:
            trace = load(folder() / one.trace)
            made[one.picture] = drawn(trace, one.shows or len(trace.ops))
    return made


def main() -> int:
    """Write the page and the pictures, and return the exit code."""
    files.write(pages.folder() / "findings.md", [page().encode()])
    drawings = pages.folder() / "findings"
    drawings.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        files.write(drawings / name, [picture.encode()])
    print(f"docs/findings.md and {len(pictures())} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
