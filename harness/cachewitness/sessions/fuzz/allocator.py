"""Property-based tests of a bare allocator: a pool of blocks with no scheduler and no engine.

For whoever writes a block pool (extra `machines`), in a test file of pytest::

    import cachewitness
    from mypool import Pool


    class TestPool(cachewitness.machines.Allocator):
        def make(self, size):
            self.pool = Pool(size)

        def alloc(self, n):
            return self.pool.alloc(n)

        def free(self, blocks):
            self.pool.free(blocks)

Hypothesis draws sizes and calls, an independent model judges every result, and a failure is shrunk
to the shortest sequence of calls that shows it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from cachewitness._util.errors import UsageError
from cachewitness.sessions.fuzz.allocator_isolated import Child, Isolated
from cachewitness.sessions.fuzz.pool_calls import Counts, Plan, Run, plans
from cachewitness.sessions.fuzz.pool_declarations import Misuse, check_declarations
from cachewitness.sessions.fuzz.pool_model import Hung, Order, Violation
from cachewitness.sessions.fuzz.pool_shrink import Weight, shrink

SETTINGS = hypothesis.settings(
    max_examples=400,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),  # pool_shrink shrinks
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)
"""The same runs each time; `stateful_step_count` is the most calls in one."""

_LARGE = 100_000
SIZES = st.integers(0, 29).flatmap(
    lambda place: st.integers(1, 24) if place < 29 else st.integers(25, _LARGE)
)
"""How many blocks a pool has: mostly so few that it runs full, now and then up to 100,000."""


class Opened(NamedTuple):
    """What a test of a class needs: the methods that can be called, and how a pool is made."""

    methods: Collection[str]
    pool: Callable[[], Allocator]


class Allocator:
    """A test class for a pool of blocks: inherit from it, and override what your pool has.

    `make` and `alloc` are needed; a method that is not overridden is never called. Blocks are
    whatever your pool calls them: numbers, or objects that `name` gives a name. A call that is
    refused raises, or returns None or False.

    Class attributes declare what no call shows; each has a default.
    """

    null_block: ClassVar[Hashable] = None
    """A block that is never handed out. It does not count in `size`."""
    order: ClassVar[Order | None] = None
    """Which free block is handed out first: `"lru"` (freed longest ago), `"fifo"` (allocated
    longest ago) or `"lifo"` (freed last); None does not judge it. Of a pool with `publish`, the
    order is judged of the free blocks that have keys."""
    misuse: ClassVar[Misuse] = "raises"
    """What a second `free`, and a `share` of a free block, do: they raise; they return and change
    nothing; or they are never asked."""
    exhausted: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """What `alloc` may raise where there are too few blocks."""
    alloc_max: ClassVar[int | None] = None
    """The most blocks that one `alloc` is asked for."""
    lookup_acquires: ClassVar[bool] = False
    """Whether a lookup that finds a block takes a reference to it."""
    keys_per_block: ClassVar[int | None] = None
    """The most keys that one block is given; None: any number. A pool may refuse a second key in
    any way."""
    isolate: ClassVar[bool] = False
    """Whether each pool lives in a process of its own, so that one that crashes fails the test and
    does not end pytest. Every run forks the process of pytest."""
    keeps: ClassVar[bool] = False
    """Whether a key must be found until its block is handed out again, is evicted or unpublished,
    or the pool is reset. If not, a lookup that finds nothing is not judged."""
    sizes: ClassVar[st.SearchStrategy[int]] = SIZES
    """How many blocks a pool has."""
    _cachewitness_did: str = ""
    """What the runs of the test did, for the plugin of pytest to show."""
    settings: ClassVar[hypothesis.settings] = SETTINGS
    """Hypothesis's settings: how many runs, of at most `stateful_step_count` calls."""

    def make(self, size: int) -> None:
        """Make a new pool from which `size` blocks can be handed out."""
        raise NotImplementedError

    def alloc(self, n: int) -> Any:
        """Return a list of `n` blocks, each with one reference."""
        raise NotImplementedError

    def free(self, blocks: list[Any]) -> Any:
        """Give one reference to each block back, in this order."""
        raise NotImplementedError

    def share(self, block: Any) -> Any:
        """Take one more reference to a block that is held."""
        raise NotImplementedError

    def touch(self, block: Any) -> Any:
        """Take a reference to a block that a lookup has found, held or free."""
        raise NotImplementedError

    def publish(self, key: str, block: Any) -> Any:
        """Make a block that is held findable under a key."""
        raise NotImplementedError

    def lookup(self, key: str) -> Any:
        """Return a block that was published under a key, or None."""
        raise NotImplementedError

    def unpublish(self, block: Any) -> Any:
        """Take a block's keys away."""
        raise NotImplementedError

    def evict(self, n: int) -> Any:
        """Evict up to `n` free blocks that have keys; return a list of them, their number, or None.
        With this method, blocks with keys may be unavailable to `alloc` until they are evicted.
        """
        raise NotImplementedError

    def reset(self) -> Any:
        """Take all keys away; holders keep their blocks. Refusable while blocks are held."""
        raise NotImplementedError

    def available(self) -> int:
        """Return how many blocks are free."""
        raise NotImplementedError

    def references(self, block: Any) -> int:
        """Return a block's reference count."""
        raise NotImplementedError

    def name(self, block: Any) -> Hashable:
        """Return what tells a block from others: the block itself, its `block_id`, or the number
        in a scalar of numpy or torch.
        """
        named: Hashable = getattr(block, "block_id", block)
        item = getattr(named, "item", None)
        return item() if callable(item) else named

    def close(self) -> None:
        """Give the pool up, at the end of a run."""

    def test_allocator(self) -> None:
        """Draw pools and calls; fail with the shortest calls that show what is wrong."""
        try:
            failure, counts = judge(type(self))
        except UsageError as refusal:
            wrong = str(refusal)
        else:
            wrong = failure.text if failure else ""
            self._cachewitness_did = "" if failure else str(counts)
        if wrong:  # outside of the handler, so that pytest shows one line and no chain
            _fail(wrong)

    @classmethod
    @contextmanager
    def _opened(cls) -> Iterator[Opened]:
        """Hold open what the pools of a test share."""
        base = vars(Allocator)
        methods = {name for name in base if getattr(cls, name) is not base[name]}
        if not cls.isolate:
            yield Opened(methods, cls)
            return
        children: list[Child] = []

        def forked() -> Allocator:
            if children:
                children.pop().kill()
            children.append(Child(cls))
            pool: Allocator = isolated(children[0])
            return pool

        isolated: Any = type(cls.__name__, (Isolated, cls), {})
        try:
            yield Opened({"close", *methods}, forked)
        finally:
            if children:
                children[0].kill()


