"""The benchmark of random mutants: drawn, put into functions that somebody holds, run in forks, and
told apart by what came of them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from benchmarks.mutation import lmcache, lmdeploy, mlx_lm, ours, sglang, vllm
from benchmarks.mutation.cases import Case, Clean, Judged, judge
from benchmarks.mutation.engine import MutatedEngine
from benchmarks.mutation.forked import Forked, forked
from benchmarks.mutation.kept import Side, append, rows
from benchmarks.mutation.mutants import Mutant, code_of
from benchmarks.mutation.own_tests import CleanTest
from benchmarks.mutation.page import CLASSES, page, survivors_of
from benchmarks.mutation.plant import Planted, entered
from benchmarks.mutation.source import Place, SourceFile, release_of, statement_at
from cachewitness.core.trace_format import GroupSpec, Layout, Step, Submit, Trace, TraceHeader
from cachewitness.report.expected import Entry
from cachewitness.systems.lmdeploy.configurations import configurations

ROOT = Path(__file__).resolve().parents[2]
TOY = '''\
import functools


def doubled(function):
    @functools.wraps(function)
    def twice(*args):
        return 2 * function(*args)
    return twice


class Base:
    def least(self, size: int) -> int:
        """Of a block."""
        return 1


class Pool(Base):
    @property
    def size(self) -> int:
        return len(self.blocks)

    @size.setter
    def size(self, size: int) -> None:
        self.blocks = [0] * size

    @doubled
    def least(self, size):
        if size > 3:
            return super().least(size)
        elif size == 2:
            return 7
        for _ in range(size):
            size += 1
        return size

    def abstract(self):
        """Nothing."""
        raise NotImplementedError


def later(count):
    yield from (number + 1 for number in range(count))
'''
ENGINES = [module.ENGINE for module in (vllm, lmdeploy, sglang, mlx_lm, lmcache)]
NEEDED = ("libcst", "mutmut", "cosmic_ray", "parso")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = tmp_path / "toy_pool.py"
    path.write_text(TOY, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("toy_pool", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "toy_pool", module)
    spec.loader.exec_module(module)
    return module


def mutant_of(folder: Path, name: str, old: str, new: str, number: int = 0) -> Mutant:
    """Return the mutant of the only function of a name whose body has `old`."""
    file = SourceFile(folder, "toy_pool.py")
    for place, node in file.functions.items():
        lines = TOY.splitlines(keepends=True)
        body = "".join(lines[node.lineno - 1 : node.end_lineno])
        if place.name == name and old in body:
            above = body[: body.index(old)]
            line = node.lineno + above.count("\n")
            column = len(above) - above.rfind("\n") - 1
            text = body.replace(old, new, 1)
            change = f"- {old}\n+ {new}"
            return Mutant(number, place.file, name, place.line, "toy", line, column, change, text)
    raise AssertionError(name)


def test_functions_are_found_by_name_and_line(tmp_path: Path) -> None:
    (tmp_path / "toy_pool.py").write_text(TOY, encoding="utf-8")
    names = [place.name for place in SourceFile(tmp_path, "toy_pool.py").functions]
    assert names == ["doubled", "Base.least", "Pool.size", "Pool.size", "Pool.least", "later"]


def test_another_statement_stands_in_front_of_an_if_and_never_of_an_elif(tmp_path: Path) -> None:
    (tmp_path / "toy_pool.py").write_text(TOY, encoding="utf-8")
    file = SourceFile(tmp_path, "toy_pool.py")
    least = next(node for place, node in file.functions.items() if place.name == "Pool.least")
    lines = TOY.splitlines()

    def at(text: str) -> str:
        line = next(number for number, one in enumerate(lines, 1) if text in one)
        return lines[statement_at(least, line, lines[line - 1].index(text)).lineno - 1].strip()

    assert at("size == 2") == "if size > 3:"
    assert at("7") == "return 7"
    assert at("range(size)") == "for _ in range(size):"
    assert at("size += 1") == "size += 1"


@pytest.mark.parametrize(
    ("name", "old", "new", "run", "before", "after"),
    [
        ("Pool.least", "+= 1", "+= 2", lambda toy: toy.Pool().least(1), 4, 6),
        ("Pool.least", "> 3", "> 4", lambda toy: toy.Pool().least(4), 2, 16),
        ("Base.least", "1", "5", lambda toy: toy.Pool().least(9), 2, 10),
        ("Pool.size", "len(self.blocks)", "-1", lambda toy: pool_of(toy).size, 3, -1),
        ("Pool.size", "[0]", "[0, 0]", lambda toy: pool_of(toy).size, 3, 6),
        ("later", "+ 1", "- 1", lambda toy: list(toy.later(2)), [1, 2], [-1, 0]),
    ],
)
def test_whoever_holds_a_function_runs_its_mutant(
    toy: ModuleType,
    tmp_path: Path,
    name: str,
    old: str,
    new: str,
    run: Callable[[ModuleType], object],
    before: object,
    after: object,
) -> None:
    """Behind a decorator, a property, a setter, `super()`, and in a generator."""
    reached: list[bool] = []
    mutant = mutant_of(tmp_path, name, old, new)
    assert run(toy) == before
    planted = Planted(tmp_path)
    assert planted.replace(mutant.place, code_of(mutant, tmp_path), lambda: reached.append(True))
    assert not reached
    assert run(toy) == after
    assert reached


def pool_of(toy: ModuleType) -> object:
    pool = toy.Pool()
    pool.size = 3
    return pool


def test_code_that_refers_to_less_around_it_is_not_put_in(toy: ModuleType, tmp_path: Path) -> None:
    mutant = mutant_of(tmp_path, "Pool.least", "super().least(size)", "None")
    planted = Planted(tmp_path)
    assert not planted.replace(mutant.place, code_of(mutant, tmp_path), list)
    assert toy.Pool().least(9) == 2
    assert not planted.replace(Place("toy_pool.py", "nobody", 1), mutant_code(), list)


def mutant_code() -> object:
    return compile("", "", "exec")


def test_entered_functions_are_noted(toy: ModuleType, tmp_path: Path) -> None:
    with entered(tmp_path) as places:
        toy.Pool().least(9)
    assert {place.name for place in places} == {
        "doubled.<locals>.twice",
        "Pool.least",
        "Base.least",
    }


def test_what_a_fork_says_arrives_however_it_ends() -> None:
    def says(say: Callable[[object], None]) -> None:
        say({"a": 1})

    def raises(say: Callable[[object], None]) -> None:
        say(1)
        raise ValueError("no")

    def ends(say: Callable[[object], None]) -> None:
        say(2)
        os.kill(os.getpid(), signal.SIGTERM)

    assert (found := forked(says, 5)).sent == [{"a": 1}] and not found.ended
    assert (found := forked(raises, 5)).sent == [1] and found.ended == "ValueError: no"
    assert (found := forked(ends, 5)).sent == [2] and found.ended == "SIGTERM"


def test_a_fork_that_does_not_end_is_ended() -> None:
    def goes_on(say: Callable[[object], None]) -> None:
        say("begun")
        while True:
            pass

    found = forked(goes_on, 1)
    assert (found.sent, found.ended) == (["begun"], "too long")


CLEAN = [Clean("one", 0.1, "aa", frozenset()), Clean("two", 0.1, "bb", frozenset())]


@pytest.mark.parametrize(
    ("judged", "ended", "outcome", "differs"),
    [
        ([Judged(digest="aa"), Judged(digest="bb")], "", "alive", False),
        ([Judged(digest="aa"), Judged(digest="cc")], "", "alive", True),
        ([Judged(digest="cc", differential="divergence (differential)"), Judged(digest="bb")],
         "", "lock-step", True),
        ([Judged(differential="divergence (differential)"), Judged(finding="stale-hit (lookup)")],
         "", "rule", True),
        ([Judged(finding="engine-crashed (engine)")], "", "died", True),
        ([Judged(stopped="refused: no")], "", "died", True),
        ([], "too long", "hung", True),
        ([Judged(digest="aa")], "SIGSEGV", "died", True),
    ],
)  # fmt: skip
def test_outcomes_are_told_apart(
    judged: list[Judged], ended: str, outcome: str, differs: bool
) -> None:
    sent = ["reached", *map(msgspec.to_builtins, judged)]
    side = ours.side(3, Forked(sent, 1.5, ended), CLEAN, 9)
    assert (side.outcome, side.differs, side.reached) == (outcome, differs, True)
    assert (side.ran, side.entering, side.seconds) == (len(judged), 9, 1.5)


def test_an_engines_own_tests_run_on_mutants(tmp_path: Path) -> None:
    """Collected once; a mutant is run under the tests that enter its function alone."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "toy_pool.py").write_text(TOY, encoding="utf-8")
    (tmp_path / "test_toy.py").write_text(
        "import toy_pool\n"
        "def test_least(): assert toy_pool.Pool().least(9) == 2\n"
        "def test_later(): assert [*toy_pool.later(1)] == [1]\n"
        "def test_fails(): assert [*toy_pool.later(1)] == [2]\n",
        encoding="utf-8",
    )
    mutants = [
        mutant_of(source, "later", "+ 1", "+ 2", 0),
        mutant_of(source, "Pool.least", "7", "8", 1),
        mutant_of(source, "Pool.size", "[0]", "[]", 2),
    ]
    (tmp_path / "mutants").write_bytes(
        b"".join(msgspec.json.encode(one) + b"\n" for one in mutants)
    )
    script = (
        "import sys, pytest\n"
        "from pathlib import Path\n"
        "from benchmarks.mutation.kept import rows\n"
        "from benchmarks.mutation.mutants import Mutant\n"
        "from benchmarks.mutation.own_tests import OwnTests\n"
        "mutants = rows(Path('mutants'), Mutant)\n"
        "plugin = OwnTests(mutants, Path('source').resolve(), Path())\n"
        "flags = ['-q', '--rootdir=.', '-p', 'no:cacheprovider']\n"
        "pytest.main([*flags, 'test_toy.py'], plugins=[plugin])\n"
    )
    path = os.pathsep.join(map(str, (source, ROOT, ROOT / "harness", ROOT / "reference_impl")))
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        check=True,
        capture_output=True,
    )
    found = {side.number: side for side in rows(tmp_path / "theirs.jsonl", Side)}
    assert (found[0].outcome, found[0].by, found[0].entering) == (
        "test",
        "test_toy.py::test_later",
        1,
    )
    assert (found[1].outcome, found[1].reached, found[1].ran) == ("alive", False, 1)
    assert found[2].outcome == "not entered"
    tests = rows(tmp_path / "theirs-clean.jsonl", CleanTest)
    assert [one.outcome == "passed" for one in tests] == [True, True, False]


