"""Lock behaviour: write what every command answers, or compare it with what was written before.

For changes that must not change behaviour, such as moves and renames. What is locked, one item
each:

    help:COMMAND        what `--help` prints
    run:ENGINE          the JSON report of `run` on each engine that starts here, and on those that --engine names
    fuzz, campaign      one fuzz stream and one campaign with a seeded fault
    vectors             the bytes of fixtures/vectors, and what `fill` writes
    kills               which checker finds each seeded fault, by the hunt of one seed
    replay:TRACE        the exit code of every stored trace of a fault and of a finding

Times, process ids, paths and the environment are left out. Items that cannot run here are written
as "not run", and named.

Usage: python ci/behaviour_lock.py write|compare FOLDER [--engine SPEC]... [--only PREFIX]...
[--renamed FILE] `--renamed FILE` has lines `OLD NEW`: field names and words that a change renames
on purpose. They are renamed in what was written before it is compared. Exits 1 if anything differs,
after all items were compared.
"""  # noqa: E501

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VOLATILE = frozenset(
    {
        *("seconds", "cpu_seconds", "engine_seconds", "harness_seconds"),
        *("startup_seconds", "started", "ended"),
        *("operations_per_second", "traces_per_second"),
        *("environment", "version", "command", "path", "file", "trace_file", "history_file"),
        *("database", "digest"),
    }
)
"""Fields of documents that differ from run to run, or from one machine or tree to the next."""

POLICIES = ("vllm", "openvino_genai", "lmcache", "furiosa", "tensorrt_edge")
CAMPAIGN = """name = "lock"
seeds = [0]
streams = ["main"]

[[engines]]
engine = "reference"
layouts = ["full", "full-mamba"]

[[engines]]
engine = "reference:mutant=lookup-one-unit-short"
layouts = ["full"]

[budget]
traces = 12
per_unit = 4
shrink = 1
"""


