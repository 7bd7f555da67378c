"""One run of calls on a pool: drawn, made, judged and written down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from hypothesis import strategies as st

from cachewitness.sessions.fuzz.pool_model import (
    Block,
    Hung,
    PoolModel,
    Violation,
    violated,
)
from cachewitness.sessions.fuzz.pool_model import blocks as in_blocks

_WEIGHTS = {"alloc": 6, "free": 6, "share": 2, "publish": 6, "lookup": 8, "touch": 2, "evict": 2}
"""How often each rule is drawn beside the others, which are drawn once."""
_RULES = ("free", "share", "publish", "lookup", "touch", "unpublish", "evict", "reset")
"""Methods that are called beside `alloc`."""
_MISUSES = {"free_again": "free", "share_free": "share"}
"""Calls that are not allowed, and the methods that they misuse."""
_SHOWN_FIRST, _SHOWN_LAST = 6, 1
"""So many blocks of a long list are shown."""
_DRAINED_ONE_BY_ONE_MAX = 1_000
"""The largest pool that is emptied at the end where `alloc` takes fewer blocks at a time."""
_TAKE_NUMBERS = ("make", "alloc", "evict")
_RETURN_BLOCKS = ("alloc", "lookup", "evict")
_TRIED = 8
"""So many blocks that were freed are tried for one that is free."""
_FILLED_IN_PARTS_MAX = 200
"""Larger pools are more often filled at once, and blocks with keys freed more often: a few calls
for a few blocks would hardly ever do either."""
_LATEST = 8
"""So many of the latest keys are looked at for a block with a key; of many blocks, an index would
hardly ever name one."""


class Call(NamedTuple):
    """Choices for one call; they mean something in whatever state the pool is, so that calls can be
    left out while a failure is shrunk.
    """

    rule: int
    which: int
    """A block or a key, by its index among those that may be taken."""
    amount: int
    """From 0 to 9: how many blocks."""
    flag: bool
    """One of two ways in which a call can be made."""

    @classmethod
    def of(cls, choices: int) -> Call:
        """Read a drawn number. Its fields lie so that clearing high bits, as Hypothesis does while
        it shrinks, leaves the rule.
        """
        return cls(
            rule=choices & 127,
            which=choices >> 12,
            amount=(choices >> 7 & 15) % 10,
            flag=bool(choices >> 11 & 1),
        )

    @property
    def number(self) -> int:
        """The number that is read as this call."""
        return self.rule | self.amount << 7 | self.flag << 11 | self.which << 12


_CALL = st.integers(0, (1 << 24) - 1)
"""One number for a call: three would be drawn, and shrunk, half as fast."""
_MASKS = st.integers(0, (1 << 16) - 1)


class Plan(NamedTuple):
    """What is drawn for one run, before the pool is made."""

    size: int
    left_out: tuple[int, int]
    """Bit masks: a rule that is in both is left out."""
    calls: list[int]
    last: int
    """What is done at the end."""

    def with_all_rules(self, overridden: Collection[str], misuse: str) -> Plan:
        """Return a plan of the same calls in which no rule is left out."""
        every = rules_of(overridden, misuse)
        first, second = self.left_out
        drawn = rules_of(overridden, misuse, first & second)
        calls = [
            call._replace(rule=every.index(drawn[call.rule % len(drawn)])).number
            for call in map(Call.of, self.calls)
        ]
        last = Call.of(self.last)
        flag = last.flag and "free_again" in drawn
        return Plan(self.size, (0, 0), calls, last._replace(flag=flag).number)


def plans(sizes: st.SearchStrategy[int], steps: int) -> st.SearchStrategy[Plan]:
    """Draw plans of up to so many calls. Lists that have a least length are drawn so that runs are
    long enough; they shrink to the first kind, which has none.
    """
    longer = [st.lists(_CALL, min_size=steps * part // 8, max_size=steps) for part in range(3, 8)]
    calls = st.one_of(st.lists(_CALL, max_size=steps), *longer)
    return st.builds(Plan, sizes, st.tuples(_MASKS, _MASKS), calls, _CALL)


@dataclass
class Counts:
    """What happened in all runs of a test, so that an idle one is not taken for a pass."""

    runs: int = 0
    calls: int = 0
    allocated: int = 0
    freed: int = 0
    full: int = 0
    lookups: int = 0
    hits: int = 0
    touched: int = 0
    evicted: int = 0
    """Blocks with keys that were evicted, or handed out again."""

    def __str__(self) -> str:
        keys = (
            f", {self.lookups:,} lookups, {self.hits:,} hits, {self.touched:,} touched,"
            f" {self.evicted:,} evicted"
        )
        return (
            f"{self.runs:,} runs with {self.calls:,} calls: {in_blocks(self.allocated)} allocated,"
            f" {self.freed:,} freed, {self.full:,} times full{keys if self.lookups else ''}"
        )

    def nothing_judged(self, overridden: Collection[str]) -> str:
        """Return why a pass would mean nothing; empty if it means something."""
        if not self.allocated:
            return "no block was ever allocated"
        if not self.freed:
            why = "" if "free" in overridden else ": free is not overridden"
            return f"no block was ever freed{why}"
        if not self.full:
            return "the pool never ran full: its sizes are too large for so few calls"
        if "lookup" in overridden and not self.hits:
            why = "" if "publish" in overridden else ": publish is not overridden"
            return f"no lookup ever found a block{why}"
        if "lookup" in overridden and not self.evicted:
            return "no block with a key was ever evicted, or handed out again"
        if "touch" in overridden and not self.touched:
            return "no block was ever touched"
        return ""


def rules_of(overridden: Collection[str], misuse: str, left_out: int = 0) -> list[str]:
    """Return the rules of a run, each as often as it weighs, without those whose bit is in
    `left_out`: a random subset of those that the pool has, as faults may show only where something
    else does not happen (swarm testing). It always allocates.
    """
    rules = [name for name in _RULES if name in overridden]
    if misuse != "undefined":
        rules += [wrong for wrong, method in _MISUSES.items() if method in overridden]
    return [
        again
        for place, rule in enumerate(["alloc", *rules])
        if place == 0 or not left_out >> (place - 1) & 1
        for again in [rule] * _WEIGHTS.get(rule, 1)
    ]


class Run:
    """One pool and the calls on it.

    `pool` is an instance of a subclass of `Allocator`, which overrides the methods in `overridden`.
    """

    def __init__(self, pool: Any, overridden: Collection[str], plan: Plan, counts: Counts) -> None:
        self._pool = pool
        self._overridden = overridden
        self._plan = plan
        self._choice = Call.of(plan.last)
        self._counts = counts
        self._lines = [f"pool = {type(pool).__name__}()"]
        self._objects: dict[Block, Any] = {}
        """Each block as the pool gave it last."""
        self._concerned: Sequence[Block] = ()
        self._keys = 0
        self._calls: dict[str, Callable[[], None]] = {
            "alloc": self._alloc,
            "free": self._free,
            "share": self._share,
            "publish": self._publish,
            "lookup": self._lookup,
            "touch": self._touch,
            "unpublish": self._unpublish,
            "evict": self._evict,
            "reset": self._reset,
            "free_again": self._free_again,
            "share_free": self._share_free,
        }

    @property
    def lines(self) -> list[str]:
        """The calls so far, as they are shown."""
        return self._lines

    def go(self) -> None:
        """Make the pool and the calls. Raises Violation with the calls and what is wrong, or Hung
        with the calls.
        """
        self._counts.runs += 1
        try:
            self._go()
            if "close" in self._overridden:
                self._must("close")
        except (Violation, Hung) as found:
            text = "\n".join(f"    {line}" for line in self._lines)
            raise type(found)(f"{found}\n\n{text}") from found.__cause__

    def _go(self) -> None:
        size = self._plan.size
        self._must("make", size)
        self._model = PoolModel(
            size,
            order=self._pool.order,
            publishes="publish" in self._overridden,
            evicts="evict" in self._overridden,
            null=self._pool.null_block,
        )
        rules = self._rules()
        for choices in self._plan.calls:
            self._choice = Call.of(choices)
            self._calls[rules[self._choice.rule % len(rules)]]()
            self._look()
        self._choice = Call.of(self._plan.last)
        if "free_again" in rules and self._choice.flag:
            self._free_twice_at_once()
        else:
            self._drain()

    def _rules(self) -> list[str]:
        first, second = self._plan.left_out
        return rules_of(self._overridden, self._pool.misuse, first & second)

    # --- rules ------------------------------------------------------------------------------------

    def _alloc(self) -> None:
        free = self._model.free
        amount = self._choice.amount
        n = {7: free // 2, 8: free, 9: free + 1}.get(amount, amount + 1)
        if self._is_large and amount == 6:
            n = free
        self._alloc_blocks(max(1, min(n, self._pool.alloc_max or n)))
        self._counts.full += not self._model.free

    def _alloc_blocks(self, n: int) -> None:
        model = self._model
        result, error = self._call("alloc", n)
        if error is not None and not isinstance(error, self._pool.exhausted):
            self._raised(f"alloc({n})", error)
        if error is not None or _refuses(result) or (isinstance(result, list) and not result):
            if n <= model.free_at_least:
                sentence = (
                    f"alloc({n}) was refused although {model.free:,} of {in_blocks(model.size)}"
                    f" {'is' if model.free == 1 else 'are'} free"
                )
                self._violated("refused", sentence, error)
            return
        handed = self._named(result)
        if len(handed) != n:
            violated("short", f"alloc({n}) handed out {in_blocks(len(handed))}")
        self._counts.evicted += model.alloc(handed)
        self._counts.allocated += n
        self._concerned = handed

    def _free(self) -> None:
        live = self._model.live
        if not live:
            return
        amount = self._choice.amount
        aimed = amount == 8 or (self._is_large and amount in (5, 6))
        released = self._held_with_keys() if aimed else []
        if not released:
            count = len(live) if amount == 9 else amount + 1
            released = live.consecutive(self._choice.which, count)
        if self._choice.flag:
            released.reverse()
        self._free_blocks(released)
        self._counts.freed += len(released)

    def _free_blocks(self, released: list[Block]) -> None:
        self._must("free", self._given(released), sentence="although a reference to each is held")
        self._model.release(released)
        self._concerned = released

    def _free_again(self) -> None:
        """Free a block that nobody holds."""
        block = self._any_free()
        if block is not None:
            what = f"block {block!r} was freed twice"
            self._misused("free", [self._objects[block]], "double-free", what)

    def _free_twice_at_once(self) -> None:
        """Free one block twice in one call, as the last call of a run: the pool may have given the
        block back before it saw that it is there again.
        """
        live = self._model.live
        if live:
            [block] = live.consecutive(self._choice.which, 1)
            times = live.references(block) + 1
            what = f"block {block!r} was freed {times} times in one call, more than it is held"
            self._misused("free", [self._objects[block]] * times, "double-free", what)

    def _share_free(self) -> None:
        block = self._any_free()
        if block is not None and not self._model.keys_of(block):
            self._misused(
                "share", self._objects[block], "use-after-free", f"block {block!r} is free"
            )

    def _misused(self, method: str, argument: Any, kind: str, what: str) -> None:
        result, error = self._call(method, argument)
        if self._pool.misuse == "raises" and error is None and result is not False:
            violated(kind, f"{what}, and the pool took it (declared misuse: raises)")

    def _share(self) -> None:
        self._acquire_held("share")

    def _touch(self) -> None:
        self._acquire_held("touch")

    def _acquire_held(self, method: str) -> None:
        live = self._model.live
        if live:
            [block] = live.consecutive(self._choice.which, 1)
            self._acquire(method, block)

    def _acquire(self, method: str, block: Block) -> None:
        what = "its content is there" if self._model.is_free(block) else "a reference to it is left"
        self._must(method, self._objects[block], sentence=f"although {what}")
        self._counts.touched += method == "touch"
        self._model.acquire(block)
        self._concerned = [block]

    def _publish(self) -> None:
        """Publish some blocks that have no key yet, each under a new key; or one under a key that
        names another block already; or one that has a key under a second one.
        """
        known = self._model.keys_known
        amount = self._choice.amount
        if amount == 9 and known:
            key = str(known[-1 - self._choice.which % len(known)])
            for block in self._without_keys(1):
                self._publish_block(key, block)
        elif amount < 5 or not self._publish_again():
            for block in self._without_keys(amount // 2 + 1):
                self._publish_block(self._new_key(), block)

    def _publish_again(self) -> bool:
        """Give a block that has a key a second one, where there is one that may have it."""
        most = self._pool.keys_per_block
        keyed = [
            block
            for block in self._held_with_keys()
            if most is None or len(self._model.keys_of(block)) < most
        ]
        if keyed:
            block = keyed[self._choice.which % len(keyed)]
            self._publish_block(self._new_key(), block, second=True)
        return bool(keyed)

    def _new_key(self) -> str:
        self._keys += 1
        return f"k{self._keys}"

    def _without_keys(self, count: int) -> list[Block]:
        held = self._model.live.consecutive(self._choice.which, count)
        return [block for block in held if not self._model.keys_of(block)]

    def _held_with_keys(self) -> list[Block]:
        keyed = self._model.with_keys(_LATEST)
        return [block for block in keyed if not self._model.is_free(block)]

    def _publish_block(self, key: str, block: Block, second: bool = False) -> None:
        if second:  # whoever allows one key may well raise
            result, error = self._call("publish", key, self._objects[block])
        else:
            result = self._must("publish", key, self._objects[block], refusable=True)
            error = None
        if error is None and result is not False:
            self._model.publish(key, block)

    def _lookup(self) -> None:
        key = self._any_key()
        result, error = self._call("lookup", key)
        if error is not None and not isinstance(error, LookupError):
            self._raised(f"lookup({key!r})", error)
        self._counts.lookups += 1
        if error is not None or _refuses(result):
            if self._pool.keeps:
                self._model.not_found(key)
            return
        [block] = self._named([result])
        self._model.found(key, block)
        self._counts.hits += 1
        self._concerned = [block]
        if self._pool.lookup_acquires:
            self._model.acquire(block)
        elif "touch" in self._overridden and not self._choice.flag:
            self._acquire("touch", block)

    def _any_key(self) -> str:
        known = self._model.keys_known
        gone = self._model.keys_gone(_LATEST) if self._choice.amount in (2, 3) else []
        if gone:
            return str(gone[self._choice.which % len(gone)])
        # The latest keys, as the blocks of earlier ones have most likely been reused.
        index = self._choice.which % (len(known) + 1 if self._choice.amount else 4)
        return str(known[-1 - index]) if index < len(known) else "unknown"

    def _unpublish(self) -> None:
        model = self._model
        candidates = model.live.consecutive(0, len(model.live))[:8] + model.freed[-8:]
        keyed = [block for block in candidates if model.keys_of(block)]
        if keyed:
            block = keyed[self._choice.which % len(keyed)]
            self._must("unpublish", self._objects[block])
            model.unpublish(block)

    def _evict(self) -> None:
        amount = self._choice.amount
        self._evict_blocks(self._model.size if amount == 9 else amount // 2 + 1)

    def _evict_blocks(self, n: int) -> None:
        result = self._must("evict", n, refusable=True)
        unnamed = result is None or isinstance(result, int)
        evicted = result if unnamed else self._named(result)
        self._counts.evicted += self._model.evict(n, evicted)

    def _reset(self) -> None:
        result, error = self._call("reset")
        if error is None and result is not False:
            self._model.reset()
        elif not self._model.live:
            self._violated("refused", "reset() was refused although no block is held", error)

    def _drain(self) -> None:
        """Give everything back, and take the whole pool: what is missing then has leaked."""
        model = self._model
        if "free" not in self._overridden:
            return
        while model.live:
            self._free_blocks(model.live.consecutive(0, len(model.live)))
            self._look()
        if "evict" in self._overridden:
            self._evict_blocks(model.size)
        at_once = self._pool.alloc_max or model.size
        if at_once < model.size > _DRAINED_ONE_BY_ONE_MAX:
            return
        while model.free:
            left = model.free
            self._alloc_blocks(min(at_once, left))
            self._look()
            if model.free == left:  # cached blocks of a pool that evicts may stay unavailable
                return

    # --- looks ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Compare the pool's counters with the model; they only look."""
        model = self._model
        if "available" in self._overridden:
            most = model.free
            least = model.free_at_least
            free = self._must("available", shown=False)
            if not least <= free <= most:
                self._lines.append(f"pool.available() -> {free!r}")
                due = f"{most}" if least == most else f"between {least} and {most}"
                violated(
                    "count",
                    f"available() is {free!r}; {model.size - most:,} of {model.size:,} are held, so"
                    f" {due} must be free",
                )
        if "references" in self._overridden:
            for block in [*self._concerned[:4], *model.live.consecutive(0, 1)]:
                self._look_at(block)

    def _look_at(self, block: Block) -> None:
        count = self._must("references", self._objects[block], shown=False)
        due = self._model.live.references(block)
        if count != due:
            self._lines.append(f"pool.references({block!r}) -> {count!r}")
            violated(
                "references",
                f"references({block!r}) is {count!r}; {due} reference{'' if due == 1 else 's'}"
                f" to it {'is' if due == 1 else 'are'} left",
            )

    # --- parts ------------------------------------------------------------------------------------

    @property
    def _is_large(self) -> bool:
        return self._model.size > _FILLED_IN_PARTS_MAX

    def _any_free(self) -> Block | None:
        """Return a block that was handed out before and is free."""
        freed = self._model.freed
        if not freed:
            return None
        last = len(freed) - self._choice.which % len(freed)
        recent = reversed(freed[max(0, last - _TRIED) : last])
        return next(filter(self._model.is_free, recent), None)

    def _named(self, result: Any) -> list[Block]:
        found = list(result) if isinstance(result, Iterable) else [result]
        try:
            names = [self._pool.name(block) for block in found]
            self._objects.update(zip(names, found, strict=True))
        except Exception as error:
            sentence = f"what it returned has no name that can be hashed: {_one_line(error)}"
            self._violated("malformed", sentence, error)
        return names

    def _given(self, names: Iterable[Block]) -> list[Any]:
        return [self._objects[name] for name in names]

    def _must(
        self,
        method: str,
        *arguments: Any,
        sentence: str = "",
        shown: bool = True,
        refusable: bool = False,
    ) -> Any:
        """Make a call that is to be taken, and return its result."""
        result, error = self._call(method, *arguments, shown=shown)
        call = self._written(method, arguments)
        if error is not None:
            self._raised(call, error, sentence)
        if result is False and not refusable:
            violated("refused", f"{call} was refused{f' {sentence}' if sentence else ''}")
        return result

    def _call(
        self, method: str, *arguments: Any, shown: bool = True
    ) -> tuple[Any, Exception | None]:
        self._concerned = () if shown else self._concerned
        self._counts.calls += shown
        call = f"pool.{self._written(method, arguments)}" if shown else ""
        try:
            result = getattr(self._pool, method)(*arguments)
        except (Violation, Hung):  # of an allocator's process, which is lost
            self._lines.append(call or f"pool.{method}()")
            raise
        except Exception as error:
            self._lines.append(f"{call or f'pool.{method}'} raises {_one_line(error)}")
            return None, error
        if shown:
            self._lines.append(f"{call}{self._answer(method, result)}")
        return result, None

    def _written(self, method: str, arguments: Sequence[Any]) -> str:
        show = repr if method in _TAKE_NUMBERS else self._show
        return f"{method}({', '.join(map(show, arguments))})"

    def _answer(self, method: str, result: Any) -> str:
        if result is None:
            return ""
        # A number that is returned where no block is expected, such as a status, is none.
        block = method in _RETURN_BLOCKS and not (method == "evict" and isinstance(result, int))
        try:
            return f" -> {self._show(result) if block else repr(result)}"
        except Exception:  # it has no name, which is judged where it is read
            return f" -> {result!r}"

    def _show(self, value: Any) -> str:
        if isinstance(value, list | tuple):
            if len(value) <= _SHOWN_FIRST + _SHOWN_LAST:
                return f"[{', '.join(map(self._show, value))}]"
            first = ", ".join(map(self._show, value[:_SHOWN_FIRST]))
            return f"[{first}, …, {self._show(value[-1])}] ({in_blocks(len(value))})"
        if value is None or isinstance(value, bool | str):
            return repr(value)
        return repr(self._pool.name(value))

    def _raised(self, call: str, error: Exception, sentence: str = "") -> NoReturn:
        but = f", {sentence}" if sentence else ""
        self._violated("raised", f"{call} raised {_one_line(error)}{but}", error)

    def _violated(self, kind: str, sentence: str, cause: BaseException | None) -> NoReturn:
        try:
            violated(kind, sentence)
        except Violation as found:
            raise found from cause


def _refuses(result: Any) -> bool:
    return result is None or result is False


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
