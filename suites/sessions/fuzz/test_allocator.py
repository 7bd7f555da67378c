"""Tests of bare allocators: the sample pool passes, each planted fault is killed in words, and a
run that did nothing fails.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import cachewitness
from cachewitness._util.errors import UsageError
from cachewitness.sessions.fuzz.allocator import SETTINGS, Failure, find, judge
from suites.support import block_pools
from suites.support.block_pools import BlockPool, SamplePool, over
from suites.support.sampled import fewer

FEW = hypothesis.settings(SETTINGS, max_examples=40)
SOME = hypothesis.settings(SETTINGS, max_examples=150)


class TestPool(SamplePool):
    """The sample pool, as a user tests it: nothing is wrong with it."""


class TestFewDeclarations(cachewitness.machines.Allocator):
    """The class of the documentation."""

    settings = FEW

    def make(self, size: int) -> None:
        self.pool = BlockPool(size)

    def alloc(self, n: int) -> Any:
        return self.pool.alloc(n)

    def free(self, blocks: list[Any]) -> None:
        self.pool.free(blocks)


def failure(allocator: type[cachewitness.machines.Allocator]) -> Failure:
    found = find(allocator)
    assert found is not None
    return found


def test_a_user_writes_fewer_than_ten_lines() -> None:
    """The example in the documentation of the module, imports and all."""
    from cachewitness.sessions.fuzz import allocator

    example = re.search(r"::\n\n((?:    .*\n|\n)+)", allocator.__doc__ or "")
    assert example is not None
    lines = [line for line in example[1].splitlines() if line.strip()]
    assert 5 < len(lines) < 10


@pytest.mark.parametrize("pool", block_pools.FAULTS, ids=lambda pool: str(pool.__name__))
def test_a_planted_fault_is_killed_and_reads_as_calls(pool: Any) -> None:
    """As what it is, in calls on the user's class; without the fault, see `TestPool`."""
    found = failure(over(pool))
    assert found.kind in block_pools.FAULTS[pool], found.text
    head, _, calls = found.text.partition("\n\n")
    assert head.startswith(f"Test{pool.__name__}: ") and "\n" not in head
    lines = calls.splitlines()
    assert lines[0] == f"    pool = Test{pool.__name__}()"
    assert re.fullmatch(r"    pool\.make\(\d+\)", lines[1])
    assert len(lines) < 40


def test_there_are_at_least_twenty_faults() -> None:
    planted = [
        value
        for value in vars(block_pools).values()
        if inspect.isclass(value) and issubclass(value, BlockPool) and value is not BlockPool
    ]
    assert len(planted) >= 20 and set(planted) == set(block_pools.FAULTS)
    upstream = [fault for fault in planted if re.match(r"[\w-]+#\d+", fault.__doc__ or "")]
    assert len(upstream) >= 10


def bare(pool: Any) -> type[cachewitness.machines.Allocator]:
    """Return a class that has neither counters nor keys, over a variant of the pool."""

    class Bare(cachewitness.machines.Allocator):
        def make(self, size: int) -> None:
            self.pool = pool(size)

        def alloc(self, n: int) -> Any:
            return self.pool.alloc(n)

        def free(self, blocks: list[Any]) -> Any:
            return self.pool.free(blocks)

        def share(self, block: Any) -> Any:
            return self.pool.share(block)

    return Bare


@pytest.mark.parametrize(
    ("pool", "sentence"),
    [
        (block_pools.FreedWhileShared, "a reference to it is left|a reference to each is held"),
        (block_pools.OneTooMany, "out of a pool of|are held of a pool of"),
        (block_pools.PartLeft, "was refused although|is free, and the pool took it"),
    ],
)
def test_a_pool_that_shows_no_counters_is_judged_by_what_it_hands_out(
    pool: Any, sentence: str
) -> None:
    assert re.search(sentence, failure(bare(pool)).text)


def test_a_leak_shows_when_everything_is_given_back() -> None:
    class Leaks(BlockPool):  # type: ignore[misc]
        def free(self, blocks: list[int]) -> None:
            super().free(blocks)
            self.unused.pop(3, None)

    found = failure(bare(Leaks))
    assert found.kind == "refused" and "was refused although" in found.text


def test_an_exception_of_the_pool_is_shown_where_it_was_raised() -> None:
    class Crashes(BlockPool):  # type: ignore[misc]
        def share(self, block: int) -> None:
            raise KeyError(block)

    found = failure(bare(Crashes))
    assert "share(1) raised KeyError: 1" in found.text
    assert "test_allocator.py" in found.text and "hypothesis" not in found.text


