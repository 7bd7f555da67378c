"""Validates a stored trace or history before it is run or judged.

A history may come from any engine. Checkers judge later whether the engine was right; here only the record is examined: every
request is submitted before an event names it, every page, group and pool exists in the header, every table has one column list
for each group. A record that fails this is refused with file, line and field; it is never a verdict on the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from harness._util.errors import UsageError
from harness.history import events as history
from harness.history.attention_span import columns
from harness.history.events import (
    Aborted,
    Accept,
    Compare,
    Copy,
    Counts,
    Drop,
    Event,
    Finished,
    Group,
    Header,
    History,
    Hit,
    Move,
    Preempted,
    Publish,
    Read,
    ResetDone,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Take,
    Unpublish,
    Write,
    Zero,
)
from harness.trace import format as trace
from harness.trace.format import Abort, Finish, GroupSpec, Media, Op, Preempt, Step, Submit, Trace, Vocabulary

PAGES_MAX = 1 << 22
TOKEN_MAX = (1 << 43) - 1
NO_COLUMN = -1
"""What stands for a column that a table does not have."""
NO_REQUEST = ("copy:", "capture:", "store:")
"""How holders begin that are no requests."""


class Nonsense(Exception):
    """An event refers to something that does not exist; the message says what."""


def read(path: Path) -> tuple[Header, Iterator[tuple[int, Event]]]:
    """Return the header of a history that makes sense, and its events with their lines, read as they are asked for.

    Raises UsageError naming the file, the line and the field if anything does not fit the format or refers to nothing.
    """
    header, events = history.read(path)
    try:
        sense = WellFormedness(header)
    except Nonsense as problem:
        raise UsageError(f"{path}:1: {problem}") from None

    def followed() -> Iterator[tuple[int, Event]]:
        for line, event in events:
            try:
                sense.follow(event)
            except Nonsense as problem:
                raise UsageError(f"{path}:{line}: {problem}") from None
            yield line, event

    return header, followed()


def load(path: Path) -> tuple[History, list[int]]:
    """Read a history that makes sense, all of it, and return with it the line of each event in the file.

    Raises UsageError naming the file, the line and the field if anything does not fit the format or refers to nothing.
    """
    header, events = read(path)
    numbered = list(events)
    return History(header, [event for _, event in numbered], [-1] * len(numbered)), [line for line, _ in numbered]


def load_trace(path: Path) -> Trace:
    """Read a trace that an engine can be asked to run.

    Raises UsageError naming the file, the line and the field if anything does not fit the format, or no engine could do it.
    """
    asked = trace.load(path)
    line_of = _lines(path)
    for group in asked.header.layout.groups:
        if problem := _spans_problem(group, "at `$.layout.groups`"):
            raise UsageError(f"{path}:1: {problem}")
    if not 2 <= asked.header.pages <= PAGES_MAX:
        raise UsageError(
            f"{path}:1: {asked.header.pages} - at `$.pages`; a pool has the null block and another, at most {PAGES_MAX}"
        )
    known: set[str] = set()
    for number, op in zip(line_of, asked.ops, strict=True):
        if problem := _op_problem(op) or _stranger(op, known):
            raise UsageError(f"{path}:{number}: {problem}")
    return asked


def problems(happened: History) -> Iterator[tuple[int, str]]:
    """Yield the first thing that makes no sense, if there is one: the index of the event (−1: the header) and what it is."""
    index = -1
    try:
        sense = WellFormedness(happened.header)
        for event in happened.events:
            index += 1
            sense.follow(event)
    except Nonsense as problem:
        yield index, str(problem)


class WellFormedness:
    """Follows a history event by event, keeping no more than is needed to know what exists.

    Raises Nonsense for a header whose groups or pools do not fit together.
    """

    def __init__(self, header: Header) -> None:
        _check_header(header)
        self._groups = header.groups
        self._pools = {pool.id: pool.pages for pool in header.pools}
        self._tiers = {pool.tier for pool in header.pools}
        self._tokens: dict[str, int] = {}
        self._running: dict[int, dict[str, int]] = {}
        """Steps that have not ended; of each, where the drafts of its requests end."""
        self._under_way: set[int] = set()
        self._rules: dict[type, Callable[[Any], None]] = {
            Take: self._holding,
            Drop: self._holding,
            Read: self._access,
            Write: self._access,
            Copy: lambda e: self._moves(e.moves, "moves"),
            Zero: lambda e: self._pages(e.pages, e.pool, "pages"),
            Publish: self._publish,
            Unpublish: self._unpublish,
            Hit: self._hit,
            Counts: self._counts,
            Submitted: self._submit,
            StepBegin: self._step_begin,
            StepEnd: self._step_end,
            Accept: self._accept,
            Preempted: lambda e: self._known([e.r], "r"),
            Aborted: lambda e: self._known([e.r], "r"),
            Finished: lambda e: self._known([e.r], "r"),
            Compare: self._compare,
            ResetDone: lambda e: self._tier(e.tier),
        }

    def follow(self, event: Event) -> None:
        """Take one event in. Raises Nonsense if it refers to something that does not exist."""
        rule = self._rules.get(type(event))
        if rule is not None:
            rule(event)

    def _holding(self, event: Take | Drop) -> None:
        self._group(event.group, event.pool)
        self._pages(event.pages, event.pool, "pages")
        if not event.holder.startswith(NO_REQUEST):
            self._known([event.holder], "holder")

    def _access(self, event: Read | Write) -> None:
        group = self._groups[self._group(event.group, event.pool)]
        self._known([event.r], "r")
        tokens = self._running.get(event.step, {}).get(event.r, 0) or self._tokens[event.r]
        if not 0 <= event.start <= event.stop <= tokens:
            raise Nonsense(f"tokens [{event.start}, {event.stop}) - at `$.start`; {event.r!r} has {tokens} tokens here")
        first, last = columns(group, event.start, event.stop)
        wanted = 1 if group.kind == "recurrent" else last - first
        if len(event.pages) != wanted:
            span = f"tokens [{event.start}, {event.stop}) of group {event.group}"
            raise Nonsense(f"{len(event.pages)} pages - at `$.pages`; {span} take {wanted}")
        self._pages([page for page in event.pages if page != NO_COLUMN], event.pool, "pages")

    def _moves(self, moves: list[Move], field: str) -> None:
        for move in moves:
            self._pages([move.src], move.src_pool, field)
            self._pages([move.dst], move.dst_pool, field)

    def _publish(self, event: Publish) -> None:
        self._known([event.r], "r")
        self._pages([event.page, *event.companions], self._pool_of(event.group), "page")
        if event.length < 1:
            raise Nonsense(f"{event.length} - at `$.length`; a key stands for at least one token")

    def _unpublish(self, event: Unpublish) -> None:
        self._pages([event.page], self._pool_of(event.group), "page")
        _at_least_nothing(event.length, "length")

    def _counts(self, event: Counts) -> None:
        self._pages([page for page, _ in event.refs], event.pool, "refs")
        if min(event.free, event.held, event.cached) < 0:
            raise Nonsense("less than nothing - at `$.free`, `$.held` or `$.cached`")

    def _hit(self, event: Hit) -> None:
        self._known([event.r], "r")
        self._tier(event.tier)
        if event.reported < 0 or event.resume < 0:
            raise Nonsense("less than nothing - at `$.reported` or `$.resume`")
        self._columns(event.pages, "pages")

    def _submit(self, event: Submitted) -> None:
        problem = _name_problem(event.r, self._tokens) or _media_problem(event.media)
        if problem:
            raise Nonsense(problem)
        self._tokens[event.r] = len(event.tokens)
        _check_tokens(event.tokens)

    def _step_begin(self, event: StepBegin) -> None:
        if event.step in self._running:
            raise Nonsense(f"step {event.step} has begun already - at `$.step`; it ends before it begins again")
        self._running[event.step] = {}
        self._known([r for r, _ in event.asked], "asked")
        for _, tokens in event.asked:
            _at_least_nothing(tokens, "asked")
        self._known([run.r for run in event.runs], "runs")
        for run in event.runs:
            if not 0 <= run.start <= run.stop:
                raise Nonsense(f"tokens [{run.start}, {run.stop}) of {run.r!r} - at `$.runs`")
            self._columns(run.tables, "runs")
            if run.drafts:
                self._drafts(event.step, run)
        self._moves(event.copies, "copies")
        self._moves(event.stores, "stores")
        self._transfers(event)
        for pool, pages in event.zeros:
            self._pages(pages, pool, "zeros")

    def _transfers(self, event: StepBegin) -> None:
        for number, move in event.begun:
            if number in self._under_way:
                raise Nonsense(f"copy {number} has begun already - at `$.begun`; give every copy a number of its own")
            self._moves([move], "begun")
            self._under_way.add(number)
        for field, numbers in (("ended", event.ended), ("failed", event.failed)):
            for number in numbers:
                if number not in self._under_way:
                    raise Nonsense(f"copy {number} is not under way - at `$.{field}`")
                self._under_way.remove(number)

    def _drafts(self, step: int, run: Run) -> None:
        if not run.start < run.known <= self._tokens[run.r]:
            raise Nonsense(f"drafts from {run.known} on - at `$.runs`; {run.r!r} has {self._tokens[run.r]} tokens here")
        _check_tokens(run.drafts)
        self._tables(run.scratch, "runs")
        self._running[step][run.r] = run.stop

    def _step_end(self, event: StepEnd) -> None:
        if event.step not in self._running:
            raise Nonsense(f"step {event.step} has not begun - at `$.step`")
        del self._running[event.step]
        self._known(event.withdrawn, "withdrawn")

    def _accept(self, event: Accept) -> None:
        self._known([event.r], "r")
        before = event.upto - len(event.tokens)
        if not 0 <= before <= self._tokens[event.r]:
            raise Nonsense(
                f"{event.upto} - at `$.upto`; {event.r!r} has {self._tokens[event.r]} tokens here and gets {len(event.tokens)}"
            )
        self._tokens[event.r] = event.upto
        _check_tokens(event.tokens)

    def _compare(self, event: Compare) -> None:
        self._known([event.r], "r")
        if not 0 <= event.start <= event.stop:
            raise Nonsense(f"tokens [{event.start}, {event.stop}) - at `$.start`")

    def _known(self, requests: Iterable[str], field: str) -> None:
        for r in requests:
            if r not in self._tokens:
                raise Nonsense(f"request {r!r} was never submitted - at `$.{field}`")

    def _tier(self, tier: str) -> None:
        if tier not in self._tiers:
            raise Nonsense(f"tier {tier!r} does not exist - at `$.tier`; the header has {', '.join(sorted(self._tiers))}")

    def _group(self, group: int, pool: int) -> int:
        if self._pool_of(group) != pool:
            raise Nonsense(f"pool {pool} - at `$.pool`; group {group} lies in pool {self._groups[group].pool}")
        return group

    def _pool_of(self, group: int) -> int:
        if not 0 <= group < len(self._groups):
            raise Nonsense(f"group {group} does not exist - at `$.group`; the header has groups 0 to {len(self._groups) - 1}")
        return self._groups[group].pool

    def _columns(self, tables: list[list[int]], field: str) -> None:
        self._tables([[page for page in table if page != NO_COLUMN] for table in tables], field)

    def _tables(self, tables: list[list[int]], field: str) -> None:
        if len(tables) != len(self._groups):
            raise Nonsense(f"{len(tables)} tables - at `$.{field}`; the header has {len(self._groups)} groups")
        for group, pages in zip(self._groups, tables, strict=True):
            self._pages(pages, group.pool, field)

    def _pages(self, pages: Iterable[int], pool: int, field: str) -> None:
        if pool not in self._pools:
            raise Nonsense(f"pool {pool} does not exist - at `$.{field}`; the header has {_listed(self._pools)}")
        for page in pages:
            if not 0 <= page < self._pools[pool]:
                raise Nonsense(
                    f"page {page} does not exist - at `$.{field}`; pool {pool} has pages 0 to {self._pools[pool] - 1}"
                )


def _check_header(header: Header) -> None:
    pools = [pool.id for pool in header.pools]
    if not pools or not header.groups:
        raise Nonsense("nothing to judge - at `$.pools` or `$.groups`; name at least one pool and one group")
    if len(set(pools)) != len(pools):
        raise Nonsense(f"{_listed(pools)} - at `$.pools`; give every pool an id of its own")
    for pool in header.pools:
        if not 1 <= pool.pages <= PAGES_MAX or not all(0 <= page < pool.pages for page in pool.null):
            raise Nonsense(f"pool {pool.id} - at `$.pools`; pages are 1 to {PAGES_MAX}, null pages among them")
    for index, group in enumerate(header.groups):
        where = f"at `$.groups[{index}]`"
        if group.id != index:
            raise Nonsense(f"id {group.id} - {where}; groups are numbered from 0 in the order of the list")
        if group.pool not in pools:
            raise Nonsense(f"pool {group.pool} does not exist - {where}; the header has {_listed(pools)}")
        if group.of >= len(header.groups):
            raise Nonsense(f"of {group.of} - {where}; the header has groups 0 to {len(header.groups) - 1}")
        if problem := _spans_problem(group, where):
            raise Nonsense(problem)
    rules = header.rules
    interval = rules.retention.interval
    if rules.alignment < 1 or rules.eagle_drop_tokens < 0 or (interval is not None and interval < 0):
        raise Nonsense("less than it can be - at `$.rules`; alignment is at least 1, eagle_drop_tokens and interval at least 0")
    if not all(0 <= group < len(header.groups) for group in rules.retention.groups):
        raise Nonsense(f"groups {rules.retention.groups} - at `$.rules.retention`; one of them does not exist")


def _spans_problem(group: Group | GroupSpec, where: str) -> str:
    spans = {"block_size": group.block_size}
    spans |= {"window": group.window} if group.kind == "sliding" else {}
    spans |= {"chunk": group.chunk} if group.kind == "chunked" else {}
    wrong = [f"{field} {value} - {where}; a {group.kind} group needs at least 1" for field, value in spans.items() if value < 1]
    return wrong[0] if wrong else ""


def _op_problem(op: Op) -> str:
    if isinstance(op, Submit):
        if not Vocabulary().tokens(op.prompt):
            return "no tokens - at `$.prompt`; a request needs at least one"
        return _media_problem(op.media)
    if isinstance(op, Step):
        if any(tokens < 1 for _, tokens in op.run):
            return "less than one token - at `$.run`; a request that runs computes at least one"
        if len(dict(op.run)) < len(op.run):
            return "a request twice - at `$.run`; a step computes one chunk of each"
        if op.budget < 0:
            return f"{op.budget} - at `$.budget`; a budget is at least 0"
        if any(place < 0 for place in op.fail):
            return f"{min(op.fail)} - at `$.fail`; places among the copies under way begin at 0"
    return ""


def _stranger(op: Op, known: set[str]) -> str:
    """Return what is wrong with the requests that an operation names; `known` are those submitted before it."""
    if isinstance(op, Submit):
        problem = _name_problem(op.r, known)
        known.add(op.r)
        return problem
    named = [(op.r, "r")] if isinstance(op, Finish | Abort | Preempt) else []
    if isinstance(op, Step):
        named = [*((r, "run") for r, _ in op.run), *((r, "withdraw") for r in op.withdraw)]
    strange = [f"request {r!r} was never submitted - at `$.{field}`" for r, field in named if r not in known]
    return strange[0] if strange else ""


def _name_problem(r: str, known: Container[str]) -> str:
    if r in known:
        return f"request {r!r} is submitted twice - at `$.r`; give every request a name of its own"
    if not r or r.startswith(NO_REQUEST):
        return f"{r!r} - at `$.r`; a request has a name, which does not begin with {' or '.join(NO_REQUEST)}"
    return ""


def _media_problem(media: list[Media]) -> str:
    wrong = any(item.at < 0 or item.length < 1 for item in media)
    return "an item before the prompt, or of no token - at `$.media`" if wrong else ""


def _at_least_nothing(number: int, field: str) -> None:
    if number < 0:
        raise Nonsense(f"{number} - at `$.{field}`; it is at least 0")


def _lines(path: Path) -> list[int]:
    """Return the line of each entry of a file after its header; blank lines are no entries."""
    return [number for number, text in enumerate(path.read_bytes().splitlines(), start=1) if text.strip() or number == 1][1:]


def _check_tokens(tokens: list[int]) -> None:
    if not all(0 <= token <= TOKEN_MAX for token in tokens):
        raise Nonsense(f"a token id outside 0 to {TOKEN_MAX} - at `$.tokens`")


def _listed(pools: Iterable[int]) -> str:
    return f"pools {', '.join(map(str, pools))}"
