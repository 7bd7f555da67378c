"""A scheduler of our own over the manager: first come, first served, prompts in chunks, preemption
when a pool runs out.

Furiosa's scheduler is not published; the document says of it that it coordinates both pools
together. So this one never gives a request blocks of one pool without the other, and everything
else is the plainest rule that always makes progress: whoever came first goes first, a chunk is what
fits, and a request that gets no block takes those of the one that came last. The oldest request can
take everything, and no request is longer than what the pools hold, so it always moves on.

Source of the rule: spec choices `scheduling`, `chunked-prefill`, `admission`, `longest-request`,
`reset`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cachewitness_reference.furiosa.config import CacheConfig
from cachewitness_reference.furiosa.hybrid_match import Hit
from cachewitness_reference.furiosa.manager import HybridCacheManager
from cachewitness_reference.furiosa.request import Request, Status


class RefusedRequest(ValueError):
    """A request cannot be taken, or cannot be done to it what was asked; the message is one
    line.
    """


@dataclass
class Step:
    """One forward pass: how many tokens each request computes, in order; hits of those who join;
    who lost its place for it.
    """

    num_tokens: dict[str, int] = field(default_factory=dict)
    hits: dict[str, Hit] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)


class Scheduler:
    """Requests wait, run and end."""

    def __init__(self, config: CacheConfig, manager: HybridCacheManager | None = None) -> None:
        self.config = config
        self.manager = manager or HybridCacheManager(config)
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue.

        Raises RefusedRequest if its name is taken, or its prompt is empty or leaves no room to
        generate.
        """
        if request.request_id in self.requests:
            raise RefusedRequest(f"request_id {request.request_id!r} is already here")
        if not 0 < request.num_tokens < self.config.max_request_len:
            raise RefusedRequest(
                f"prompt of request {request.request_id!r}: {request.num_tokens} tokens; it may"
                f" have 1 to {self.config.max_request_len - 1} (max_model_len"
                f" {self.config.options.max_model_len}, global pool of {self.config.global_blocks}"
                " blocks)"
            )
        self.requests[request.request_id] = request
        self.waiting.append(request)

    # A STEP

    def schedule(self, budget: int = 0) -> Step:
        """Choose what the next forward pass computes, within `budget` tokens (0:
        max_num_batched_tokens).
        """
        limit = self.config.options.max_num_batched_tokens
        left = min(budget, limit) if budget else limit
        step = Step()
        # ALLOCATE, RELEASE
        for request in list(self.running):
            if left and request.status is Status.RUNNING:
                left -= self._extend(request, left, step)
        # LOOKUP, ALLOCATE
        while (
            self.waiting
            and left
            and not step.preempted
            and len(self.running) < self.config.options.max_num_seqs
        ):
            joined = self.join(self.waiting[0], left, step)
            if not joined:
                break
            left -= joined
        # COMMIT: nothing; what a pass computes is stored when it has run.
        return step

    def _extend(self, request: Request, left: int, step: Step) -> int:
        """Let a running request compute what fits, taking the place of whoever came last if it
        must; return how much.
        """
        while not (computes := self.extend(request, left, step)):
            last = self.running[-1]
            self.preempt(last.request_id)
            step.preempted.append(last.request_id)
            if last is request:
                return 0
        return computes

    def extend(self, request: Request, left: int, step: Step) -> int:
        """Let a running request compute what fits of `left` tokens at most, without harming
        anybody; return how much.
        """
        tokens = min(request.num_tokens - request.num_computed, left, *self.manager.room(request))
        if tokens > 0:
            self.manager.extend(request, tokens)
            step.num_tokens[request.request_id] = tokens
        return max(tokens, 0)

    def join(self, request: Request, left: int, step: Step) -> int:
        """Let a waiting request start, if all of it fits the global pool; return how many of
        `left` tokens it computes.
        """
        # LOOKUP
        hit = self.manager.match(request)
        global_room, sliding_room = self.manager.room(request, hit)
        missing = request.num_tokens - hit.length
        tokens = min(missing, left, sliding_room)
        if global_room < missing or tokens <= 0:
            return 0
        # ALLOCATE
        self.manager.prefill(request, hit, tokens)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        step.num_tokens[request.request_id] = tokens
        step.hits[request.request_id] = hit
        # COMMIT: nothing; what a pass computes is stored when it has run.
        # RELEASE: nothing; nobody gives way to a request that waits.
        return tokens

    def complete(self, step: Step) -> None:
        """Take note that a forward pass has run."""
        for name, tokens in step.num_tokens.items():
            self.manager.complete(self.requests[name], tokens)

    def generated(self, request_id: str, tokens: Sequence[int]) -> bool:
        """Take in what was sampled; return whether the request is as long as it may be, and has
        to end.
        """
        request = self.requests[request_id]
        request.append(tokens)
        return request.num_tokens >= self.config.max_request_len

    # LIFE

    def finish(self, request_ids: Iterable[str]) -> None:
        """End requests, as intended or early."""
        # LOOKUP, ALLOCATE, COMMIT: nothing; what is stored of a request stays stored.
        # RELEASE
        for name in request_ids:
            request = self.requests.pop(name)
            (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
            request.status = Status.FINISHED
            self.manager.free(request)

    def preempt(self, request_id: str) -> None:
        """Take a running request's blocks away; it waits in front. Raises RefusedRequest if it
        does not run.
        """
        request = self.requests.get(request_id)
        if request is None or request.status is not Status.RUNNING:
            raise RefusedRequest(f"request {request_id!r} is not running and cannot be preempted")
        # LOOKUP, ALLOCATE, COMMIT: nothing; it is matched again when its turn comes.
        # RELEASE
        self.running.remove(request)
        self.manager.free(request)
        request.status = Status.WAITING
        self.waiting.appendleft(request)

    def reset(self) -> bool:
        """Forget everything stored, unless somebody runs; return whether it was done."""
        # LOOKUP, ALLOCATE, COMMIT: nothing; every entry goes.
        # RELEASE
        return self.manager.reset()
