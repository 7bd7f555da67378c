"""How many faults in vLLM's own code vLLM's own unit tests kill, beside what kills them here.

    python benchmarks/vllm_tests.py --source DIR --tests DIR [--older DIR] [--kept FILE] [--page FILE] [--write docs/results/vllm-faults.md]

`--source` holds `vllm` (a wheel unpacked without its libraries), `--tests` is the folder `tests` of
the same version's source distribution. The tests run in a folder made for them: without
`tests/conftest.py`, which imports models; with a platform that says it is a CPU's; and with a
configuration file for the one small model that most tests of the scheduler name, of which they read
no weights. A test counts if it passes on vLLM as it is. It kills a fault if it fails with the fault
planted. Whoever takes more CPU seconds than `SECONDS`, or asks for more than `MEMORY` bytes,
failed.

`--older` holds the folders `tests` of earlier releases, each in a folder named by its version: they
say since when there is a test of a name, and so which tests stood when a bug was reported.

vLLM is imported once; each fault is planted into a fork. `--kept` stores what was measured and goes
on from there. `--page` names the page as it is: faults that it has rows for are not measured again,
but hunted if they name another anomaly today; vLLM's tests run without a fault all the same.
"""  # noqa: E501

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

import pytest

from benchmarks.vllm_hunt import hunt
from benchmarks.vllm_tests_page import COUNT, read, release_of
from benchmarks.vllm_tests_page import page as text
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_patch import Patches
from cachewitness.systems.vllm.source import load
from cachewitness_faults.vllm.faults import FAULTS

SECONDS = 30
ASLEEP = 20 * SECONDS
"""By the clock: on a machine that others use as well a test gets little of it."""
TIMERS = (
    (signal.ITIMER_PROF, signal.SIGPROF, SECONDS),
    (signal.ITIMER_REAL, signal.SIGALRM, ASLEEP),
)
MEMORY = 8 << 30
BUDGET = 120.0
CORE = "tests/v1/core"
FILES = {
    "core": (
        "prefix_cache",
        "test_prefix_caching.py",
        "test_single_type_kv_cache_manager.py",
        "test_kv_cache_utils.py",
        "test_mamba_align_chunk_split.py",
        "test_prefix_replay.py",
        "test_swa_inflight_window_free.py",
        "test_deferred_block_free.py",
    ),
    "scheduler": ("test_scheduler.py",),
}
"""What is run at once: the tests nearest to the cache, and those of the scheduler, which take
longer than all others."""
MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 50272,
    "hidden_size": 768,
    "word_embed_proj_dim": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}
"""The shape of facebook/opt-125m."""

Outcomes = dict[str, str]
"""By test: `passed`, or the first line of why it did not."""


