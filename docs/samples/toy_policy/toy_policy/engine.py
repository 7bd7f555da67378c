"""Shows the cache to the harness: after each change the witness compares tables, keys and counts
with what they were.
"""

from collections.abc import Hashable, Mapping, Sequence

from cachewitness import (
    Claim,
    Count,
    FirstCome,
    KeyId,
    Refused,
    Scheduled,
    Submit,
    Tables,
    UnpublishReason,
)
from toy_policy.cache import PagedCache, Request


class ToyAdapter(FirstCome):
    budget = 64

    def __init__(self, cache: PagedCache, tokens_max: int) -> None:
        self.cache, self.max_model_len = cache, tokens_max
        self.requests: dict[str, Request] = {}

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        if len(tokens) > self.max_model_len:
            raise Refused("the prompt is longer than the pool")
        content: list[Hashable] = [(submit.salt, submit.adapter), *tokens]
        for image in submit.media:
            content[1 + image.at : 1 + image.at + image.length] = [image.hash] * image.length
        self.requests[submit.r] = Request(content)

    def compute(self, r: str, tokens: int) -> tuple[int, int] | None:
        request = self.requests[r]
        if not request.table:
            if not self.cache.admit(request):
                return None
            self.diff.hit(r, request.computed, [list(request.table)])
        room = self.cache.allocate(request, tokens)
        self.diff.settle([r])
        return (request.computed, request.computed + room) if room else None

    def complete(self, scheduled: Scheduled) -> None:
        for r, (_, stop) in scheduled.chunks.items():
            self.cache.commit(self.requests[r], stop)
            self.diff.settle([r], served=r)

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        self.requests[r].content += tokens

    def end(self, r: str, *, finished: bool) -> None:
        self.preempt(r)
        del self.requests[r]

    def preempt(self, r: str) -> None:
        self.cache.release(self.requests[r])
        self.diff.settle([r])

    def forget(self, reason: UnpublishReason) -> bool:
        if not self.running():
            self.cache.pages, self.cache.keys = {}, {}
            self.diff.settle(reason=reason)
        return not self.running()

    def tables(self, r: str) -> Tables:
        return [list(self.requests[r].table)] if r in self.requests else []

    def keys(self) -> Mapping[KeyId, Claim]:
        return {(0, page, key): Claim(len(key) - 1) for page, key in self.cache.keys.items()}

    def counts(self) -> Mapping[int, Count]:
        cached = sum(page in self.cache.keys for page in self.cache.idle)
        free = len(self.cache.idle) - cached
        return {0: Count(free, len(self.cache.references) - free - cached, cached)}

    def references(self, pool: int, page: int) -> int:
        return self.cache.references[page]