@dataclass(frozen=True)
class Failure:
    """What is wrong with a pool: a kind, such as `double-free`, and the calls with a sentence."""

    kind: str
    text: str


def find(allocator: type[Allocator]) -> Failure | None:
    """Run the test of a class without pytest; None if nothing is wrong.

    The kind is `vacuous` if too little happened for a pass to mean anything, and `flaky` if the
    same calls were answered differently. Raises UsageError if the class does not override what is
    needed, or declares what there is not.
    """
    return judge(allocator).failure


class Verdict(NamedTuple):
    """What came of the test of a class."""

    failure: Failure | None
    counts: Counts


def judge(allocator: type[Allocator]) -> Verdict:
    """Do what `find` does, and return what was done as well."""
    check_declarations(allocator, Allocator)
    with allocator._opened() as opened:
        for needed in ("make", "alloc"):
            if needed not in opened.methods:
                raise UsageError(f"{allocator.__name__}: {needed} is not overridden")
        return _Test(allocator, opened).verdict()


class _Test:
    """The runs of one test."""

    def __init__(self, allocator: type[Allocator], opened: Opened) -> None:
        self._allocator = allocator
        self._opened = opened
        self._counts = Counts()
        self._failed: Plan | None = None

    def verdict(self) -> Verdict:
        """Run the test."""
        called = self._allocator.__name__
        settings = self._allocator.settings

        @settings
        @given(plans(self._allocator.sizes, settings.stateful_step_count))
        def example(plan: Plan) -> None:
            self._run(plan)

        try:
            example()
        except (Violation, Hung) as found:
            shortest = self._shortest(found)
            text = f"{called}: {shortest}{_origin(shortest)}"
            return Verdict(Failure(found.kind, text), self._counts)
        except Flaky as flaky:
            text = (
                f"{called}: the same calls were answered differently when they were repeated; a"
                f" pool must depend on its calls alone\n\n{flaky}"
            )
            return Verdict(Failure("flaky", text), self._counts)
        empty = self._counts.nothing_judged(self._opened.methods)
        text = f"{called}: a pass would show nothing: {empty}\n\n{self._counts}"
        return Verdict(Failure("vacuous", text) if empty else None, self._counts)

    def _run(self, plan: Plan) -> None:
        run = Run(self._opened.pool(), self._opened.methods, plan, self._counts)
        try:
            run.go()
        except Violation:
            self._failed = plan
            raise

    def _shortest(self, found: Violation | Hung) -> Violation | Hung:
        """Return what was found, shown by as few calls as can be."""
        if self._failed is None or isinstance(found, Hung):
            return found
        shown: dict[Weight, Violation] = {}

        def weigh(plan: Plan) -> Weight | None:
            run = Run(self._opened.pool(), self._opened.methods, plan, Counts())
            try:
                run.go()
            except Violation as again:
                if type(again) is not type(found) or _cause(again) is not _cause(found):
                    return None
                weight = (len(run.lines), plan.size, sum(map(len, run.lines)))
                shown.setdefault(weight, again)
                return weight
            return None

        misuse = self._opened.pool().misuse
        shrink(self._failed.with_all_rules(self._opened.methods, misuse), weigh)
        return shown[min(shown)] if shown else found


def _cause(found: BaseException) -> type[BaseException] | None:
    return type(found.__cause__) if found.__cause__ else None


def _origin(found: BaseException) -> str:
    """Return where the pool raised what was not allowed, if it did."""
    cause = found.__cause__
    if cause is None:
        return ""
    own = str(Path(__file__).parent)
    frames = [
        frame for frame in traceback.extract_tb(cause.__traceback__) if own not in frame.filename
    ]
    lines = traceback.format_list(frames) + traceback.format_exception_only(cause)
    return "\n\n" + "".join(lines).rstrip()


def _fail(message: str) -> NoReturn:
    __tracebackhide__ = True
    try:
        import pytest
    except ImportError:
        raise AssertionError(message) from None
    pytest.fail(message, pytrace=False)
