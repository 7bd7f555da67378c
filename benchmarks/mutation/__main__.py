"""Draw random mutants of an engine's own source, and run them here and under the engine's own
tests.

    python -m benchmarks.mutation ENGINE --source DIR [--tests DIR] --kept DIR [--mutants N]
        [--seed S] [--write docs/results/mutation.md]

ENGINE is vllm, lmdeploy, sglang, mlx_lm or lmcache. `--source` holds the engine's package (a wheel
unpacked, vLLM's without its libraries). `--tests` is the folder `tests` of the engine's source
distribution or repository; an engine whose tests are not run needs none. The mutants' operators are
those of the extra `dev-mutation`. `--kept` stores what was drawn and measured, and
goes on from there; with `--write` the page is written from it. Each side runs in a process of its
own, and each mutant in a fork of it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks.mutation import ours
from benchmarks.mutation.drawing import draw
from benchmarks.mutation.engine import MutatedEngine
from benchmarks.mutation.kept import once
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.own_tests import run_all
from benchmarks.mutation.page import page
from benchmarks.mutation.source import release_of

ENGINES = ("vllm", "lmdeploy", "sglang", "mlx_lm", "lmcache")
"""Their modules, each of which imports what its engine alone needs."""
TOOLS = ("mutmut", "cosmic-ray")
SIDES = ("ours", "theirs")


def main() -> int:
    """Measure what is missing, and print or write the page."""
    given = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets go the same way in every process
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.mutation", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
    engine = importlib.import_module(f"benchmarks.mutation.{given.engine}").ENGINE
    given.kept.mkdir(parents=True, exist_ok=True)
    mutants = once(
        given.kept / "mutants.jsonl",
        Mutant,
        lambda: draw(engine.files(given.source), given.mutants, given.seed),
    )[: given.mutants]
    if given.side:
        _measure(engine, given, mutants)
        return 0
    sides = SIDES if engine.tests else SIDES[:1]
    for side in () if given.measured else sides:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.mutation", *sys.argv[1:], "--side", side],
            check=True,
        )
    release = release_of(engine.name, given.source)
    tools = {name: metadata.version(name) for name in TOOLS}
    text = page(engine, given.kept, mutants, release, given.seed, tools)
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("engine", choices=ENGINES)
    for name in ("--source", "--tests", "--kept"):
        parser.add_argument(
            name,
            type=lambda text: Path(text).resolve(),
            required=name != "--tests",
            metavar="DIR",
        )
    parser.add_argument("--mutants", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run so many at once here")
    parser.add_argument(
        "--measured", action="store_true", help="write the page from what is kept, and run nothing"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page here")
    parser.add_argument("--side", choices=SIDES, help="run one side alone, and write no page")
    return parser.parse_args()


def _measure(engine: MutatedEngine, given: argparse.Namespace, mutants: list[Mutant]) -> None:
    if given.side == "ours":
        ours.measure(engine, given.source, given.seed, mutants, given.kept, given.jobs)
        return
    assert engine.tests is not None
    if given.tests is None:
        raise SystemExit(f"--tests: the folder of {engine.title}'s own tests")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        named = engine.tests.lay_out(given.source, given.tests, work)
        folder_of_files = engine.within(given.source)
        run_all(named, engine.tests.elsewhere, mutants, folder_of_files, given.kept)


if __name__ == "__main__":
    sys.exit(main())