def cachewitness(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line of the installed package."""
    words = [sys.executable, "-m", "cachewitness", *arguments]
    # A wide terminal keeps help independent of where this runs; hash seeds must not matter, so they
    # are left alone.
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "CI": "1"}
    return subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


def without_volatile(value: Any) -> Any:
    """Return a JSON document without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [without_volatile(item) for item in value]
    if isinstance(value, str):
        value = re.sub(r"\d+(\.\d+)? s\b", "N s", value)
        value = re.sub(r"\b([0-9a-f]{2}/)?(?=[0-9]*[a-f])[0-9a-f]{12,}\b", "DIGEST", value)
        return re.sub(r"/(?:tmp|home|root|work|var)/[^\s'\",)]*", "PATH", value)
    return value


def document(result: subprocess.CompletedProcess[str]) -> str:
    """Return the exit code and the document that a command printed with --json, one value a
    line.
    """
    try:
        printed = without_volatile(json.loads(result.stdout))
    except json.JSONDecodeError:
        printed = [*result.stdout.splitlines()[-20:], *result.stderr.splitlines()[-20:]]
    return f"exit {result.returncode}\n{json.dumps(printed, indent=1, sort_keys=True)}\n"


def commands() -> list[str]:
    """Return the names of all commands, from the help of the whole."""
    listed = cachewitness("--help").stdout.partition("Commands:\n")[2]
    return re.findall(r"^  ([a-z][a-z-]*)  ", listed, re.M)


def run_engine(spec: str, *more: str) -> Callable[[], str]:
    """Return what runs the default suites on an engine."""
    return lambda: document(cachewitness("run", "--engine", spec, "--json", "--jobs", "2", *more))


def fuzz() -> str:
    """Run one stream of fuzz."""
    return document(cachewitness("fuzz", "--seed", "7", "--operations", "30000", "--json"))


def campaign() -> str:
    """Run one campaign on a new database."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lock.toml").write_text(CAMPAIGN, encoding="utf-8")
        return document(
            cachewitness("campaign", "lock.toml", "--workers", "1", "--json", cwd=Path(folder))
        )


def vectors() -> str:
    """Digest the stored vectors and what `fill` makes of them now."""
    stored = ROOT / "fixtures" / "vectors"
    with tempfile.TemporaryDirectory() as folder:
        filled = cachewitness("fill", "--out", folder)
        trees = [(stored, path) for path in sorted(stored.rglob("*"))] + [
            (Path(folder), path) for path in sorted(Path(folder).rglob("*"))
        ]
        files = [(tree, path) for tree, path in trees if path.is_file()]
        digests = [
            f"{path.relative_to(tree)} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            for tree, path in files
        ]
    return "\n".join([f"fill exit {filled.returncode}", *digests, ""])


def kills(policy: str) -> Callable[[], str]:
    """Return what hunts every fault of a policy once, and says which checker finds it by which
    anomaly.
    """

    def hunt() -> str:
        result = cachewitness("mutants", "--policy", policy, "--tensor-seconds", "0", "--json")
        rows = json.loads(result.stdout)["rows"] if result.stdout.startswith("{") else []
        lines = [
            f"{row['mutant']} {row['anomaly']} {row['checker']} {row['killed']} {row['by']}"
            for row in rows
        ]
        return "\n".join([f"exit {result.returncode}", *sorted(lines), ""])

    return hunt


def replay(trace: Path, engines: list[str]) -> Callable[[], str]:
    """Return what replays a stored trace: a fault's on the reference with the fault, others on
    all engines.
    """
    specs = (
        [f"reference:mutant={trace.stem}"]
        if trace.parent.name == "mutants"
        else ["reference", *engines]
    )
    return lambda: "".join(
        f"{spec}: exit {cachewitness('replay', '--engine', spec, str(trace)).returncode}\n"
        for spec in specs
    )


def items(engines: list[str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield every item with what computes it."""
    yield "help:cachewitness", lambda: cachewitness("--help").stdout
    for name in commands():
        yield f"help:{name}", lambda name=name: cachewitness(name, "--help").stdout  # type: ignore[misc]
    for policy in POLICIES:
        yield f"run:reference {policy}", run_engine("reference", "--policy", policy)
    yield "run:sample", run_engine("sample")
    for spec in engines:
        yield f"run:{spec}", run_engine(spec)
    yield "fuzz", fuzz
    yield "campaign", campaign
    yield "vectors", vectors
    for policy in POLICIES:
        yield f"kills:{policy}", kills(policy)
    for kind in ("traces", "findings"):
        for trace in sorted((ROOT / "fixtures" / kind).rglob("*.jsonl")):
            yield f"replay:{trace.relative_to(ROOT / 'fixtures')}", replay(trace, engines)


def file_of(folder: Path, item: str) -> Path:
    """Return where the text of an item is kept."""
    return folder / (re.sub(r"[^\w.-]+", "_", item) + ".txt")


def renamed(text: str, renames: list[tuple[str, str]]) -> str:
    """Return a text with words renamed that a change renames on purpose."""
    for old, new in renames:
        text = re.sub(rf"(?<![\w-]){re.escape(old)}(?![\w-])", new, text)
    return text


def differences(before: str, now: str) -> list[str]:
    """Return the first lines in which two texts differ, sorted lines first so that a moved key
    is no difference.
    """
    if sorted(before.splitlines()) == sorted(now.splitlines()):
        return []
    gone = [f"- {line}" for line in before.splitlines() if line not in now.splitlines()]
    new = [f"+ {line}" for line in now.splitlines() if line not in before.splitlines()]
    return [*gone[:8], *new[:8]] or ["the same lines, in other numbers"]


def main() -> int:
    """Write or compare, item by item."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", action="append", default=[])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--renamed", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    lines = given.renamed.read_text(encoding="utf-8").splitlines() if given.renamed else []
    renames = [(old, new) for old, new in (line.split() for line in lines if line.strip())]
    bad = 0
    for item, compute in items(given.engine):
        if given.only and not any(item.startswith(prefix) for prefix in given.only):
            continue
        text = compute()
        path = file_of(given.folder, item)
        if given.what == "write":
            path.write_text(text, encoding="utf-8")
            print(f"wrote {item} {hashlib.sha256(text.encode()).hexdigest()[:12]}", flush=True)
            continue
        found = (
            differences(renamed(path.read_text(encoding="utf-8"), renames), text)
            if path.exists()
            else ["not written before"]
        )
        bad += bool(found)
        print(f"{'DIFFERS' if found else 'same'} {item}", *found, sep="\n    ", flush=True)
    print(f"{bad} items differ" if given.what == "compare" else "written")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
