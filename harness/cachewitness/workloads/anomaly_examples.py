"""The anomalies by example: for each, anomalous histories and lawful ones that look like them.

A story is a text file in `fixtures/histories`. Its head names the anomaly that it looks like, why
the lawful variant is legal, what is different in the anomalous one, and the source; then follow the
lines of a history (`cachewitness.workloads.notation`). A line that begins with `+` is part of the
lawful history alone, one with `-` of the anomalous history alone. A story without `anomalous` has a
lawful history only.

`python -m cachewitness.workloads.anomaly_examples` writes every story as JSON lines, and the table
in `docs/reference/anomalies.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachewitness._util import data, pages
from cachewitness._util.errors import UsageError
from cachewitness.core.checkers import ALL
from cachewitness.core.checkers.anomalies import BY_NAME, CATALOGUE
from cachewitness.core.events import History
from cachewitness.core.stored import dump
from cachewitness.workloads.notation import parse

FIELDS = ("looks like", "legal", "anomalous", "tempts", "source")

NO_STORY = {
    "divergence": (
        "the engine publishes one key more than the reference of its release",
        (
            "other block ids, other victims, another of two blocks with the same key: the reference"
            " follows these choices"
        ),
        "harness/cachewitness/sessions/run/lockstep.py",
    ),
    "hung": (
        "an operation is not answered within the deadline; the process is ended",
        "an operation that takes nearly as long is answered, and the next one too",
        "harness/cachewitness/engines/isolation/process.py",
    ),
    "silent-divergence": (
        (
            "the block tables are right, and a chunk goes on from a convolution's state that was"
            " never restored"
        ),
        "logits of another chunk size, batch or dtype: they differ from the definition by rounding",
        "suites/toy/engine/test_detectors.py",
    ),
}
"""What no history can show, as it takes two runs, a clock or tensors: the anomaly, its look-alike,
and where it is found."""


@dataclass(frozen=True)
class AnomalyExample:
    """One look-alike and, if `anomalous` says what is different, its illegal baseline. `tempts` is
    the checker in question.
    """

    name: str
    anomaly: str
    legal: str
    anomalous: str
    tempts: str
    source: str
    text: str

    def history(self, kind: str) -> History:
        """Return the `legal` or the `anomalous` history.

        Raises UsageError naming the story and the line of its file.
        """
        own, other = ("+", "-") if kind == "legal" else ("-", "+")
        lines = [
            ("" if line.startswith(other) else line.removeprefix(own))
            for line in self.text.splitlines()
        ]
        tells = f"{self.name} ({'looks like' if kind == 'legal' else 'is'}: {self.anomaly})"
        return parse("\n".join(line.strip() for line in lines), f"{self.name}.txt", tells)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which histories the story has."""
        return ("legal", "anomalous") if self.anomalous else ("legal",)


def load(folder: Path | None = None) -> list[AnomalyExample]:
    """Read every story, by name.

    Raises UsageError for a story without its fields, or about an anomaly or a checker that does not
    exist.
    """
    return [_read(path) for path in sorted((folder or _folder()).glob("*.txt"))]


def files(stories: list[AnomalyExample]) -> Iterator[tuple[str, bytes]]:
    """Yield the path, relative to the folder of histories, and the content of each history."""
    for story in stories:
        for kind in story.kinds:
            yield f"{kind}/{story.name}.jsonl", b"".join(dump(story.history(kind)))


def document(stories: list[AnomalyExample]) -> str:
    """Return docs/reference/anomalies.md: a table of the anomalies, then the examples of each."""
    anomalies = []
    examples = []
    for anomaly in CATALOGUE:
        link = f"[{anomaly.name}](#{anomaly.name})"
        anomalies.append([link, anomaly.invariant, anomaly.implies, reported_by(anomaly.name)])
        rows = [_row(story) for story in stories if story.anomaly == anomaly.name]
        if anomaly.name in NO_STORY:
            illegal, legal, where = NO_STORY[anomaly.name]
            rows.insert(0, ["", legal, illegal, f"`{where}`"])
        examples.append((anomaly.name, rows))
    return pages.render("anomalies", anomalies=anomalies, examples=examples)


def reported_by(anomaly: str) -> str:
    """Return who reports an anomaly: checkers, or what stands beside them."""
    checkers = ", ".join(checker.name for checker in ALL if anomaly in checker.anomalies)
    return checkers or ("differential" if anomaly == "divergence" else "engine")


def _row(story: AnomalyExample) -> list[str]:
    folder = "../../fixtures/histories"
    texts = {"legal": story.legal, "anomalous": story.anomalous}
    cells = [
        f"{texts[kind]} ([history]({folder}/{kind}/{story.name}.jsonl))" for kind in story.kinds
    ]
    cells += [""] * (2 - len(cells))
    return [f"[{story.name}]({folder}/{story.name}.txt)", *cells, story.source]


def _folder() -> Path:
    return data.fixtures() / "histories"


def _read(path: Path) -> AnomalyExample:
    lines = path.read_text(encoding="utf-8").splitlines()
    end = lines.index("") if "" in lines else len(lines)
    fields = dict(line.split(": ", 1) for line in lines[:end] if ": " in line)
    missing = [field for field in ("looks like", "legal", "source") if field not in fields]
    strange = [field for field in fields if field not in FIELDS]
    if missing or strange:
        raise UsageError(
            f"{path}: a story has the fields {', '.join(FIELDS)}; look at"
            f" {', '.join(missing + strange)}"
        )
    anomaly = fields["looks like"]
    if anomaly not in BY_NAME:
        raise UsageError(f"{path}: no anomaly is called {anomaly!r}")
    checkers = [checker.name for checker in ALL if anomaly in checker.anomalies]
    tempts = fields.get("tempts", checkers[0] if checkers else "")
    if tempts not in [checker.name for checker in ALL]:
        raise UsageError(f"{path}: no checker is called {tempts!r}; say which one is tempted")
    # Blank lines in place of the fields, so that an error names the line of the file.
    text = "\n".join("" if number < end else line for number, line in enumerate(lines))
    return AnomalyExample(
        path.stem,
        anomaly,
        fields["legal"],
        fields.get("anomalous", ""),
        tempts,
        fields["source"],
        text,
    )


def main() -> int:
    """Write every history and the document, and return the exit code."""
    stories = load()
    folder = _folder()
    written = dict(files(stories))
    for name, content in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for stale in {*folder.glob("*/*.jsonl")} - {folder / name for name in written}:
        stale.unlink()
    (pages.folder("reference") / "anomalies.md").write_text(document(stories), encoding="utf-8")
    print(f"{len(written)} histories of {len(stories)} stories, and docs/reference/anomalies.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