def test_misuse_is_judged_as_declared() -> None:
    """A pool that takes a second free and ignores it is right if it says so."""

    class Ignores(BlockPool):  # type: ignore[misc]
        def free(self, blocks: list[int]) -> None:
            for block in blocks:
                if self.counts[block]:
                    super().free([block])

        def share(self, block: int) -> None:
            self.counts[block] += bool(self.counts[block])

    assert failure(over(Ignores)).kind in ("double-free", "use-after-free")
    for misuse in ("refused", "undefined"):
        declared = type("Declared", (over(Ignores),), {"misuse": misuse, "settings": FEW})
        found = find(declared)
        assert found is None or found.kind == "vacuous", found


def test_a_run_in_which_nothing_happens_fails() -> None:
    class NeverFreed(bare(BlockPool)):  # type: ignore[misc]
        settings = FEW
        free = cachewitness.machines.Allocator.free
        share = cachewitness.machines.Allocator.share

    assert "free is not overridden" in failure(NeverFreed).text

    class NeverFull(bare(BlockPool)):  # type: ignore[misc]
        alloc_max = 1
        sizes = st.just(1_000)
        settings = FEW

    found = failure(NeverFull)
    assert found.kind == "vacuous" and "never ran full" in found.text

    class NeverHits(SamplePool):
        publish = cachewitness.machines.Allocator.publish
        settings = FEW

    assert "publish is not overridden" in failure(NeverHits).text

    class Forgets(BlockPool):  # type: ignore[misc]
        def lookup(self, key: str) -> None:
            return None

    forgets = type("Forgetful", (over(Forgets),), {"settings": FEW, "keeps": False})
    assert "no lookup ever found a block" in failure(forgets).text


def test_what_is_needed_is_asked_for() -> None:
    class Nothing(cachewitness.machines.Allocator):
        pass

    with pytest.raises(UsageError, match="make is not overridden"):
        find(Nothing)


def test_a_hundred_thousand_blocks() -> None:
    """They are filled and evicted in a few runs, and a failure is shown with few."""
    few = hypothesis.settings(SETTINGS, max_examples=20)
    large = {"sizes": st.just(100_000), "settings": few}
    verdict = judge(type("Large", (SamplePool,), large))
    assert verdict.failure is None
    assert verdict.counts.full > 10 and verdict.counts.evicted > 3
    # Hypothesis draws constants of the modules that happen to be imported, so that runs differ with
    # what ran before in the process: more of them than are needed mostly.
    many = hypothesis.settings(SETTINGS, max_examples=1000)
    faulty = {"sizes": st.just(fewer(100_000, 10_000)), "settings": many}
    found = failure(type("Large", (over(block_pools.KeyLeft),), faulty))
    assert found.kind == "stale-key" and "pool.make(1)" in found.text


def test_a_pool_may_have_one_key_for_a_block() -> None:
    """It refuses a second one in any way, lets it replace the first, or declares that."""

    class Raises(BlockPool):  # type: ignore[misc]
        def publish(self, key: str, block: int) -> None:
            assert block not in self.keys_of, "a block has one key"
            super().publish(key, block)

    class Replaces(BlockPool):  # type: ignore[misc]
        def publish(self, key: str, block: int) -> None:
            if key not in self.block_of:
                self.forget(block)
            super().publish(key, block)

    class Believes(block_pools.SecondKeyLeft):
        """Is wrong about two keys, which it is never given."""

    for pool, keys in ((Raises, None), (Replaces, None), (Believes, 1)):
        one = type("One", (over(pool),), {"keys_per_block": keys, "keeps": False, "settings": SOME})
        assert find(one) is None


def test_a_lost_key_is_judged_where_keys_are_kept() -> None:
    assert failure(over(block_pools.PublishesOne)).kind in ("lost-key", "evicted-few")

    class NoEvict(over(block_pools.TouchDropsKey)):  # type: ignore[misc]
        evict = cachewitness.machines.Allocator.evict
        settings = SOME

    assert failure(NoEvict).kind == "lost-key"
    assert find(type("Forgets", (NoEvict,), {"keeps": False})) is None


