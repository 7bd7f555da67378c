"""What share of vLLM's own cache code a run enters, beside what vLLM's own tests enter of it.

    python -m benchmarks.vllm_coverage --source DIR --tests DIR --kept DIR [--seconds 120] [--write docs/results/vllm-coverage.md]

`--source` holds `vllm` (a wheel unpacked without its libraries), `--tests` is the folder `tests` of
the same version's source distribution. Each part (`parts`) is a command of its own under
coverage.py, in one process with vLLM; its data stays in `--kept`, and a part that is there is not
run again. vLLM's own tests run as in `vllm_tests.py`: without a GPU, the network and
`tests/conftest.py`. Needs coverage.py beside what vLLM needs: `pip install coverage`.

Counted are lines and branches inside functions. What importing a module runs would be entered by
anybody.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks.vllm_coverage_files import CACHE, CONNECTOR, CORE, OWN, WHY
from benchmarks.vllm_tests import prepare
from cachewitness import __version__
from cachewitness._util import pages

ROOT = Path(__file__).resolve().parents[1]
KNOWN = "fixtures/expected/vllm-0.33.txt"
KNOWN_OF_CONNECTORS = "fixtures/expected/vllm-0.33-connectors.txt"
KNOWN_TO_FUZZ = ("stale-hit", "partial-commit", "uncommitted-hit", "divergence")
"""Anomalies in vLLM 0.33 (docs/systems/vllm-notes.md) behind which a campaign goes on, so that
it lasts as long as it is to last."""
CONNECTORS = (
    "simple",
    "simple-lazy",
    "offloading",
    "offloading-chunks",
    "offloading-sync",
    "multi",
)
IN_FLIGHT = "simple-in-flight"
MODELS = ("qwen3.5-0.8b", "gemma-3-27b", "deepseek-v4-flash", "glm-5.1", "gpt-oss-20b")
"""These go through vLLM's own sizing, with and without a drafter."""
HISPARSE = {
    "eager": ["--option", "max_num_batched_tokens=32"],
    "lazy": ["--option", "async_depth=1"],
}
"""How rows of sparse attention go to the host, with options under which blocks are lost and wait
for steps in flight."""
FAILED_LOADS = {"keys-over-a-failed-load": "", "stored-behind-a-failed-load": ",load_failure=fail"}
"""Stored traces of loads that fail within their step, by what is set besides; random traces may
have no time to."""
LAYOUTS = (
    "full",
    "full-swa",
    "full-mamba",
    "full-swa-mamba",
    "full-mamba-unequal",
    "full-swa-unequal",
)
"""On these connectors are run, with a memory that is short and copies that take two steps."""


TOGETHER = "the cache core, but for the schedulers"


@dataclass(frozen=True)
class Share:
    """Of some functions: how many there are and were entered, and how many of their lines and
    branches.
    """

    functions: tuple[int, int]
    lines: tuple[int, int]
    branches: tuple[int, int]

    @staticmethod
    def of(found: Iterable[dict[str, Any]]) -> Share:
        """Return the share of functions, as coverage.py counts them."""
        each = [function["summary"] for function in found]
        pairs = (("covered_lines", "num_statements"), ("covered_branches", "num_branches"))
        lines, branches = (
            (sum(one[got] for one in each), sum(one[all_] for one in each)) for got, all_ in pairs
        )
        return Share((sum(bool(one["covered_lines"]) for one in each), len(each)), lines, branches)

    def cells(self) -> list[str]:
        """Return the cells of a table."""
        entered, there = self.functions
        return [
            f"{entered} of {there}",
            *(f"{100 * got / of:.0f} %" if of else "-" for got, of in (self.lines, self.branches)),
        ]


