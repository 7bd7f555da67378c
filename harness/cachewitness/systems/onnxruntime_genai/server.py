"""Answers requests from kept generators, as a program with a few conversations would.

A request goes on from the generator that has most of its prompt: that is rewound to what both
share, and the rest is appended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachewitness.core.events import Event
from cachewitness.core.trace_format import Submit
from cachewitness.engines.answering import Generating
from cachewitness.systems.onnxruntime_genai.conversation import Conversation
from cachewitness.systems.onnxruntime_genai.settings import MAX_LENGTH, SLOTS, Ways


@dataclass(eq=False)
class Request(Generating):
    """A request: its prompt, and how many tokens of it its conversation holds."""

    salt: str
    prompt: list[int]
    generate: int
    conversation: Conversation | None = None
    held: int = 0


class Server:
    """Answers requests. `kept` are the conversations that nobody uses, the one that was used last
    at the end; without `caching` there are none.
    """

    def __init__(self, model: Any, ways: Ways, *, caching: bool) -> None:
        self.model = model
        self.ways = ways
        self.caching = caching
        self.kept: list[Conversation] = []
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.ended: list[Event] = []

    def submit(self, op: Submit) -> None:
        """Let a request wait for a conversation; one that no generator has room for is refused."""
        request = Request(op.salt, list(op.tokens), op.generate, r=op.r)
        if len(request.prompt) + request.generate > MAX_LENGTH:
            self.ended.append(request.answer("refused"))
        else:
            self.waiting.append(request)

    def cancel(self, r: str) -> None:
        """Take a request out, wherever it is."""
        for queue in (self.running, self.waiting):
            for request in [one for one in queue if one.r == r]:
                queue.remove(request)
                self.keep(request)
                self.ended.append(request.answer("cancelled"))

    def has(self, r: str) -> bool:
        """Whether a request waits or runs."""
        return any(request.r == r for request in (*self.running, *self.waiting))

    def step(self) -> None:
        """Give every request that runs a token, or a chunk of its prompt, so many tokens in all."""
        while self.waiting and len(self.running) < SLOTS:
            request = self.waiting.pop(0)
            self.admit(request)
            self.running.append(request)
        left = self.ways.chunk
        for request in list(self.running):
            left -= self._advance(request, left)

    def admit(self, request: Request) -> None:
        """Give a request the conversation that has most of its prompt, rewound to what both share,
        or one that has nothing.
        """
        reached = {
            talk: talk.reach(request.prompt) for talk in self.kept if talk.identity == request.salt
        }
        talk = max(reached, key=lambda one: reached[one], default=None)
        if talk is None or not reached[talk]:
            talk = self._empty(request.salt)
        else:
            self.kept.remove(talk)
            talk.rewind(reached[talk])
        request.conversation = talk
        request.restored = request.held = talk.length()
        if self._is_kept(request):
            talk.snapshot()

    def _empty(self, salt: str) -> Conversation:
        """Return a conversation without tokens: where there is no room for a new one, the one that
        was used longest ago, rewound to its beginning.
        """
        if len(self.kept) + len(self.running) >= SLOTS:
            oldest = self.kept.pop(0)
            if self.ways.rewinds != "never":
                oldest.rewind(0)
                oldest.identity = salt
                return oldest
        return self.opened(salt)

    def opened(self, salt: str) -> Conversation:
        """Return a new conversation."""
        return Conversation(self.model, self.ways.rewinds, salt, shared=self.ways.shared)

    def keep(self, request: Request) -> None:
        """Keep the conversation of a request that is over, if it holds anything."""
        talk, request.conversation = request.conversation, None
        if not self.caching or talk is None or not talk.length():
            return
        if self.ways.computed and request.tokens:
            talk.logits()
        self.kept.append(talk)

    def _advance(self, request: Request, left: int) -> int:
        """Compute what a request may have of a step; return how many tokens that are."""
        talk = request.conversation
        assert talk is not None
        if request.held == len(request.prompt):
            self._generate(request, talk)
            return 1
        computed = 0
        while computed < left and request.held < len(request.prompt):
            stop = min(self._stop(request), request.held + left - computed)
            talk.append(request.prompt[request.held : stop])
            computed += stop - request.held
            request.held = stop
            if self._is_kept(request):
                talk.snapshot()
        if request.held == len(request.prompt):
            self._generate(request, talk)
        return computed

    def _generate(self, request: Request, talk: Conversation) -> None:
        """Let a request have its next token."""
        token, logprob = talk.choose()
        request.tokens.append(token)
        request.logprobs.append(logprob)
        if len(request.tokens) == request.generate:
            self.running.remove(request)
            self.keep(request)
            self.ended.append(request.answer("length"))

    def _snapshot_at(self, request: Request) -> int:
        """Return behind how many tokens of a prompt its snapshot is: not in front of what it goes
        on from.
        """
        interval = self.ways.interval
        return max((len(request.prompt) - 1) // interval * interval, request.restored)

    def _stop(self, request: Request) -> int:
        """Return where the next tokens to be appended end."""
        at = self._snapshot_at(request)
        snapshot = self.ways.rewinds == "snapshot" and request.held < at
        return at if snapshot else len(request.prompt)

    def _is_kept(self, request: Request) -> bool:
        """Whether a snapshot is made where a request is."""
        there = 0 < request.held == self._snapshot_at(request)
        return there and self.ways.rewinds == "snapshot"