@pytest.mark.parametrize(
    ("attributes", "line"),
    [
        ({"order": "LRU"}, "order is 'lru' or 'fifo' or 'lifo' or None, and not 'LRU'"),
        ({"misuse": "raise"}, "misuse is 'raises' or .* and not 'raise'"),
        ({"alloc_max": 0}, "alloc_max is a whole number"),
        ({"exhausted": "MemoryError"}, "exhausted is a tuple of exceptions"),
        ({"availables": lambda self: 1}, "availables; is available meant[?] Known are alloc, "),
        ({"nullblock": 0}, "nullblock; is null_block meant[?] Known are alloc_max, "),
    ],
)
def test_what_is_declared_wrongly_is_refused_in_a_line(
    attributes: dict[str, Any], line: str
) -> None:
    with pytest.raises(UsageError, match=line) as refused:
        find(type("Wrong", (SamplePool,), attributes))
    assert "\n" not in str(refused.value)


def test_names_of_a_users_own_are_taken() -> None:
    own = {"key": lambda self: 0, "pool_class": BlockPool, "counts": {}, "setup_method": len}
    assert find(type("Own", (SamplePool,), {**own, "settings": SOME})) is None


def test_a_failure_has_no_call_too_many() -> None:
    """Two blocks, as one would be evicted rightly, and what gives them keys."""
    found = failure(over(block_pools.EvictsYoungest))
    assert "pool.make(2)" in found.text and len(found.text.splitlines()) <= 10
    assert "pool.make(1)" in failure(over(block_pools.SecondKeyLeft)).text


def test_a_pool_that_aborts_is_a_failure_where_it_is_isolated() -> None:
    class Aborts(BlockPool):  # type: ignore[misc]
        def share(self, block: int) -> None:
            if self.counts[block] == 2:
                os.write(2, b"corrupted\n")
                os.abort()
            super().share(block)

    class Raises(BlockPool):  # type: ignore[misc]
        def share(self, block: int) -> None:
            raise KeyError(block)

    alone = {"isolate": True, "settings": FEW}
    found = failure(type("Alone", (over(Aborts),), alone))
    assert found.kind == "died"
    head, _, calls = found.text.partition("\n\n")
    assert head == "Alone: the pool's process was ended by SIGABRT in share; it wrote 'corrupted'"
    assert "pool.share(1)" in calls
    raised = failure(type("Alone", (over(Raises),), alone))
    assert "share(1) raised KeyError: 1" in raised.text and "test_allocator.py" in raised.text
    alone["settings"] = hypothesis.settings(SETTINGS, max_examples=20)
    again = find(type("Alone", (SamplePool,), alone))
    assert again is None or again.kind == "vacuous", again


def test_pytest_shows_the_calls_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "from cachewitness import machines\n"
        "from suites.support.block_pools import FreedAgain, SamplePool\n"
        "from suites.sessions.fuzz.test_allocator import SOME\n\n\n"
        "class TestMine(SamplePool):\n    pool_class = FreedAgain\n\n\n"
        "class TestRight(SamplePool):\n    settings = SOME\n\n\n"
        "class TestProcess(machines.AllocatorProcess):\n    command = 'absent'\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert ran.returncode == 1
    assert "TestProcess: absent cannot be started (No such file" in ran.stdout
    assert "TestMine: block" in ran.stdout and "pool.alloc(1) -> [1]" in ran.stdout
    assert re.search(r"cachewitness: .*TestRight: 150 runs with [\d,]+ calls: ", ran.stdout)
    assert "raceback" not in ran.stdout and "hypothesis" not in ran.stdout


def test_what_has_no_name_is_one_line() -> None:
    class Unhashable(cachewitness.machines.Allocator):
        def make(self, size: int) -> None:
            self.size = size

        def alloc(self, n: int) -> Any:
            return [[block] for block in range(n)]

    found = failure(Unhashable)
    assert found.kind == "malformed" and "unhashable type: 'list'" in found.text.split("\n")[0]


def test_scalars_of_arrays_are_their_numbers() -> None:
    """As torch's, which are equal and differ in their hashes."""

    class Scalar:
        def __init__(self, number: int) -> None:
            self.number = number

        def item(self) -> int:
            return self.number

    class InTensors(bare(BlockPool)):  # type: ignore[misc]
        settings = FEW

        def alloc(self, n: int) -> Any:
            return [Scalar(block) for block in self.pool.alloc(n)]

        def free(self, blocks: list[Any]) -> Any:
            return self.pool.free([block.number for block in blocks])

        def share(self, block: Any) -> Any:
            return self.pool.share(block.number)

    assert find(InTensors) is None