def parts(source: Path, seconds: float, fuzzed: Path) -> dict[str, list[str]]:
    """Return the arguments of `cachewitness` by part; `fuzzed` is a file that lists what a
    campaign goes on behind.
    """
    run = ["run", "--isolate", "no", "--engine"]
    engine = f"vllm:source={source}"
    suites = {
        "scenarios": ("invariants", "scheduler"),
        "random": ("random", "scheduler-random", "differential"),
    }
    found = {
        name: [*run, engine, *_of(*named), "--expected", KNOWN] for name, named in suites.items()
    }
    limit = ["--isolate", "no", "--seconds", f"{seconds:.0f}"]
    found["fuzz"] = ["fuzz", "--engine", engine, *limit, "--expected", str(fuzzed)]
    layouts = [word for layout in LAYOUTS for word in ("--layout", layout)]
    slow = [*layouts, "--option", "tier_pages=24", "--option", "tier_delay=2", "--seconds", "45"]
    for name in CONNECTORS:
        chosen = [f"{engine},connector={name}", "--suite", "scheduler-random", *slow]
        found[name] = [*run, *chosen, "--expected", KNOWN_OF_CONNECTORS]
    tier = [
        "--layout",
        "full-mamba-unequal",
        "--option",
        "tier_pages=96",
        "--option",
        "tier_delay=2",
    ]
    engines = [
        f"{engine},connector=offloading",
        *_of("scheduler"),
        *tier,
        "--expected",
        KNOWN_OF_CONNECTORS,
    ]
    found["tier-scenarios"] = [*run, *engines]
    failing = f"{engine},connector=offloading-sync,load_failure=fail,sync_failures=yes"
    found["sync-failures"] = [
        *run,
        failing,
        *_of("scheduler-random"),
        "--layout",
        "full",
        *slow[len(layouts) :],
    ]
    for name, policy in FAILED_LOADS.items():
        failed = f"{engine},connector=offloading-sync,sync_failures=yes{policy}"
        found[name] = [
            "replay",
            f"fixtures/findings/{name}.jsonl",
            "--isolate",
            "no",
            "--engine",
            failed,
        ]
    found[IN_FLIGHT] = [*found["simple"], "--option", "async_depth=1"]
    found["hits-told"] = [
        *run,
        f"{engine},key_events=full",
        *_of("random", "scheduler-random"),
        "--layout",
        "full",
    ]
    models = [word for layout in MODELS for word in ("--layout", layout)]
    found["sized"] = [
        *run,
        f"{engine},sized=pages",
        *_of("scheduler-random"),
        *models,
        "--seconds",
        "45",
    ]
    found["sized-drafts"] = [*found["sized"], "--option", "use_eagle=true"]
    for way, options in HISPARSE.items():
        chosen = [
            f"{engine},hisparse={way}",
            *_of("scheduler-random"),
            "--layout",
            "full-sparse",
            "--seconds",
            "45",
        ]
        found[f"hisparse-{way}"] = [*run, *chosen, *options]
    return found


def _of(*suites: str) -> list[str]:
    return [word for suite in suites for word in ("--suite", suite)]


def measure(given: argparse.Namespace) -> None:
    """Run every part that is not there yet."""
    given.kept.mkdir(parents=True, exist_ok=True)
    (settings := given.kept / "rc").write_text(
        f"[run]\nbranch = True\ninclude =\n    {_included()}\n", encoding="utf-8"
    )
    fuzzed = given.kept / "expected.txt"
    fuzzed.write_text(
        "".join(f"fuzz:*  {name}  # docs/systems/vllm-notes.md\n" for name in KNOWN_TO_FUZZ),
        encoding="utf-8",
    )
    coverage = [sys.executable, "-P", "-m", "coverage", "run", f"--rcfile={settings}"]
    for name, arguments in parts(given.source, given.seconds, fuzzed).items():
        _once(
            given.kept,
            name,
            [*coverage, "-m", "cachewitness.cli", *arguments],
            ROOT,
            [f"{ROOT}/harness", f"{ROOT}/reference_impl"],
        )
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), given.tests, _version(given.source))
        for further in ("simple_kv_offload", "kv_offload"):
            shutil.copytree(given.tests / "v1" / further, Path(folder, "tests/v1", further))
        flags = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "--continue-on-collection-errors",
            "--rootdir=.",
        ]
        for name, tests in OWN.items():
            files = [f"tests/v1/{test}" for test in tests if (given.tests / "v1" / test).exists()]
            _once(
                given.kept,
                name,
                [*coverage, "-m", "pytest", *flags, *files],
                Path(folder),
                [folder, str(given.source)],
            )


def _included() -> str:
    return "\n    ".join(f"*/vllm/{name}" for name in (*CORE, *CONNECTOR))


def _once(kept: Path, name: str, command: list[str], folder: Path, path: list[str]) -> None:
    """Run a part, unless its data is there, and keep what it printed."""
    data = kept / f"{name}.coverage"
    if data.exists():
        return
    print(f"{name}: {' '.join(command[3:])}", flush=True)
    search = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": search,
        "COVERAGE_FILE": str(data),
    }
    with (kept / f"{name}.out").open("w") as out:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    if not data.exists():
        raise SystemExit(
            f"vllm_coverage: {name} left no data (exit code {done.returncode}); see {out.name}"
        )


