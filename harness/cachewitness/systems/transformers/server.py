"""A small server over transformers: admits requests, computes prompts in chunks, resumes from
caches that it kept by prefix.

Each request has a cache object of its own. Without caching there is none at all: every token is
computed from nothing, those of all requests in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from cachewitness.core.engine_failure import native
from cachewitness.core.events import Answer, Ended, Event
from cachewitness.core.trace_format import Submit
from cachewitness.systems.transformers.model import Model
from cachewitness.systems.transformers.rows import How, Rows
from cachewitness.systems.transformers.store import PrefixStore

EVICTED = "evicted"
"""Why nothing is restored of a prompt of which something was kept, or would have been."""
SLOTS = 4
"""So many requests run at a time."""


@dataclass(eq=False)
class Request:
    """A request: its tokens, those generated among them, how many of them its cache holds, and in
    which row.
    """

    r: str
    salt: str
    tokens: list[int]
    prompt: int
    generate: int
    logprobs: list[float | None] = field(default_factory=list)
    cache: Any = None
    held: int = 0
    row: int = 0
    restored: int = 0
    why: str = ""

    def take(self, logprobs: torch.Tensor) -> bool:
        """Choose the likeliest token; return whether it is the last."""
        token = int(logprobs.argmax())
        self.tokens.append(token)
        self.logprobs.append(float(logprobs[token]))
        return len(self.tokens) - self.prompt == self.generate

    def answer(self, ended: Ended) -> Answer:
        """Return what it has generated."""
        return Answer(
            r=self.r,
            tokens=self.tokens[self.prompt :],
            logprobs=self.logprobs,
            restored=self.restored,
            why=self.why,
            ended=ended,
        )


@dataclass(frozen=True)
class Ways:
    """How a server uses the library's caches.

    `interval`: a prompt is kept at every so many tokens, and at its end. `chunk` tokens are
    computed in a step. `records`: the library is asked to keep what windows and convolutions lose.
    `singly`: behind what was there before, one token is given at a time, and no more. `room`:
    caches are static and have room for so many tokens. `rows`: how a request's row is chosen.
    """

    interval: int
    chunk: int
    records: bool = False
    singly: bool = False
    room: int = 0
    rows: How = "one"


class Server:
    """Answers requests. `store` None: nothing is cached. `ended` are the answers that were not
    collected yet.
    """

    def __init__(self, model: Model, store: PrefixStore | None, ways: Ways) -> None:
        self.model = model
        self.store = store
        self.ways = ways
        self.rows = Rows(ways.rows, model.vocabulary)
        self.idle: list[Any] = []
        """Static caches that nobody uses."""
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.ended: list[Event] = []

    def submit(self, op: Submit) -> None:
        """Let a request wait for a slot; one that a static cache has no room for is refused."""
        request = Request(op.r, op.salt, list(op.tokens), len(op.tokens), op.generate)
        if self.ways.room and request.prompt + request.generate > self.ways.room:
            self.ended.append(request.answer("refused"))
        else:
            self.waiting.append(request)

    def cancel(self, r: str) -> None:
        """Take a request out, wherever it is."""
        for queue in (self.running, self.waiting):
            for request in [one for one in queue if one.r == r]:
                queue.remove(request)
                self.let_go(request)
                self.ended.append(request.answer("cancelled"))

    def has(self, r: str) -> bool:
        """Whether a request waits or runs."""
        return any(request.r == r for request in (*self.running, *self.waiting))

    def step(self) -> None:
        """Give every request that runs a token, or a chunk of its prompt, so many tokens in all."""
        while self.waiting and len(self.running) < SLOTS:
            self.running.append(self.waiting.pop(0))
            if self.store is not None:
                self.admit(self.running[-1], self.store)
        if self.store is None:
            self._compute()
        else:
            self._continue(self.store)

    def admit(self, request: Request, store: PrefixStore) -> None:
        """Give a request a cache: what there is of its prompt, or an empty one."""
        request.restored, request.cache = store.find(request.salt, request.tokens)
        request.held = request.restored
        if not request.restored and store.had_no_room(request.salt, request.tokens):
            request.why = EVICTED
        if request.cache is None:
            request.cache = self.empty()
        elif self.ways.rows != "one":
            self.rows.spread(request.cache)

    def empty(self) -> Any:
        """Return a cache without tokens: a static one that a request has given back, or a new
        one.
        """
        if self.idle:
            return self.cleared(self.idle.pop())
        cache = self.model.empty(self.ways.room)
        if self.ways.records:
            cache.activate_past_recording()
        return cache

    def cleared(self, cache: Any) -> Any:
        """Return a cache without what it holds."""
        with native(), torch.inference_mode():
            cache.reset()
        return cache

    def let_go(self, request: Request) -> None:
        """Take a request's cache back: a static one is used again, one for each slot at most."""
        if self.ways.room and request.cache is not None and len(self.idle) < SLOTS:
            self.idle.append(request.cache)
        request.cache = None

    def keep(self, store: PrefixStore, request: Request, tokens: int) -> None:
        """Keep a request's row of its cache, which holds so many tokens."""
        cache = request.cache
        if self.ways.rows != "one":
            cache = store.copied(cache)
            self.rows.alone(cache, request.row)
        store.keep(request.salt, request.tokens[:tokens], cache)

    def _compute(self) -> None:
        if running := list(self.running):
            rows = self.model.computed([request.tokens for request in running])
            for request, logprobs in zip(running, rows, strict=True):
                self._sample(request, logprobs)

    def _continue(self, store: PrefixStore) -> None:
        left = self.ways.chunk
        for request in list(self.running):
            while left and request.held < len(request.tokens):
                stop = self._stop(request, left)
                left -= stop - request.held
                logprobs = self._advance(request, stop)
                if stop < request.prompt:
                    if not stop % self.ways.interval:
                        self.keep(store, request, stop)
                    continue
                if stop == request.prompt:
                    self.keep(store, request, stop)
                if self._sample(request, logprobs):
                    self.keep(store, request, request.held)
                    self.let_go(request)
                break

    def _stop(self, request: Request, left: int) -> int:
        """Return where the next chunk of a request ends: at the next prefix that is kept, at the
        latest.
        """
        kept = (request.held // self.ways.interval + 1) * self.ways.interval
        return min(request.held + left, kept, len(request.tokens))

    def _advance(self, request: Request, stop: int) -> torch.Tensor:
        """Compute tokens of a request up to there; return the logprobs of what follows."""
        step = 1 if self.ways.singly and request.held else stop - request.held
        for at in range(request.held, stop, step):
            logprobs = self._computed(request, request.tokens[at : min(at + step, stop)], at)
        request.held = stop
        return logprobs

    def _computed(self, request: Request, tokens: list[int], at: int) -> torch.Tensor:
        """Compute tokens of a request in its row; then choose the rows anew."""
        if self.ways.rows == "one":
            return self.model.resumed(request.cache, tokens, at)
        texts = self.rows.texts(tokens, request.row)
        logprobs = self.model.together(request.cache, texts, at)[request.row]
        request.row = self.rows.turned(request.cache, request.row)
        return logprobs

    def _sample(self, request: Request, logprobs: torch.Tensor) -> bool:
        """Let a request have its next token; return whether it has ended."""
        over = request.take(logprobs)
        if over:
            self.running.remove(request)
            self.ended.append(request.answer("length"))
        return over