class Recorder:
    """A plugin of pytest that notes what came of each test, and ends one that does not end."""

    def __init__(self) -> None:
        self.outcomes: Outcomes = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Run a test for so many seconds of CPU time at most, and not for ever if it sleeps."""
        for timer, signalled, seconds in TIMERS:
            signal.signal(signalled, _too_long)
            signal.setitimer(timer, seconds)
        try:
            return (yield)
        finally:
            for timer, *_ in TIMERS:
                signal.setitimer(timer, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that ended; an error before or after it counts as its own."""
        counts = report.when == "call" or report.failed
        if counts and self.outcomes.get(report.nodeid, "passed") == "passed":
            self.outcomes[report.nodeid] = "passed" if report.passed else reason(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self.outcomes[report.nodeid] = reason(report)


def _too_long(signum: int, frame: Any) -> None:
    raise TimeoutError(f"took more than {SECONDS} CPU s")


def reason(report: Any) -> str:
    """Return the first line of why a test, or the collection of a file, failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(
        getattr(crash, "message", "") or str(report.longrepr or "skipped").strip().splitlines()[-1]
    )
    return " ".join(text.split())[:300]


def prepare(folder: Path, tests: Path, version: str) -> None:
    """Lay the tests out in a folder in which they find what they need."""
    (folder / CORE).parent.mkdir(parents=True)
    shutil.copytree(tests / "v1/core", folder / CORE)
    shutil.copytree(tests / "v1/kv_connector/unit", folder / "tests/v1/kv_connector/unit")
    shutil.copy(tests / "utils.py", folder / "tests")
    for package in ("tests", "tests/v1", "tests/v1/kv_connector"):
        (folder / package / "__init__.py").touch()
    named = folder / f"vllm-{version}+cpu.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8"
    )
    model = folder / "facebook/opt-125m"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")


def run_tests(fault: Mutant | None, part: str) -> Outcomes:
    """Run a part of vLLM's tests in a fork, with a fault or without, and return what came of
    them.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if fault is not None:
            fault.plant.fault(Patches())  # type: ignore[attr-defined]
        recorder = Recorder()
        files = [f"{CORE}/{name}" for name in FILES[part]]
        flags = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "--continue-on-collection-errors",
            "--rootdir=.",
        ]
        pytest.main([*flags, *files], plugins=[recorder])
        with os.fdopen(write, "w") as pipe:
            json.dump(recorder.outcomes, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {}


def since(older: Path) -> dict[str, str]:
    """Return, by the name of a test, the earliest release that has it."""
    releases = [folder for folder in older.iterdir() if (folder / "tests").is_dir()]
    first: dict[str, str] = {}
    for release in sorted(releases, key=lambda folder: release_of(folder.name)):
        for file in (release / "tests").rglob("test_*.py"):
            for name in re.findall(
                r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE
            ):
                first.setdefault(name, release.name)
    return first


def main() -> int:
    """Measure, and write the page if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source", type=Path, required=True, metavar="DIR", help="the folder that holds `vllm`"
    )
    parser.add_argument(
        "--tests",
        type=Path,
        required=True,
        metavar="DIR",
        help="the folder `tests` of the same version",
    )
    parser.add_argument(
        "--older", type=Path, metavar="DIR", help="folders `VERSION/tests` of earlier releases"
    )
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FILE",
        help="store results here, and go on from what is stored",
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="keep the rows of this page")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here")
    parser.add_argument(
        "--part",
        dest="parts",
        action="append",
        choices=FILES,
        help="run this part of vLLM's tests alone",
    )
    given = parser.parse_args()
    source = given.source.resolve()
    kept = given.kept
    page = given.write and given.write.resolve()
    kept = kept and kept.resolve()
    known: dict[str, Any] = (
        json.loads(kept.read_text(encoding="utf-8")) if kept and kept.exists() else {}
    )

    if given.page:
        known = read(given.page.read_text(encoding="utf-8")) | known

    def keep(name: str, value: Any) -> None:
        known[name] = value
        if kept:
            kept.write_text(json.dumps(known), encoding="utf-8")

    if given.older:
        keep("since", since(given.older))
    with tempfile.TemporaryDirectory() as folder:
        version = _settle(Path(folder), source, given.tests.resolve())
        keep("version", version)
        for fault in FAULTS.values():
            if f"here {fault.name}" not in known:
                found = hunt(fault, str(source), BUDGET)
                keep(f"here {fault.name}", [found.trace, found.operations, found.seconds])
                print(fault.name, found.trace, found.operations, flush=True)
        for part, (name, planted) in product(
            given.parts or FILES, {"clean": None, **FAULTS}.items()
        ):
            if not {f"{part} {name}", f"{COUNT} {part} {name}"} & known.keys():
                began = time.perf_counter()
                keep(f"{part} {name}", run_tests(planted, part))
                print(
                    part,
                    name,
                    len(known[f"{part} {name}"]),
                    f"{time.perf_counter() - began:.0f} s",
                    flush=True,
                )
    if page:
        page.write_text(text(known), encoding="utf-8")
    else:
        print(text(known))
    return 0


def _settle(folder: Path, source: Path, tests: Path) -> str:
    """Go into the folder, import vLLM there and return its version."""
    version = (
        next(source.glob("vllm-*.dist-info")).name.removesuffix(".dist-info").removeprefix("vllm-")
    )
    prepare(folder, tests, version)
    os.chdir(folder)
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{folder}:{source}"}
    sys.path[:0] = [str(folder), str(source)]
    platform = importlib.import_module("vllm.platforms").current_platform
    if platform.device_type != "cpu":
        raise SystemExit(
            f"vllm_tests: vLLM takes this machine for {platform.device_type!r}, not for a CPU"
        )
    load(str(source))
    return version


if __name__ == "__main__":
    raise SystemExit(main())