def _version(source: Path) -> str:
    (named,) = source.glob("vllm*.dist-info")
    return named.name.removesuffix(".dist-info").rpartition("-")[2]


def read(kept: Path, names: Iterable[str], source: Path) -> dict[str, dict[str, Any]]:
    """Return by file, under `vllm/`, the functions that parts entered, as coverage.py reports
    them.
    """
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as folder:
        found = Coverage(data_file=f"{folder}/data", config_file=str(kept / "rc"))
        found.combine([str(kept / f"{name}.coverage") for name in names], keep=True)
        found.json_report(outfile=f"{folder}/json", ignore_errors=True)
        files = json.loads(Path(folder, "json").read_text(encoding="utf-8"))["files"]
    root = f"{source}/vllm/"
    return {
        path.removeprefix(root): {
            name: function for name, function in file["functions"].items() if name
        }
        for name, file in files.items()
        if (path := str((ROOT / name).resolve())).startswith(root)
    }


def page(given: argparse.Namespace) -> str:
    """Return the page for what was measured."""
    ours = read(given.kept, parts(given.source, given.seconds, Path()), given.source)
    own = read(given.kept, OWN, given.source)
    last_lines = {
        name: (given.kept / f"{name}.out").read_text(encoding="utf-8").strip().splitlines()[-1]
        for name in OWN
    }
    never = {file: _never(functions) for file, functions in ours.items() if file in CORE}
    return pages.render(
        "vllm-coverage",
        version=_version(given.source),
        release=__version__,
        seconds=given.seconds,
        commands=[
            " ".join(_shown(words, given))
            for words in parts(given.source, given.seconds, Path("FILE")).values()
        ],
        core=[_row(file, ours, own) for file in CORE if file in ours]
        + [_together(CACHE, ours, own)],
        connectors=[_row(file, ours, own) for file in CONNECTOR if file in ours],
        tests=[re.sub(r"=+| in [0-9.]+s.*", "", line).strip() for line in last_lines.values()],
        never={file: groups for file, groups in never.items() if groups},
    )


def _shown(arguments: list[str], given: argparse.Namespace) -> list[str]:
    return ["cachewitness", *(word.replace(str(given.source), "PATH") for word in arguments)]


def _row(file: str, ours: dict[str, dict[str, Any]], own: dict[str, dict[str, Any]]) -> list[str]:
    """Return what was entered of a file: by a run, of the functions alone that a run enters, and
    by vLLM's tests.
    """
    entered = [function for function in ours[file].values() if function["summary"]["covered_lines"]]
    inside = Share.of(entered)
    theirs = Share.of(own.get(file, {}).values())
    return [
        f"`{file}`",
        *Share.of(ours[file].values()).cells(),
        *inside.cells()[1:],
        *theirs.cells(),
    ]


def _together(
    files: Iterable[str], ours: dict[str, dict[str, Any]], own: dict[str, dict[str, Any]]
) -> list[str]:
    """Return the row of several files at once."""

    def merged(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {
            TOGETHER: {
                f"{file} {name}": share
                for file in files
                for name, share in found.get(file, {}).items()
            }
        }

    return [f"**{TOGETHER}**", *_row(TOGETHER, merged(ours), merged(own))[1:]]


def _never(functions: dict[str, Any]) -> dict[str, list[str]]:
    """Return the functions that a run does not enter, by why; those of no lines (a signature)
    are left out.
    """
    groups: dict[str, list[str]] = {}
    for name, function in functions.items():
        if function["summary"]["num_statements"] and not function["summary"]["covered_lines"]:
            why = next((why for pattern, why in WHY if re.fullmatch(pattern, name)), "not known")
            groups.setdefault(why, []).append(f"`{name}`")
    return groups


def main() -> int:
    """Measure what is missing, and print or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source", type=lambda text: Path(text).resolve(), required=True, metavar="DIR"
    )
    parser.add_argument(
        "--tests", type=lambda text: Path(text).resolve(), required=True, metavar="DIR"
    )
    parser.add_argument(
        "--kept", type=lambda text: Path(text).resolve(), required=True, metavar="DIR"
    )
    parser.add_argument("--seconds", type=float, default=120, help="how long to fuzz")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here")
    given = parser.parse_args()
    measure(given)
    if given.write:
        given.write.write_text(page(given), encoding="utf-8")
    else:
        print(page(given))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
