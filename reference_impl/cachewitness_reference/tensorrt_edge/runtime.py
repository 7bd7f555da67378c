"""A small runtime over the manager, after the shape of `LLMInferenceRuntime`.

A request gets a row of the batch. What is cached for it is restored into the row, or its states are
zeroed; reset declares the lengths of the whole batch, those of running rows among them; prefill and
decode steps commit what they computed. Rows of requests that ended are evicted before the next
step, which moves the others together.

A step is planned (`begin_step`), carried out by whoever has tensors, and committed (`end_step`);
requests come, end and lose their rows between steps. What is to be done around a step is in `Step`,
in this order: move rows and restore captures (one simultaneous permutation), compute the chunks,
save captures.

**Aligned.** A system prompt of L tokens is captured when exactly L tokens of its request are
computed, so the prefill that runs beyond stops there once, and a later request restores L tokens
and computes from token L. A request that is all system prompt has to compute its last token again
for its logits, which needs a capture of L − 1 tokens, so that one is made as well. With
`replay_last_token` everybody computes the last token of its system prompt again, as upstream's
drafting does; then every capture is of L − 1.

Our choices, where upstream's runtime handles one batch after the other: waiting requests join a
running batch where rows are free (`joining="static"`: only an empty one); a step computes any
number of tokens of each row; a preempted request waits first in line and computes again.
`survivors` is the order in which survivors are numbered (upstream: ascending).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cachewitness_reference.primitives import Position
from cachewitness_reference.tensorrt_edge.compaction import EVICTED, Moves, build_batch_mapping
from cachewitness_reference.tensorrt_edge.config import check
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from cachewitness_reference.tensorrt_edge.rows import START, BatchSlot
from cachewitness_reference.tensorrt_edge.spec import SYSTEM_PROMPTS_DEFAULT
from cachewitness_reference.tensorrt_edge.system_prompts import (
    SavedPrompt,
    Snapshot,
    SystemPromptKey,
    SystemPrompts,
)


@dataclass(frozen=True)
class RuntimeOptions:
    """The runtime's own choices; see the module. `system_prompts` is how many captures are kept."""

    system_prompts: int = SYSTEM_PROMPTS_DEFAULT
    joining: Literal["continuous", "static"] = "continuous"
    survivors: Literal["ascending", "descending"] = "ascending"
    replay_last_token: bool = False


@dataclass
class Request:
    """One sequence. The first `system_prompt` of its tokens are a system prompt; `slot` is its row,
    None while it waits.

    It resumes under `key`, if that was captured, and is captured under `captures` by position; None
    and empty without a system prompt.
    """

    request_id: str
    tokens: list[int]
    system_prompt: int = 0
    lora: str = ""
    salt: str = ""
    media: tuple[tuple[int, int, str], ...] = ()
    slot: BatchSlot | None = None
    computed: Position = START
    key: SystemPromptKey | None = None
    captures: dict[Position, SystemPromptKey] = field(default_factory=dict)

    def key_at(self, length: int) -> SystemPromptKey:
        """Return what a capture of its first `length` tokens depends on."""
        media = tuple(
            (at, min(count, length - at), content)
            for at, count, content in self.media
            if at < length
        )
        return SystemPromptKey(tuple(self.tokens[:length]), self.lora, self.salt, media)


@dataclass
class Step:
    """What a step does. `chunks` are tokens [start, stop) by request; `restores` and `saves` are
    in requests' rows.
    """

    moves: Moves = field(default_factory=lambda: Moves((), (), ()))
    joined: list[Request] = field(default_factory=list)
    restores: list[tuple[SavedPrompt, Request]] = field(default_factory=list)
    chunks: dict[str, tuple[Position, Position]] = field(default_factory=dict)
    saves: list[tuple[Request, SavedPrompt]] = field(default_factory=list)


