"""A paged prefix cache under cachewitness: a sample to copy.

`PagedCache` stands for your engine: pages, reference counts, a key for each prefix of whole blocks.
`PagedAdapter` drives it and shows its tables, keys and counts, which the harness compares with what
they were. `ENGINE` is registered (docs/engines.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from cachewitness import (
    Accepts,
    Claim,
    Count,
    Driver,
    EngineKind,
    Eviction,
    FirstCome,
    KeyId,
    Refused,
    Scheduled,
    Submit,
    Tables,
    TraceHeader,
    Unkeyed,
    UnpublishReason,
    UsageError,
    describe_full_attention,
)

Key = tuple[Hashable, ...]  # (salt, adapter), then each token, or the image that is there


class PagedCache:
    """A pool of pages. A page without holders keeps its key until it is handed out anew, the least
    recently used first.
    """

    def __init__(self, pages: int) -> None:
        self.unheld = deque(range(pages))
        self.references = [0] * pages
        self.page_of: dict[Key, int] = {}
        self.key_of: dict[int, Key] = {}

    def allocate(self, hit: Sequence[int], count: int) -> list[int] | None:
        """Hold the pages of a hit and `count` new ones; None, and nothing is held, if too few are
        left.
        """
        revived = [page for page in hit if self.references[page] == 0]
        if len(self.unheld) - len(revived) < count:
            return None
        for page in revived:
            self.unheld.remove(page)
        fresh = [self.unheld.popleft() for _ in range(count)]
        for page in fresh:
            self.page_of.pop(self.key_of.pop(page, ()), None)
        for page in [*hit, *fresh]:
            self.references[page] += 1
        return [*hit, *fresh]

    def release(self, pages: Sequence[int]) -> None:
        """Hold pages no longer; the end of a prefix is handed out first."""
        for page in reversed(pages):
            self.references[page] -= 1
            if self.references[page] == 0:
                self.unheld.append(page)

    def publish(self, key: Key, page: int) -> None:
        """Let a page be found by a key, unless another page is."""
        if key not in self.page_of:
            self.page_of[key], self.key_of[page] = page, key


@dataclass
class Request:
    """What a request's keys are made of, how many tokens are computed, and in which pages."""

    content: list[Hashable]
    computed: int = 0
    pages: list[int] = field(default_factory=list)

    def keys(self, size: int, start: int, stop: int) -> list[Key]:
        """Return the keys of the blocks that end in tokens (start, stop]."""
        ends = range((start // size + 1) * size, stop + 1, size)
        return [(*self.content[: 1 + end],) for end in ends]


class PagedAdapter(FirstCome):
    """First come, first served; if pages run out, whoever came last gives theirs up."""

    def __init__(self, pages: int, block_size: int, options: Mapping[str, int]) -> None:
        self.cache, self.size = PagedCache(pages), block_size
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
        self.cache.release(request.pages)
        request.pages, request.computed = [], 0
        self.diff.settle([r])

    def running(self) -> list[str]:
        return list(self.admitted)

    def forget(self, reason: UnpublishReason) -> bool:
        self.cache.page_of.clear()
        self.cache.key_of.clear()
        self.diff.settle(reason=reason)
        return True

    def waiting(self) -> list[str]:
        return [r for r in self.requests if r not in self.admitted]

    def compute(self, r: str, tokens: int) -> tuple[int, int] | None:
        request, new = self.requests[r], r not in self.admitted
        keys = request.keys(self.size, 0, len(request.content) - 2) if new else []
        hit = [self.cache.page_of[key] for key in takewhile(self.cache.page_of.__contains__, keys)]
        start = request.computed + len(hit) * self.size
        stop = min(start + tokens, len(request.content) - 1)
        count = -(-stop // self.size) - len(hit) - len(request.pages)
        if (pages := self.cache.allocate(hit, count)) is None:
            return None
        request.pages, request.computed = request.pages + pages, start
        if new:
            self.admitted.append(r)
            self.diff.hit(r, start, [hit])
        self.diff.settle([r])
        return start, stop

    def complete(self, scheduled: Scheduled) -> None:
        for r, (start, stop) in scheduled.chunks.items():
            request = self.requests[r]
            request.computed = stop
            pages = request.pages[start // self.size :]
            for key, page in zip(request.keys(self.size, start, stop), pages, strict=False):
                self.cache.publish(key, page)
            self.diff.settle(served=r)

    def tables(self, r: str) -> Tables:
        return [self.requests[r].pages] if r in self.requests else []

    def keys(self) -> Mapping[KeyId, Claim]:
        return {(0, page, key): Claim(len(key) - 1) for key, page in self.cache.page_of.items()}

    def counts(self) -> Mapping[int, Count]:
        unheld = len(self.cache.unheld)
        cached = sum(page in self.cache.key_of for page in self.cache.unheld)
        return {0: Count(unheld - cached, len(self.cache.references) - unheld, cached)}

    def references(self, pool: int, page: int) -> int:
        return self.cache.references[page]


OPTIONS = {"max_model_len": 4096, "max_num_batched_tokens": 2048, "retention_interval": 0}


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build an engine for one trace; a UsageError says that it cannot run it."""
    if unknown := set(header.options) - set(OPTIONS):
        raise UsageError(f"options that this cache does not have: {', '.join(sorted(unknown))}")
    order, unkeyed = Eviction("lru", free_first=False), Unkeyed(duplicates=True)
    described = describe_full_attention(header, "paged", order, unkeyed=unkeyed)
    size = described.groups[0].block_size
    return Driver(described, PagedAdapter(header.pages, size, OPTIONS | header.options))


SUMMARY = "a sample: a paged prefix cache"
ENGINE = EngineKind(
    "paged",
    SUMMARY,
    ("manager", "scheduler"),
    open_engine,
    replays=False,
    accepts=Accepts(kinds=("full",), groups_max=1, options=dict.fromkeys(OPTIONS, ())),
)