def test_mutants_are_drawn_evenly_and_by_seed(tmp_path: Path) -> None:
    for name in NEEDED:
        pytest.importorskip(name)
    from benchmarks.mutation.drawing import draw

    (tmp_path / "toy_pool.py").write_text(TOY, encoding="utf-8")
    file = SourceFile(tmp_path, "toy_pool.py")
    drawn = draw([file], 18, 5)
    assert drawn == draw([file], 18, 5) != draw([file], 18, 6)
    assert {mutant.place for mutant in drawn[:6]} == set(file.functions)
    assert len({(mutant.place, mutant.body) for mutant in drawn}) == len(drawn)
    for mutant in drawn:
        code_of(mutant, tmp_path)


def test_what_decides_nothing_is_not_mutated() -> None:
    for name in NEEDED:
        pytest.importorskip(name)
    from benchmarks.mutation.operators import changes

    silent = (
        "    def f(self, a: int = 3) -> int:\n"
        '        """Three."""\n'
        '        logger.info("a %s", a + 1)\n'
        "        assert a > 2\n"
        "        if a:\n"
        '            raise ValueError("a" + a)\n'
    )
    assert {name: len(some) for name, some in changes(silent).items()} == {"AddNot": 1}


def test_what_a_release_is_known_for_counts_as_no_finding() -> None:
    """Neither on the engine as it is nor on a mutant; another finding of the same trace does."""
    header = TraceHeader("t", Layout("t", [GroupSpec("full", 16)]), 16, level="scheduler")
    asked = Trace(header, [Submit("r1", "a:40"), Step(), Submit("r2", "a:40"), Step()])
    case = Case("reference:mutant=lookup-one-unit-short", asked)
    found = judge(case).finding
    anomaly = found.partition(" ")[0]
    assert anomaly
    assert not judge(dataclasses.replace(case, known=(entry_of(anomaly),))).finding
    assert judge(dataclasses.replace(case, known=(entry_of("leak"),))).finding == found