class Runtime:
    """Runs requests over a manager's books."""

    def __init__(self, cache: HybridCachePolicy, options: RuntimeOptions | None = None) -> None:
        self.cache = cache
        self.options = options or RuntimeOptions()
        self.prompts = SystemPrompts(self.options.system_prompts)
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.batch: list[Request | None] = []
        """The active rows; None where the request has ended and the row is to be evicted."""
        self._config = cache.config

    def add(self, request: Request) -> None:
        """Let a request wait for a row. Raises CacheError if it can never run."""
        limit = self._config.kv_config.max_sequence_length
        count = len(request.tokens)
        check(
            0 < count <= limit,
            f"request {request.request_id}: {count} tokens are not in range [1, maxSequenceLength"
            f" {limit}].",
        )
        inside = 0 <= request.system_prompt <= count
        text = "The reuse length shall be larger than 0 and not exceed the input length."
        check(
            inside,
            f"request {request.request_id}: {text} (system prompt {request.system_prompt}, input"
            f" {count})",
        )
        self._name(request)
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def _name(self, request: Request) -> None:
        """Say where a request can resume and what is captured of it."""
        length = request.system_prompt - self.options.replay_last_token
        count = len(request.tokens)
        resume = min(length, count - 1)
        request.captures = {
            Position(at): request.key_at(at) for at in (resume, length) if 0 < at <= count
        }
        request.key = request.captures.get(Position(resume))

    def end(self, r: str) -> None:
        """Let a request go; its row is evicted before the next step."""
        request = self.requests.pop(r)
        # LOOKUP, ALLOCATE, COMMIT: nothing; captures of its system prompt stay.
        # RELEASE
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._leave(request)

    def preempt(self, r: str) -> None:
        """Take a running request's row; it waits first in line and computes again, what it
        generated included.
        """
        request = self.requests[r]
        # LOOKUP, ALLOCATE, COMMIT: nothing; it is looked up again when it gets a row.
        # RELEASE
        self._leave(request)
        self.waiting.insert(0, request)

    def running(self) -> list[Request]:
        """Return the requests that have a row, by row."""
        return [request for request in self.batch if request is not None]

    # --- a step -----------------------------------------------------------------------------------

    def begin_step(self, asked: Sequence[tuple[str, int]] | None = None, budget: int = 0) -> Step:
        """Plan a step: at most so many tokens of each request in `asked`, or `budget` in all (0:
        all there is), rows first.
        """
        step = Step()
        # RELEASE
        self._evict(step)
        wanted = list(asked) if asked is not None else self._within(budget)
        # LOOKUP, ALLOCATE
        self._join([self.requests[r] for r, count in wanted if count > 0], step)
        for r, count in wanted:
            request = self.requests[r]
            if request.slot is not None and count > 0:
                self._compute(request, count, step)
        assert len(self.batch) == self.cache.get_active_batch_size()
        # COMMIT: nothing; lengths and captures are committed when the step has run.
        return step

    def end_step(self, step: Step) -> None:
        """Commit what the step computed, keep what it captured, and let go of what it restored."""
        # LOOKUP, ALLOCATE: nothing; the next step does.
        # COMMIT
        increments = [0] * len(self.batch)
        for r, (start, stop) in step.chunks.items():
            request = self.requests[r]
            assert request.slot is not None and request.computed == start
            increments[request.slot] = stop - start
            request.computed = stop
        if step.chunks:
            self.cache.commit_sequence_length(increments)
        for request, saved in step.saves:
            assert request.slot is not None
            self.prompts.save(saved, self._capture(request.slot, request.computed))
        # RELEASE
        for saved, _ in step.restores:
            self.prompts.release(saved)

    def _evict(self, step: Step) -> None:
        """Compact the batch if somebody left it."""
        # RELEASE
        gone = [request is None for request in self.batch]
        if not any(gone):
            return
        old = len(gone)
        new = gone.count(False)
        mapping = build_batch_mapping(gone)
        if self.options.survivors == "descending":
            mapping = [row if row == EVICTED else new - 1 - row for row in mapping]
        step.moves = self.cache.compact_batch(mapping, old, new)
        self.cache.set_active_batch_size(new)
        before, self.batch = self.batch, [None] * new
        for request, row in zip(before, mapping, strict=True):
            if request is not None:
                request.slot = BatchSlot(row)
                self.batch[row] = request
        assert None not in self.batch

    def _within(self, budget: int) -> list[tuple[str, int]]:
        """Share a budget out: running requests by row, then those that wait, in order."""
        left = budget or sum(len(request.tokens) for request in self.requests.values())
        wanted = []
        for request in [*self.running(), *self.waiting]:
            count = min(len(request.tokens) - request.computed, left)
            wanted.append((request.request_id, count))
            left -= count
        return wanted

    def _join(self, wanted: Sequence[Request], step: Step) -> None:
        """Give rows to requests that wait, and declare the lengths of the batch."""
        free = self._config.max_batch_size - len(self.batch)
        if self.options.joining == "static" and self.batch:
            free = 0
        for request in [request for request in wanted if request.slot is None][:free]:
            # LOOKUP
            saved = self.prompts.find(request.key) if request.key is not None else None
            # ALLOCATE
            slot = request.slot = BatchSlot(len(self.batch))
            self.batch.append(request)
            self.waiting.remove(request)
            step.joined.append(request)
            self._prepare(slot, saved.snapshot if saved is not None else None)
            if saved is not None and saved.snapshot is not None:
                request.computed = saved.snapshot.position
                step.restores.append((saved, request))
        # COMMIT
        if step.joined:
            self.cache.reset_for_new_sequences([request.computed for request in self.running()])
        # RELEASE: nothing; rows of those that ended were evicted before.

    def _prepare(self, slot: BatchSlot, snapshot: Snapshot | None) -> None:
        """Make a row hold a snapshot, or nothing."""
        if snapshot is None:
            self.cache.zero_recurrent_states(slot)
        else:
            self.cache.restore_kv_cache(snapshot.kv, slot)
            self.cache.restore_recurrent_states(snapshot.recurrent, slot)
            self.cache.restore_conv_states(snapshot.conv, slot)

    def _compute(self, request: Request, count: int, step: Step) -> None:
        """Plan a chunk; it stops where the request's system prompt ends if that is to be
        captured.
        """
        start = request.computed
        limit = self._config.kv_config.max_sequence_length
        stop = min(start + count, len(request.tokens), limit)
        # LOOKUP: nothing; a request is looked up once, when it gets its row.
        # ALLOCATE
        for boundary, key in request.captures.items():
            if start < boundary <= stop and (saved := self.prompts.reserve(key)) is not None:
                step.saves.append((request, saved))
                stop = boundary
                break
        if stop > start:
            step.chunks[request.request_id] = (start, Position(stop))
        # COMMIT, RELEASE: nothing; both wait until the step has run (`end_step`).

    def _capture(self, slot: BatchSlot, length: int) -> Snapshot:
        snapshot = Snapshot(
            self.cache.capture_kv_cache(slot, length),
            self.cache.capture_recurrent_states(slot),
            self.cache.capture_conv_states(slot),
        )
        assert snapshot.position == length
        return snapshot

    def _leave(self, request: Request) -> None:
        # RELEASE
        assert request.slot is not None
        self.batch[request.slot] = None
        request.slot = None
        request.computed = START
