"""A hybrid prefix cache under cachewitness: a sample to copy.

`HybridCache` stands for your engine: one pool of pages for full attention and for recurrent states.
A state is saved at every block boundary that a request passes, the last one in front of the end of
its prompt (its replay boundary) among them. `HybridAdapter` drives it and shows its tables, keys
and counts, which the harness compares with what they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from cachewitness import (
    CAPABILITIES,
    Accepts,
    Claim,
    Count,
    Driver,
    EngineKind,
    Eviction,
    FirstCome,
    Group,
    Header,
    KeyId,
    Pool,
    Refused,
    Rules,
    Scheduled,
    Submit,
    Tables,
    TraceHeader,
    Unkeyed,
    UnpublishReason,
    UsageError,
)

NO_PAGE = -1  # a column of a block table that is not there
Key = tuple[int, tuple[Hashable, ...]]  # group; (salt, adapter), then each token or its image


class HybridCache:
    """A pool of pages. A page without holders keeps its key until it is handed out anew, the least
    recently used first.
    """

    def __init__(self, pages: int) -> None:
        self.unheld = deque(range(pages))
        self.references = [0] * pages
        self.page_of: dict[Key, int] = {}
        self.key_of: dict[int, Key] = {}

    def allocate(self, hit: Sequence[int], count: int) -> list[int] | None:
        """Hold the pages of a hit and `count` new ones, which are returned; None, and nothing is
        held, if too few are left.
        """
        revived = [page for page in hit if self.references[page] == 0]
        if len(self.unheld) - len(revived) < count:
            return None
        for page in revived:
            self.unheld.remove(page)
        fresh = [self.unheld.popleft() for _ in range(count)]
        for page in fresh:
            self.page_of.pop(self.key_of.pop(page, (0, ())), None)
        for page in [*hit, *fresh]:
            self.references[page] += 1
        return fresh

    def release(self, pages: Sequence[int]) -> None:
        """Hold pages no longer; the end of a prefix is handed out first."""
        for page in reversed(pages):
            self.references[page] -= 1
            if self.references[page] == 0:
                self.unheld.append(page)

    def publish(self, key: Key, page: int) -> None:
        """Let a page be found by a key, unless another page is, or it has one."""
        if key not in self.page_of and page not in self.key_of:
            self.page_of[key], self.key_of[page] = page, key


@dataclass
class Request:
    """What a request's keys are made of, how many tokens are computed, and its block tables."""

    content: list[Hashable]
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)

    def pages(self) -> list[int]:
        """Return the pages that it holds."""
        return [page for table in self.tables for page in table if page != NO_PAGE]


