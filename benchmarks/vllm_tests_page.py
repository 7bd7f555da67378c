"""The page on faults in vLLM's own code: what kills them here, and how many of vLLM's own tests do."""

from __future__ import annotations

import re
from collections import Counter
from statistics import median
from typing import Any

from harness.engines.mutant import Mutant
from harness.engines.real_vllm.faults import FAULTS, kind_of

PARTS = ("core", "scheduler")
KINDS = {
    "simple": "one method is wrong",
    "shipped": "the mechanism of a bug that was in a release, past vLLM's own unit tests, or still is in a report",
}


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
"""By report (vllm-project/vllm): the last release, of those with a source distribution, before it was opened."""


def release_of(version: str) -> tuple[int, ...]:
    """Return a version's numbers, to order releases by."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


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
                "python benchmarks/vllm_tests.py --source vllm-0.33.0 --tests vllm-0.33.0-sdist/tests --older DIR \\\n"
                "    --kept results.json --write docs/vllm-faults.md     # DIR holds VERSION/tests of earlier releases\n"
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
        f"(`harness/engines/real_vllm/simple_faults.py`, `vllm_shipped.py`): {kinds['simple']} *simple* ({KINDS['simple']}), "
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
    stood = [(fault, count) for fault in FAULTS.values() if (count := _stood(fault, known, parts)) is not None]
    if stood:
        none = [f"`{fault.name}`" for fault, count in stood if not count]
        killings = sum(len(_killers(fault, known, part)) for fault, _ in stood for part in parts)
        lines.append(
            f"Those are tests of today. Of the {killings} times that one of them kills a shipped fault, "
            f"{sum(count for _, count in stood)} times it has a name that stood in the last release before the bug was "
            f"reported; for {len(none)} of the {len(stood)} faults no killer did ({', '.join(none) or 'none'}). A test of an "
            "old name may have learnt to see the fault since."
        )
    lines.append(
        "vLLM's tests call vLLM's classes, so they are of use to a fork as long as its classes stay the same. The workloads "
        "here know the few calls of the adapter (`harness/engines/observe.py`) and what pages hold, and run unchanged on "
        "every release in [engines.md](engines.md)."
    )
    return "\n\n".join(lines)


def _row(fault: Mutant, known: dict[str, Any], parts: list[str]) -> list[str]:
    trace, operations, seconds = known[f"here {fault.name}"]
    mirrors = re.sub(r"vllm-project/vllm(#\d+)", r"\1", fault.mirrors)
    killed = [f"`{trace}`", f"{operations:,}", f"{seconds:.1f}"] if trace else ["survived", f"{operations:,}", f"{seconds:.1f}"]
    theirs = [f"{len(_killers(fault, known, part))}" if f"{part} {fault.name}" in known else "not measured" for part in parts]
    name = fault.name.removeprefix("vllm-")
    count = _stood(fault, known, parts)
    theirs.append("" if count is None else f"{count} ({_report(fault)[1]})")
    return [name, fault.summary, kind_of(fault), mirrors, f"{fault.anomaly}, {fault.checker}", *killed, *theirs]


def _table(rows: list[list[str]], parts: list[str]) -> list[str]:
    head = ["fault `vllm-…`", "what is wrong", "kind", "mirrors", "anomaly, checker", "trace", "operations", "CPU s"]
    head += [f"vLLM's tests, {part}" for part in parts]
    head.append("names that stood at the report")
    return ["| " + " | ".join(configurations) + " |" for configurations in (head, ["---"] * len(head), *rows)]


def _killers(fault: Mutant, known: dict[str, Any], part: str) -> list[str]:
    """Return vLLM's tests that pass without the fault and fail with it."""
    with_fault = known.get(f"{part} {fault.name}", {})
    return [
        test for test, outcome in known[f"{part} clean"].items() if outcome == "passed" and with_fault.get(test) != "passed"
    ]


def _report(fault: Mutant) -> tuple[str, str]:
    """Return the report that the fault mirrors, and the last release before it; empty if none is known."""
    reports = [number for number in re.findall(r"vllm-project/vllm#(\d+)", fault.mirrors) if number in LAST_BEFORE]
    return (reports[0], LAST_BEFORE[reports[0]]) if reports else ("", "")


def _stood(fault: Mutant, known: dict[str, Any], parts: list[str]) -> int | None:
    """Return how many of the killing tests have names that stood when the bug was reported; None if that cannot be said."""
    since, release = known.get("since"), _report(fault)[1]
    if not since or not release:
        return None
    names = [re.sub(r"\[.*", "", test.split("::")[-1]) for part in parts for test in _killers(fault, known, part)]
    return sum(name in since and release_of(since[name]) <= release_of(release) for name in names)


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
    if re.search(r"fixture '[^']+' not found|^\S+/test_\w+\.py:\d+$", outcome):
        return "a fixture of `tests/conftest.py`"
    missing = re.search(r"No module named '([^']+)'", outcome)
    if missing:
        return f"needs the package `{missing[1]}`"
    if outcome.startswith("ImportError while importing test module"):
        return "it starts a server, and imports a client for one"
    told = re.sub(r"\S*/(?=tests/)", "", outcome)
    return f"`{told[:150].strip()}`"
