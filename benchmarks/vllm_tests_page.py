"""Writes the page on faults in vLLM's own code: which checker kills each, and how many of vLLM's
own tests do.
"""

from __future__ import annotations

import re
from collections import Counter
from statistics import median
from typing import Any

from cachewitness._util import pages
from cachewitness.engines.mutant import Mutant
from cachewitness_faults.vllm.faults import FAULTS, kind_of

COUNT, SURVIVED = "killed by", "survived"
"""The first word of what an earlier page says of vLLM's tests, and what stands for no trace."""
PARTS = ("core", "scheduler")
KINDS = ("simple", "shipped", "imitated", "scheduler", "connector", "worker")
COLUMNS = (
    "fault `vllm-…`",
    "what is wrong",
    "kind",
    "mirrors",
    "anomaly, checker",
    "trace",
    "operations",
    "CPU s",
)

LAST_BEFORE = {
    "29387": "0.11.0",
    "33775": "0.14.0",
    "33997": "0.14.0",
    "36622": "0.17.0",
    "40707": "0.19.0",
    "42571": "0.20.0",
    "43090": "0.21.0",
    "44701": "0.22.0",
    "47861": "0.24.0",
    "48375": "0.25.0",
    "51771": "0.26.0",
    "52419": "0.27.0",
    "53504": "0.27.0",
    "53505": "0.27.0",
    "54076": "0.28.0",
    "56196": "0.29.0",
}
"""By report (vllm-project/vllm): the last release, of those with a source distribution, before it
was opened."""


def release_of(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to order releases by."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def read(text: str) -> dict[str, Any]:
    """Return what an earlier page says of each fault, by the names of what is measured: what killed
    it here, unless it names another anomaly today, and by how many of vLLM's tests it was killed.
    """
    known: dict[str, Any] = {}
    parts: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in line.split(" | ")]
        if cells[0] == f"| {COLUMNS[0]}":
            parts = [re.sub(r".*, ", "", cell) for cell in cells[len(COLUMNS) : -1]]
        name = f"vllm-{cells[0].removeprefix('| ')}"
        if not parts or name not in FAULTS or len(cells) != len(COLUMNS) + len(parts) + 1:
            continue
        by, trace, operations, seconds = cells[len(COLUMNS) - 4 : len(COLUMNS)]
        if by == _named(FAULTS[name]):
            known[f"here {name}"] = [
                "" if trace == SURVIVED else trace.strip("`"),
                int(operations.replace(",", "")),
                float(seconds),
            ]
        for part, count in zip(parts, cells[len(COLUMNS) :], strict=False):
            if count.isdecimal():
                known[f"{COUNT} {part} {name}"] = int(count)
    return known


def page(known: dict[str, Any]) -> str:
    """Return the page for what was measured."""
    parts = [
        part
        for part in PARTS
        if f"{part} clean" in known and any(_measured(name, known, part) for name in FAULTS)
    ]
    here = [known[f"here {name}"] for name in FAULTS]
    files, reasons = _ran(known, parts)
    return pages.render(
        "vllm-faults",
        faults=len(FAULTS),
        version=known["version"],
        kinds={kind: _killed_by_theirs(kind, known, parts) for kind in KINDS},
        here={
            "killed": sum(bool(trace) for trace, *_ in here),
            "median": median(seconds for *_, seconds in here),
            "worst": max(seconds for *_, seconds in here),
            "engine-crashed": sum(fault.checker == "engine" for fault in FAULTS.values()),
        },
        stood=_stood_at_all(known, parts),
        head=[
            *COLUMNS,
            *(f"vLLM's tests, {part}" for part in parts),
            "names that existed at the report",
        ],
        rows=[_row(fault, known, parts) for fault in FAULTS.values()],
        files=files,
        reasons=reasons,
    )