def entry_of(anomaly: str) -> Entry:
    return Entry(pattern="*", anomaly=anomaly, reason="known")


def test_the_cases_of_lmdeploy_are_of_every_kind_and_told_apart() -> None:
    """What is known of a case is stored under its name."""
    found = lmdeploy.ENGINE.cases("somewhere", 1)
    assert len({case.name for case in found}) == len(found)
    layouts = {one.layout.name for one in configurations()}
    assert {case.trace.header.layout.name for case in found[: 2 * len(layouts)]} == layouts
    known = {entry.anomaly for case in found for entry in case.known}
    assert "aliased-write" in known and "use-after-free" not in known


def test_a_release_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "lmdeploy-0.18.0.dist-info").mkdir()
    (tmp_path / "numpy-2.4.6.dist-info").mkdir()
    assert release_of("lmdeploy", tmp_path) == "0.18.0"


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_the_page_has_both_sides_if_the_engines_tests_run(
    engine: MutatedEngine, tmp_path: Path
) -> None:
    (tmp_path / "toy_pool.py").write_text(TOY, encoding="utf-8")
    mutants = [mutant_of(tmp_path, "later", "+ 1", f"+ {number}", number) for number in range(4)]
    for number, (outcome, theirs) in enumerate(
        [("rule", "alive"), ("alive", "test"), ("lock-step", "test"), ("not replaced", "alive")]
    ):
        differs = outcome != "alive"
        append(
            tmp_path / "ours.jsonl",
            Side(number, outcome, "stale-hit (lookup)", differs, differs, 1, 1, 2.0),
        )
        append(tmp_path / "theirs.jsonl", Side(number, theirs, "t", True, False, 1, 1, 1.0))
    tools = {"mutmut": "3", "cosmic-ray": "8"}
    text = page(engine, tmp_path, mutants, "0.33.0", 5, tools)
    assert f"python -m benchmarks.mutation {engine.name} --source" in text
    assert "1 × stale-hit (lookup)" in text
    assert "it is not met" in " ".join(text.split())
    if engine.tests:
        assert f"| | here | {engine.title}'s own tests |" in text
        assert "| killed | 2 | 2 |" in text
        assert "| of the 3 that change a decision | 67 % | 67 % |" in text
        assert "| killed by this side alone | 1 | 1 |" in text
        assert "Of the 3 mutants that change a decision" in " ".join(text.split())
    else:
        assert "| | here |\n" in text
        assert "| killed | 2 |\n" in text
        assert "| of the 2 that change a decision | 100 % |\n" in text
        assert "killed by tests" not in text
        assert "Of the 2 mutants that change a decision" in " ".join(text.split())


def test_what_makes_the_engine_raise_is_left_out_of_a_second_share(tmp_path: Path) -> None:
    """Of four that differ two end the engine, and one of the others is named by a rule."""
    (tmp_path / "toy_pool.py").write_text(TOY, encoding="utf-8")
    mutants = [mutant_of(tmp_path, "later", "+ 1", f"+ {number}", number) for number in range(4)]
    for number, outcome in enumerate(("rule", "died", "hung", "lock-step")):
        append(tmp_path / "ours.jsonl", Side(number, outcome, "x", True, True, 1, 1, 2.0))
    tools = {"mutmut": "3", "cosmic-ray": "8"}
    text = " ".join(page(sglang.ENGINE, tmp_path, mutants, "0.5.23", 5, tools).split())
    assert "Of the 2 mutants that change a decision and do not make SGLang raise" in text
    assert "here, 50 % are named by a rule." in text


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_survivor_has_a_reason_of_a_known_class(engine: MutatedEngine) -> None:
    for one in survivors_of(engine):
        assert one.kind in CLASSES and one.why
