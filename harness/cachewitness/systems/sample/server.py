"""The sample engine's server: admits requests, computes chunks and decodes in one batch,
preempts for want of room.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachewitness.core.events import Answer, Ended, Event, Resumed
from cachewitness.core.trace_format import Submit
from cachewitness.systems.sample.cache import Cache, Full, Name, Page
from cachewitness.systems.sample.model import Key, Model, State, added

SLOTS = 4
"""So many requests run at a time."""


@dataclass(eq=False)
class Request:
    """A request: its tokens, those generated among them, and where its computation stands.

    `keys` are its pages of keys by block, `states` the pages of the states that it wrote or resumed
    from. `why` nothing was restored, or what fitted and was `unused`, if the server tells.
    """

    r: str
    salt: str
    tokens: list[int]
    prompt: int
    generate: int
    logprobs: list[float] = field(default_factory=list)
    computed: int = 0
    restored: int = -1
    state: State = ()
    total: Key = ()
    keys: list[Page] = field(default_factory=list)
    states: list[Page] = field(default_factory=list)
    why: str = ""
    unused: str = ""

    @property
    def generated(self) -> list[int]:
        """What it has generated."""
        return self.tokens[self.prompt :]

    def answer(self, ended: Ended) -> Answer:
        """Return what it has generated."""
        return Answer(
            r=self.r,
            tokens=self.generated,
            logprobs=list(self.logprobs),
            restored=max(self.restored, 0),
            ended=ended,
            why=self.why,
            unused=self.unused,
        )


class Server:
    """Answers requests over one cache. `ended` are the answers that were not collected yet; if
    it `tells`, resumes as well. `longest` is the longest prompt that its pages hold.
    """

    def __init__(
        self,
        model: Model,
        cache: Cache,
        *,
        block: int,
        chunk: int,
        noise: float = 0.0,
        tells: bool = False,
    ) -> None:
        self.model = model
        self.cache = cache
        self.block = block
        self.chunk = chunk
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.ended: list[Event] = []
        self._noise = noise
        self.tells = tells
        pages = len(cache.free)
        if cache.enabled:  # a page for the keys of a block, and one for the state behind it
            self.longest = pages // 2 * block + pages % 2 * (block - 1)
        else:
            self.longest = pages * block

    def name(self, request: Request, what: str, length: int) -> Name:
        """Return the name of a page of a request: of what, up to which length."""
        return ("keys" if what == "keys" else "state", request.salt, tuple(request.tokens[:length]))

    def submit(self, op: Submit) -> None:
        """Let a request wait for a slot."""
        self.waiting.append(Request(op.r, op.salt, list(op.tokens), len(op.tokens), op.generate))

    def has(self, r: str) -> bool:
        """Whether a request waits or runs."""
        return any(request.r == r for request in (*self.running, *self.waiting))

    def cancel(self, r: str) -> None:
        """Take a request out, wherever it is."""
        for request in [one for one in (*self.running, *self.waiting) if one.r == r]:
            if request in self.running:
                self.running.remove(request)
                self.let_go(request)
            else:
                self.waiting.remove(request)
            self.ended.append(request.answer("cancelled"))

    def step(self) -> None:
        """Compute one batch: a token of everybody who decodes, and chunks of prompts, so many
        tokens in all.
        """
        self.admit()
        left = self.chunk
        for request in list(self.running):
            if request in self.running and left:
                left -= self._run(request, min(left, len(request.tokens) - request.computed))
        for request in list(self.running):
            if request.computed == len(request.tokens):
                self._sample(request)

    # --- who is there -----------------------------------------------------------------------------

    def admit(self) -> None:
        """Admit who waits, as long as there is a slot, and resume where the cache has the keys
        and the state.
        """
        while self.waiting and len(self.running) < SLOTS:
            request = self.waiting.pop(0)
            request.computed = 0
            request.state = self.model.empty
            request.total = self.model.empty
            self.resume(request)
            if request.computed and self.tells:
                of, taken = (request.states[0] if self.model.recurrent else request.keys[-1]).seen
                self.ended.append(Resumed(r=request.r, at=request.computed, of=of, taken=taken))
            if request.restored < 0:
                request.restored = request.computed
                if not request.computed and self.tells:
                    self._tell_why(request)
            self.running.append(request)

    def resume(self, request: Request) -> None:
        """Take what the cache has of a request's prefix, at least one token being left to
        compute.
        """
        found, best = self._kept(request)
        if best is None:
            return
        request.computed, snapshot = best
        request.keys = [self.cache.hold(page) for page in found[: request.computed // self.block]]
        request.states = [self.cache.hold(snapshot)]
        request.state = snapshot.state
        for key in (key for page in request.keys for key in page.keys):
            request.total = added(request.total, key)

    def _kept(self, request: Request) -> tuple[list[Page], tuple[int, Page] | None]:
        """Return the pages of keys that are there of a request's prefix, and the last state among
        them, with its length.
        """
        found: list[Page] = []
        best: tuple[int, Page] | None = None
        for stop in range(self.block, len(request.tokens), self.block):
            keys, state = (
                self.cache.find(self.name(request, what, stop)) for what in ("keys", "state")
            )
            if keys is None:
                break
            found.append(keys)
            if state is not None:
                best = stop, state
        return found, best

    def _tell_why(self, request: Request) -> None:
        """Say why a request begins at nothing, by what is kept, and not by what `resume` did."""
        found, best = self._kept(request)
        if best is not None:
            request.unused = f"a state behind {best[0]} tokens fits and was not used"
        elif found:
            request.why = "no state is kept in front of where its keys end"
        else:
            request.why = "nothing is kept that the prompt begins with"

    def let_go(self, request: Request) -> None:
        """Give a request's pages back."""
        self.cache.release([*request.keys, *request.states])
        request.keys = []
        request.states = []

    def preempt(self, request: Request) -> None:
        """Take a request's pages away; it computes again what it has, from what the cache still
        knows.
        """
        self.running.remove(request)
        self.let_go(request)
        self.waiting.insert(0, request)

    # --- what is computed -------------------------------------------------------------------------

    def _run(self, request: Request, tokens: int) -> int:
        """Compute so many tokens of a request; return how many were computed until there was no
        room.
        """
        done = 0
        while done < tokens and request in self.running:
            try:
                self._token(request)
                done += 1
            except Full:
                self._make_room(request)
        return done

    def _make_room(self, request: Request) -> None:
        """Preempt who came last; if nobody else is there, give the request up."""
        if len(self.running) > 1:
            self.preempt(self.running[-1])
        else:
            self.running.remove(request)
            self.let_go(request)
            self.ended.append(request.answer("refused"))

    def _token(self, request: Request) -> None:
        """Compute the next token of a request: its key, the state after it, and at the end of a
        block what is kept of both.
        """
        at = request.computed
        block = self.block
        if at // block == len(request.keys):
            request.keys.append(self.cache.take())
        if (at + 1) % block == 0 and self.cache.enabled:
            request.states.append(self.cache.take())
        token = request.tokens[at]
        key = self.model.key(token, at)
        page = request.keys[at // block]
        del page.keys[at % block :]
        page.keys.append(key)
        before, request.state = request.state, self.model.advance(request.state, token)
        request.total = added(request.total, key)
        request.computed += 1
        if request.computed % block == 0 and self.cache.enabled:
            self.keep(request, before)

    def keep(self, request: Request, before: State) -> None:
        """Publish the block that is complete, and the state behind it; `before` is the state one
        token earlier.
        """
        request.states[-1].state = request.state
        request.keys[-1].seen = request.states[-1].seen = (request.r, request.computed)
        self.cache.publish(request.keys[-1], self.name(request, "keys", request.computed))
        self.cache.publish(request.states[-1], self.name(request, "state", request.computed))

    def _sample(self, request: Request) -> None:
        noise = self._noise * (len(self.running) - 1)
        chosen = self.model.choose(request.state, request.total, request.computed, noise)
        request.tokens.append(chosen.token)
        request.logprobs.append(chosen.logprob)
        if len(request.generated) == request.generate:
            self.running.remove(request)
            self.let_go(request)
            self.ended.append(request.answer("length"))