def _killed_by_theirs(kind: str, known: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    """Return how many faults of a kind vLLM's own tests kill, of those measured, and the names
    of those that they pass.
    """
    mine = [fault for fault in FAULTS.values() if kind_of(fault) == kind]
    measured = [
        fault for fault in mine if all(_measured(fault.name, known, part) for part in parts)
    ]
    alive = [
        fault.name for fault in measured if not any(_killed(fault, known, part) for part in parts)
    ]
    return {
        "count": len(mine),
        "measured": len(measured),
        "killed": len(measured) - len(alive),
        "alive": alive,
    }


def _stood_at_all(known: dict[str, Any], parts: list[str]) -> dict[str, Any] | None:
    """Return how many killing tests have names that existed when the bugs were reported; None if
    that cannot be said.
    """
    stood = [
        (fault, count)
        for fault in FAULTS.values()
        if (count := _stood(fault, known, parts)) is not None
    ]
    if not stood:
        return None
    return {
        "faults": len(stood),
        "killings": sum(len(_killers(fault, known, part)) for fault, _ in stood for part in parts),
        "then": sum(count for _, count in stood),
        "none": [f"`{fault.name}`" for fault, count in stood if not count],
    }


def _row(fault: Mutant, known: dict[str, Any], parts: list[str]) -> list[str]:
    trace, operations, seconds = known[f"here {fault.name}"]
    mirrors = re.sub(r"vllm-project/vllm(#\d+)", r"\1", fault.mirrors)
    killed = (
        [f"`{trace}`", f"{operations:,}", f"{seconds:.1f}"]
        if trace
        else [SURVIVED, f"{operations:,}", f"{seconds:.1f}"]
    )
    theirs = [
        f"{_killed(fault, known, part)}" if _measured(fault.name, known, part) else "not measured"
        for part in parts
    ]
    name = fault.name.removeprefix("vllm-")
    count = _stood(fault, known, parts)
    theirs.append("–" if count is None else f"{count} ({_report(fault)[1]})")
    return [
        name,
        fault.summary,
        kind_of(fault),
        mirrors,
        _named(fault),
        *killed,
        *theirs,
    ]


def _named(fault: Mutant) -> str:
    return f"{fault.anomaly}, {fault.checker}"


def _measured(name: str, known: dict[str, Any], part: str) -> bool:
    return f"{part} {name}" in known or f"{COUNT} {part} {name}" in known


def _killed(fault: Mutant, known: dict[str, Any], part: str) -> int:
    """Return how many of vLLM's tests kill a fault, as an earlier page says if it does."""
    earlier: int | None = known.get(f"{COUNT} {part} {fault.name}")
    return len(_killers(fault, known, part)) if earlier is None else earlier


def _killers(fault: Mutant, known: dict[str, Any], part: str) -> list[str]:
    """Return vLLM's tests that pass without the fault and fail with it."""
    with_fault = known.get(f"{part} {fault.name}", {})
    return [
        test
        for test, outcome in known[f"{part} clean"].items()
        if outcome == "passed" and with_fault.get(test) != "passed"
    ]


def _report(fault: Mutant) -> tuple[str, str]:
    """Return the report that the fault mirrors, and the last release before it; empty if none is
    known.
    """
    reports = [
        number
        for number in re.findall(r"vllm-project/vllm#(\d+)", fault.mirrors)
        if number in LAST_BEFORE
    ]
    return (reports[0], LAST_BEFORE[reports[0]]) if reports else ("", "")


def _stood(fault: Mutant, known: dict[str, Any], parts: list[str]) -> int | None:
    """Return how many of the killing tests have names that stood when the bug was reported; None
    if that cannot be said.
    """
    since = known.get("since")
    release = _report(fault)[1]
    if not since or not release:
        return None
    names = [
        re.sub(r"\[.*", "", test.split("::")[-1])
        for part in parts
        for test in _killers(fault, known, part)
    ]
    return sum(name in since and release_of(since[name]) <= release_of(release) for name in names)


def _ran(known: dict[str, Any], parts: list[str]) -> tuple[list[list[str]], list[str]]:
    """Return a row for each file of tests, and why some could not run, with how often."""
    rows: list[list[str]] = []
    why: Counter[str] = Counter()
    for part in parts:
        files: dict[str, Counter[bool]] = {}
        for test, outcome in known[f"{part} clean"].items():
            files.setdefault(test.split("::")[0], Counter())[outcome == "passed"] += 1
            if outcome != "passed":
                why[_short(outcome)] += 1
        rows += [
            [f"`{file}`", part, str(counts[True]), str(counts[False])]
            for file, counts in sorted(files.items())
        ]
    return rows, [f"{count} × {reason}" for reason, count in why.most_common()]


def _short(outcome: str) -> str:
    named = re.search(r"directory specified: '([^']+)'", outcome)
    if named:
        return "the configuration of another model, which would be fetched"
    if re.search(r"fixture '[^']+' not found|^\S+/test_\w+\.py:\d+$", outcome):
        return "a fixture of `tests/conftest.py`"
    missing = re.search(r"No module named '([^']+)'", outcome)
    if missing:
        return f"needs the package `{missing[1]}`"
    if outcome.startswith("ImportError while importing test module"):
        return "it starts a server, and imports a client for one"
    line = re.sub(r"\S*/(?=tests/)", "", outcome)
    return f"`{line[:150].strip()}`"
