"""Which configurations enter which functions of vLLM: the map by which `cachewitness run --diff`
chooses what it runs first.

    python -m benchmarks.entered_map --source DIR --write fixtures/entered/vllm.json

`--source` holds `vllm` (a wheel unpacked without its libraries), `--seed` that of random traces.
What is run are the cases of `benchmarks.mutation`: random traces and scenarios on every
configuration, behind every connector, and on what goes through vLLM's own sizing, each once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import msgspec

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks.mutation.cases import Case, judge
from benchmarks.mutation.plant import entered
from benchmarks.mutation.source import Place, release_of
from benchmarks.mutation.vllm_cases import cases
from cachewitness.engines.registry import parse
from cachewitness.sessions.change.entered_map import Configured, Entered, EnteredMap
from cachewitness.sessions.change.statements import PythonFile
from cachewitness.systems.vllm.source import load
from cachewitness.workloads import layouts

RANDOM = {"manager": ("random", "differential"), "scheduler": ("scheduler-random",)}
SCENARIOS = {"manager": ("invariants",), "scheduler": ("scheduler",)}
"""The suites that run a trace, by its level."""
BESIDE = ("scheduler-random",)
"""The suites for which the lists of known findings have what connectors do."""
DEBUGGING = "example"
"""vLLM's connector for debugging does against rules what it does, and no list has it
(docs/systems/vllm-notes.md)."""


def configured(case: Case) -> Iterator[Configured]:
    """Yield the suites that run a case, with its configuration."""
    header = case.trace.header
    options = parse(case.engine).options
    suites = RANDOM if header.name.startswith("random-") else SCENARIOS
    for suite in suites[header.level]:
        yield Configured(
            suite,
            header.layout.name,
            dict(header.options),
            {name: value for name, value in options.items() if name != "source"},
        )


class Functions:
    """The functions of a package, by where they stand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, set[str]] = {}

    def name(self, place: Place) -> str:
        """Return the name of a function as maps have it; empty for what is none: the body of a
        class, a lambda.
        """
        if place.file not in self._names:
            content = (self._folder / place.file).read_bytes()
            self._names[place.file] = PythonFile(content, place.file).owners
        if place.name not in self._names[place.file]:
            return ""
        module = place.file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        return f"{module}:{place.name}"


def measured(source: Path, seed: int) -> EnteredMap:
    """Run every case, and return the map."""
    load(str(source))
    functions = Functions(source / "vllm")
    found: dict[bytes, set[str]] = {}
    by_key: dict[bytes, Configured] = {}
    todo = cases(str(source), seed)
    for case in {case.engine: case for case in reversed(todo)}.values():
        judge(case)  # what it imports for the first time is no doing of its configuration
    for number, case in enumerate(todo):
        with entered(source / "vllm") as places:
            judge(case)
        if number % 50 == 0:
            print(f"{number} of {len(todo)} cases", file=sys.stderr, flush=True)
        names = {name for place in places if (name := functions.name(place))}
        for one in configured(case):
            key = msgspec.json.encode(one)
            by_key[key] = one
            found.setdefault(key, set()).update(names)
    keys = sorted(
        filter(lambda key: _is_run(by_key[key]), by_key), key=lambda key: _order(by_key[key])
    )
    return EnteredMap(
        f"vLLM {release_of('vllm', source)}",
        [by_key[key] for key in keys],
        list(_grouped([found[key] for key in keys])),
    )


def _is_run(one: Configured) -> bool:
    """Whether a run may take it: what is beside its own engine must pass on the release as it is,
    and have a layout with a name.
    """
    return not one.engine or (
        one.suite in BESIDE
        and one.engine.get("connector") != DEBUGGING
        and one.layout in layouts.names()
    )


def _order(one: Configured) -> tuple[str, bytes]:
    return one.beside, msgspec.json.encode(one)


def _grouped(found: list[set[str]]) -> Iterator[Entered]:
    """Yield the functions, those together that the same configurations enter."""
    by = {
        name: ranges(number for number, names in enumerate(found) if name in names)
        for name in sorted(set().union(*found))
    }
    for which, names in groupby(sorted(by, key=lambda name: (by[name], name)), by.__getitem__):
        yield Entered(which, list(names))


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers, which rise, as ranges: `0-35,40`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def rendered(made: EnteredMap) -> bytes:
    """Return a map as JSON, a line for each configuration and each group of functions."""
    parts = {
        name: b",\n".join(b"  " + msgspec.json.encode(one) for one in getattr(made, name))
        for name in ("configurations", "entered")
    }
    lines = [b' "%s": [\n%s\n ]' % (name.encode(), text) for name, text in parts.items()]
    release = b' "release": %s' % msgspec.json.encode(made.release)
    return b"{\n" + b",\n".join([release, *lines]) + b"\n}\n"


def main() -> int:
    """Measure, and write the map or say how it differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source", type=lambda text: Path(text).resolve(), required=True, metavar="DIR"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    made = measured(given.source, given.seed)
    given.write.write_bytes(rendered(made))
    functions = sum(len(group.functions) for group in made.entered)
    print(f"{given.write}: {functions} functions, {len(made.configurations)} configurations")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