class HybridAdapter(FirstCome):
    """First come, first served; if pages run out, whoever came last gives theirs up."""

    def __init__(self, header: Header, options: Mapping[str, int]) -> None:
        self.cache, self.groups = HybridCache(header.pools[0].pages), header.groups
        self.size = header.groups[0].block_size
        self.max_model_len = options["max_model_len"]
        self.budget = options["max_num_batched_tokens"]
        self.requests: dict[str, Request] = {}
        self.admitted: list[str] = []

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        if len(tokens) >= self.max_model_len:
            raise Refused(f"{len(tokens)} tokens are not less than {self.max_model_len}")
        content: list[Hashable] = [(submit.salt, submit.adapter), *tokens]
        for image in submit.media:
            content[1 + image.at : 1 + image.at + image.length] = [image.hash] * image.length
        self.requests[submit.r] = Request(content)

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        self.requests[r].content += tokens

    def end(self, r: str, *, finished: bool) -> None:
        self.preempt(r)
        del self.requests[r]

    def preempt(self, r: str) -> None:
        request = self.requests[r]
        self.admitted = [other for other in self.admitted if other != r]
        self.cache.release(request.pages())
        request.tables, request.computed = [], 0
        self.diff.settle([r])

    def running(self) -> list[str]:
        return list(self.admitted)

    def waiting(self) -> list[str]:
        return [r for r in self.requests if r not in self.admitted]

    def forget(self, reason: UnpublishReason) -> bool:
        self.cache.page_of.clear()
        self.cache.key_of.clear()
        self.diff.settle(reason=reason)
        return True

    def key(self, request: Request, group: int, blocks: int) -> Key:
        return group, (*request.content[: 1 + blocks * self.size],)

    def look_up(self, request: Request) -> list[list[int]]:
        """Return the tables of the longest prefix that every group has: attention every block of
        it, a recurrent group the state behind its last block. One token is left to compute.
        """
        tables: list[list[int]] = [[] for _ in self.groups]
        found: list[list[int]] = [[] for _ in self.groups]
        for blocks in range(1, (len(request.content) - 2) // self.size + 1):
            pages = [
                self.cache.page_of.get(self.key(request, group.id, blocks), NO_PAGE)
                for group in self.groups
            ]
            for group, row, page in zip(self.groups, found, pages, strict=True):
                if group.kind == "full" and page == NO_PAGE:
                    return tables
                row.append(page)
            if NO_PAGE not in pages:
                tables = [
                    list(row) if group.kind == "full" else [NO_PAGE] * (blocks - 1) + row[-1:]
                    for group, row in zip(self.groups, found, strict=True)
                ]
        return tables

    def compute(self, r: str, tokens: int) -> tuple[int, int] | None:
        request, new = self.requests[r], r not in self.admitted
        tables = self.look_up(request) if new else request.tables
        start = len(tables[0]) * self.size if new else request.computed
        stop = min(start + tokens, len(request.content) - 1)
        hit = [page for table in tables for page in table if new and page != NO_PAGE]
        more = -(-stop // self.size) - len(tables[0])  # columns, as many in every group
        if (fresh := self.cache.allocate(hit, more * len(tables))) is None:
            return None
        request.tables = [
            [*table, *fresh[group * more : (group + 1) * more]]
            for group, table in enumerate(tables)
        ]
        request.computed = start
        if new:
            self.admitted.append(r)
            self.diff.hit(r, start, tables)
        self.diff.settle([r])
        return start, stop

    def complete(self, scheduled: Scheduled) -> None:
        for r, (start, stop) in scheduled.chunks.items():
            request = self.requests[r]
            request.computed = stop
            for group, table in zip(self.groups, request.tables, strict=True):
                for column in range(start // self.size, stop // self.size):
                    self.cache.publish(self.key(request, group.id, column + 1), table[column])
                if group.kind == "recurrent":
                    self.let_go(table, len(table) - 1)
            self.diff.settle([r], served=r)

    def let_go(self, table: list[int], columns: int) -> None:
        """Give back the states in front of the latest: others may hit them, the request goes on."""
        self.cache.release([page for page in table[:columns] if page != NO_PAGE])
        table[:columns] = [NO_PAGE] * columns

    def tables(self, r: str) -> Tables:
        return self.requests[r].tables if r in self.requests else []

    def keys(self) -> Mapping[KeyId, Claim]:
        return {
            (key[0], page, key): Claim(len(key[1]) - 1) for key, page in self.cache.page_of.items()
        }

    def counts(self) -> Mapping[int, Count]:
        unheld = len(self.cache.unheld)
        cached = sum(page in self.cache.key_of for page in self.cache.unheld)
        return {0: Count(unheld - cached, len(self.cache.references) - unheld, cached)}

    def references(self, pool: int, page: int) -> int:
        return self.cache.references[page]


OPTIONS = {"max_model_len": 4096, "max_num_batched_tokens": 2048}
ACCEPTS = Accepts(
    kinds=("full", "recurrent"),
    one_block_size=True,
    options={**dict.fromkeys(OPTIONS, ()), "retention_interval": (None,)},
)


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build an engine for one trace; a UsageError says that it cannot run it."""
    if refusal := ACCEPTS.refusal(header.layout, header.options):
        raise UsageError(f"layout {header.layout.name!r}: this cache does not take {refusal}")
    size = header.layout.groups[0].block_size
    described = Header(
        engine="hybrid",
        level=header.level,
        pools=[Pool(0, header.pages, eviction=Eviction("lru", free_first=False))],
        groups=[
            Group(index, group.kind, size, snapshots="every-block")
            for index, group in enumerate(header.layout.groups)
        ],
        rules=Rules(alignment=size, unkeyed=Unkeyed(duplicates=True)),
        capabilities=CAPABILITIES,
        trace=header.name,
    )
    limits = {name: header.options.get(name, value) for name, value in OPTIONS.items()}
    return Driver(described, HybridAdapter(described, limits))


SUMMARY = "a sample: full attention and recurrent states in one pool"
ENGINE = EngineKind(
    "hybrid", SUMMARY, ("manager", "scheduler"), open_engine, replays=False, accepts=ACCEPTS
)
