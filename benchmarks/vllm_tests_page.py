"""The page on faults in vLLM's own code: what kills them here, and how many of vLLM's own tests do."""

from __future__ import annotations

import re
from collections import Counter
from statistics import median
from typing import Any

from harness.mutants import Mutant
from harness.mutants.vllm_faults import FAULTS, kind_of

PARTS = ("core", "scheduler")
KINDS = {
    "simple": "one method is wrong",
    "shipped": "the mechanism of a bug that was in a release, past vLLM's own unit tests, or still is in a report",
}


def page(known: dict[str, Any]) -> str:
    """Return the page for what was measured."""
    parts = [part for part in PARTS if f"{part} clean" in known and any(f"{part} {name}" in known for name in FAULTS)]
    rows = [_row(fault, known, parts) for fault in FAULTS.values()]
    return (
        "\n\n".join(
            [
                "# Faults in vLLM's own code",
                _opening(known, parts),
                "## Who kills whom",
                "\n".join(_table(rows, parts)),
                "## What vLLM's tests are here",
                _ran(known, parts),
                "## Run it",
                "```\npip download --no-binary :all: --no-deps vllm==0.33.0     # or any other way to its source distribution\n"
                "python benchmarks/vllm_tests.py --source vllm-0.33.0 --tests vllm-0.33.0-sdist/tests --kept results.json \\\n"
                "    --write docs/vllm-faults.md\n"
                "cachewitness run --engine vllm:source=vllm-0.33.0,mutant=vllm-null-published     # one of them, by hand\n```",
            ]
        )
        + "\n"
    )


def _opening(known: dict[str, Any], parts: list[str]) -> str:
    here = [known[f"here {name}"] for name in FAULTS]
    kinds = Counter(kind_of(fault) for fault in FAULTS.values())
    lines = [
        f"{len(FAULTS)} faults are planted into the classes of vLLM {known['version']} while it runs "
        f"(`harness/mutants/vllm_simple.py`, `vllm_shipped.py`): {kinds['simple']} *simple* ({KINDS['simple']}), "
        f"{kinds['shipped']} *shipped* ({KINDS['shipped']}). A shipped mechanism is planted as far as it shows in the cache "
        "manager and in the scheduler's cut of chunks, which is what this package runs of vLLM; kernels, workers and "
        "connectors are not in it.",
        f"This harness kills {sum(bool(trace) for trace, *_ in here)} of them with the anomaly and the checker named in "
        "advance, none of them by the differential, on workloads written for no fault; without the fault the trace passes. "
        f"Seconds to the kill: median {median(seconds for *_, seconds in here):.1f}, worst {max(s for *_, s in here):.1f}.",
    ]
    for kind in KINDS:
        mine = [fault for fault in FAULTS.values() if kind_of(fault) == kind]
        measured = [fault for fault in mine if all(f"{part} {fault.name}" in known for part in parts)]
        killed = [fault for fault in measured if any(_killers(fault, known, part) for part in parts)]
        alive = [fault.name for fault in measured if fault not in killed]
        text = f"vLLM's own unit tests kill {len(killed)} of the {len(measured)} {kind} faults that were measured."
        lines.append(text + (f" They pass with {', '.join(f'`{name}`' for name in alive)}." if alive else ""))
    lines.append(
        "How many tests see a fault says how well it is covered now; tests that came with the mend of a shipped bug are among "
        "them."
    )
    return "\n\n".join(lines)


def _row(fault: Mutant, known: dict[str, Any], parts: list[str]) -> list[str]:
    trace, operations, seconds = known[f"here {fault.name}"]
    mirrors = re.sub(r"vllm-project/vllm(#\d+)", r"\1", fault.mirrors)
    killed = [f"`{trace}`", f"{operations:,}", f"{seconds:.1f}"] if trace else ["survived", f"{operations:,}", f"{seconds:.1f}"]
    theirs = [f"{len(_killers(fault, known, part))}" if f"{part} {fault.name}" in known else "not measured" for part in parts]
    name = fault.name.removeprefix("vllm-")
    return [name, fault.summary, kind_of(fault), mirrors, f"{fault.anomaly}, {fault.checker}", *killed, *theirs]


def _table(rows: list[list[str]], parts: list[str]) -> list[str]:
    head = ["fault `vllm-…`", "what is wrong", "kind", "mirrors", "anomaly, checker", "trace", "operations", "CPU s"]
    head += [f"vLLM's tests, {part}" for part in parts]
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def _killers(fault: Mutant, known: dict[str, Any], part: str) -> list[str]:
    """Return vLLM's tests that pass without the fault and fail with it."""
    with_fault = known.get(f"{part} {fault.name}", {})
    return [
        test for test, outcome in known[f"{part} clean"].items() if outcome == "passed" and with_fault.get(test) != "passed"
    ]


def _ran(known: dict[str, Any], parts: list[str]) -> str:
    lines = [
        "The numbers in the last columns are tests that pass on vLLM as it is and fail with the fault. The tests are those of "
        "the source distribution of the same version. They run without a GPU, without compiled parts and without the network: "
        "`tests/conftest.py`, which imports models, is left out; the version says `cpu`, so that vLLM takes its platform for "
        "one; and a configuration file of the shape of `facebook/opt-125m` lies where the tests look for that model.",
        "| file | part | ran and passed | could not run here |",
        "| --- | --- | --: | --: |",
    ]
    why: Counter[str] = Counter()
    for part in parts:
        files: dict[str, Counter[bool]] = {}
        for test, outcome in known[f"{part} clean"].items():
            files.setdefault(test.split("::")[0], Counter())[outcome == "passed"] += 1
            if outcome != "passed":
                why[_short(outcome)] += 1
        lines += [f"| `{file}` | {part} | {counts[True]} | {counts[False]} |" for file, counts in sorted(files.items())]
    reasons = "; ".join(f"{count} × {reason}" for reason, count in why.most_common())
    return "\n".join([*lines, "", f"Why the others could not: {reasons}." if reasons else ""])


def _short(outcome: str) -> str:
    named = re.search(r"directory specified: '([^']+)'", outcome)
    if named:
        return "the configuration of another model, which would be fetched"
    fixture = re.search(r"fixture '([^']+)' not found", outcome)
    if fixture:
        return "a fixture of `tests/conftest.py`"
    missing = re.search(r"No module named '([^']+)'", outcome)
    return f"needs the package `{missing[1]}`" if missing else f"`{outcome[:80]}`"
