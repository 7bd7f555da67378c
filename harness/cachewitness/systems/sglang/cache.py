"""Drives SGLang's cache as its scheduler does: match, lock, allocate, publish, release, retract,
flush.

A trace says who computes how many tokens in a step. The calls and their order are those of SGLang
0.5.23:

* admission: `Req.init_next_round_input` matches the prompt and may take a slot for the state; the
  matched node is locked, and the request does not join unless what is free or can be evicted
  suffices (`PrefillAdder`, `_get_new_batch_prefill_raw`);
* a chunk: `alloc_for_extend`, and states copied or cleared at its begin
  (`_collect_deferred_mamba_cow_and_clear`); when it has run, `checkpoint_kv_cache` puts it into the
  tree;
* a generated token: `alloc_for_decode`, which also gives back what left the window;
* the end: `release_kv_cache`, into the tree if the prompt was computed; retraction: `release_req`,
  not into the tree;
* a reset: `Scheduler.flush_cache`, refused unless nobody runs or waits.

The state that a chunk leaves is forked for the tree after the chunk has run, which is a copy
between two steps. It is told as a step of its own, in which nobody runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cachewitness.core.events import (
    Acquire,
    Event,
    Move,
    Release,
    StepBegin,
    StepEnd,
    UnpublishReason,
)
from cachewitness.core.trace_format import Step, Submit
from cachewitness.engines.adapter import Adapter, Asked, Refused, Scheduled
from cachewitness.engines.cache_state import Count, KeysByEntry, Tables
from cachewitness.engines.driver import Client
from cachewitness.engines.pinned_package import PinnedPackage
from cachewitness.systems.sglang.batch import batch_of
from cachewitness.systems.sglang.build import Built
from cachewitness.systems.sglang.observed import RECURRENT, Shown
from cachewitness.systems.sglang.room import Room

SALTED = ("cache_salt", "extra_key")
"""The fields of SGLang's requests that keep prefixes apart; a trace's salt is in one of them."""


class SglangCache(Adapter):
    """SGLang's radix cache under the harness's scheduling."""

    samples = True

    def __init__(
        self, source: PinnedPackage, built: Built, groups: dict[str, int], salted: str = SALTED[0]
    ) -> None:
        self.source = source
        self._salted = salted
        self.built = built
        self.shown = Shown(built, groups)
        self._groups = groups
        self.max_model_len = built.asked.max_model_len
        self._requests = self.shown.requests
        self._pins: dict[str, int] = {}
        self._paused, self._books = False, True
        self._room = Room(built, self.shown, groups)

    # --- what it shows ----------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the pages that a request holds."""
        return self.shown.tables(r)

    def keys(self) -> KeysByEntry:
        """Return every key that can be hit now."""
        return self.shown.keys()

    def counts(self) -> dict[int, Count]:
        """Return the books of every pool; in the middle of a call nothing adds up."""
        return dict(self.shown.counts()) if self._books else {}

    def references(self, pool: int, page: int) -> int | None:
        """Return None: SGLang does not count the holders of a page."""
        return self.shown.references(pool, page)

    def _settle(
        self, holders: Iterable[str] = (), *, served: str = "", reason: UnpublishReason = "evict"
    ) -> None:
        self.diff.settle(holders, served=served, reason=reason, further=self._pinned)

    def _publish(self, req: Any) -> None:
        """Tell which keys began, before it is told which pages the request does not hold any
        more.
        """
        self._books = False
        self._settle(served=req.rid)
        self._books = True

    def _pinned(self) -> list[Event]:
        """Return which states of the tree were locked or unlocked in the call that has just
        returned.
        """
        if RECURRENT not in self._groups:
            return []
        group = self._groups[RECURRENT]
        step = self.diff.step
        before = self._pins
        self._pins = now = self.shown.pinned()
        gone = [(name, slot) for name, slot in before.items() if now.get(name) != slot]
        come = [(name, slot) for name, slot in now.items() if before.get(name) != slot]
        events: list[Event] = [
            Release(step=step, pool=group, group=group, pages=[slot], holder=name)
            for name, slot in gone
        ]
        return events + [
            Acquire(step=step, pool=group, group=group, pages=[slot], holder=name)
            for name, slot in come
        ]

    # --- life of a request ------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in; SGLang's front end refuses what is longer than the model's context."""
        if not 0 < len(tokens) < self.max_model_len:
            raise Refused(
                f"a prompt of {len(tokens)} tokens; it must have at least 1 and fewer than"
                f" {self.max_model_len}"
            )
        make = self.source.part("managers.schedule_batch", "Req")
        self._requests[submit.r] = make(
            submit.r,
            "",
            array("q", tokens),
            None,
            lora_id=submit.adapter or None,
            **{self._salted: submit.salt or None},
        )

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Never called: what was sampled is taken note of when it is."""
        raise AssertionError(r)

    def end(self, r: str, *, finished: bool) -> None:
        """Release what a request holds; SGLang keeps it in the tree if the prompt was computed."""
        req = self._requests[r]
        reason = "FINISH_LENGTH" if finished else "FINISH_ABORT"
        made = self.source.part("managers.schedule_batch", reason)
        req.finished_reason = made(len(req.output_ids)) if finished else made()
        if req.kv.holds_kv:
            computed = len(req.output_ids) > 0 and req.kv.kv_committed_len >= len(
                req.origin_input_ids
            )
            with self._between(req):
                self.source.part("mem_cache.common", "release_kv_cache")(
                    req, self.built.tree, checkpoint=computed
                )
        del self._requests[r]
        self._settle([r])

    @contextmanager
    def _between(self, req: Any) -> Iterator[None]:
        """Look at the cache too when a release has put what it keeps into the tree and has given
        nothing back yet.
        """
        tree = self.built.tree

        def looked_at(*args: Any, **kwargs: Any) -> Any:
            self._publish(req)
            return type(tree).free_kv_row(tree, *args, **kwargs)

        tree.free_kv_row = looked_at
        try:
            yield
        finally:
            del tree.free_kv_row

    def preempt(self, r: str) -> None:
        """Retract a running request; SGLang evicts at once for those who go on."""
        others = sum(req.kv.holds_kv for req in self._requests.values()) - 1
        self.source.part("managers.schedule_batch", "release_req")(
            req=self._requests[r],
            remaing_req_count=others,
            req_to_token_pool=self.built.requests,
            token_to_kv_pool_allocator=self.built.allocator,
            tree_cache=self.built.tree,
            hisparse_coordinator=None,
        )
        self._settle([r])

    def running(self) -> list[str]:
        """Return the requests that hold pages."""
        return [r for r, req in self._requests.items() if req.kv.holds_kv]

    # --- the whole cache --------------------------------------------------------------------------

    def reset(self, tier: str, *, running: bool) -> Iterable[tuple[str, bool]]:
        """Flush; with `running` the engine is paused first, its requests retracted, and nobody
        is waited for.
        """
        self._paused = running
        yield from super().reset(tier, running=running)
        self._paused = False

    def renew(self) -> bool:
        """Pause, retract everybody and flush, as SGLang does before new weights are used."""
        self._paused = True
        done = super().renew()
        self._paused = False
        return done

    def forget(self, reason: UnpublishReason) -> bool:
        """Flush the cache; refused while somebody runs, or waits and the engine is not paused."""
        if self.running() or (self._requests and not self._paused):
            return False
        self.built.tree.reset()
        self.built.requests.clear()
        self.built.allocator.clear()
        self._settle(reason=reason)
        return True

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Give slots to everybody who is asked to compute, as far as there are any."""
        scheduled = Scheduled()
        self._room.extending = set()
        for r, tokens in asked or ():
            req = self._requests[r]
            chunk = (
                self._decode(req) if self._decodes(req) else self._extend(req, tokens, scheduled)
            )
            if chunk is not None:
                scheduled.chunks[r] = chunk
        return scheduled

    def _decodes(self, req: Any) -> bool:
        return bool(
            req.kv.holds_kv and req.output_ids and req.kv.kv_committed_len == req.seqlen - 1
        )

    def _decode(self, req: Any) -> tuple[int, int] | None:
        if not self._room.fits_next(req):
            return None
        start = req.kv.kv_committed_len
        batch = batch_of(self.source, self.built, req, start, decoding=True)
        req.decode_batch_idx += 1
        self.source.part("mem_cache.allocation", "alloc_for_decode")(batch, token_per_req=1)
        self._settle([req.rid])
        return start, start + 1

    def _extend(self, req: Any, tokens: int, scheduled: Scheduled) -> tuple[int, int] | None:
        tree = self.built.tree
        joins = not req.kv.holds_kv
        if joins:
            if self._room.states_left() < 2:
                return None
            req.init_next_round_input(tree)
        else:
            req.init_next_round_input()
        start = req.prefix_len
        stop = self._cut(req, min(start + tokens, req.seqlen, self.max_model_len))
        lock = tree.lock(req.last_node) if joins else None
        if stop <= start or not self._room.fits(req, stop - start):
            if joins:
                self._turn_away(req, lock)
            return None
        if joins:
            req.lock = lock
        req.extend_end = stop
        self._room.extending.add(req.rid)
        self._allocate(req, joins)
        scheduled.copies += [
            Move(source, target, *[self._groups[RECURRENT]] * 2)
            for source, target in self._copied(req)
        ]
        if req.kv.mamba_needs_clear:
            req.kv.mamba_needs_clear = False
            scheduled.zeros.append((self._groups[RECURRENT], [int(req.kv.mamba_pool_idx)]))
        return start, stop

    def _allocate(self, req: Any, joins: bool) -> None:
        batch = batch_of(self.source, self.built, req, req.extend_end, decoding=False)
        self.source.part("mem_cache.allocation", "alloc_for_extend")(batch)
        req.extend_batch_idx += 1
        if joins:
            size = self.built.asked.page_size
            length = req.prefix_len
            tables = self.tables(req.rid)
            pages = [table[: length // size] for table in tables]
            if RECURRENT in self._groups:
                pages[self._groups[RECURRENT]] = []
            self.diff.hit(req.rid, length, pages)
        # A look-up may part a node; what the front part has then is of a prefix of this request.
        self._settle([req.rid], served=req.rid)

    def _cut(self, req: Any, stop: int) -> int:
        """Return where a chunk ends: all but the last of a request end with a page.

        Where there is a window, what a retracted request had generated is computed behind its
        prompt: in one chunk with it, SGLang would keep the window in front of the chunk's end
        alone, and nobody could resume at the prompt's.
        """
        size = self.built.asked.page_size
        start = req.prefix_len
        prompt = len(req.origin_input_ids) // size * size
        if self.built.asked.window and start < prompt < stop // size * size:
            return prompt
        return stop if stop == req.seqlen else max(stop // size * size, start)

    def _turn_away(self, req: Any, lock: Any) -> None:
        """Give back what a look-up took for a request that cannot join, as the scheduler does."""
        self.built.tree.unlock(lock)
        req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = None, False
        if req.kv.holds_mamba:
            self.built.requests.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
            req.kv.mamba_pool_idx = None
        req.prefix_len = req.kv.cache_protected_len = 0
        self._settle(served=req.rid)

    def _copied(self, req: Any) -> list[tuple[int, int]]:
        """Return the states that are copied when a request joins, and forget about them; into
        whose slot a state is copied needs no zeros.
        """
        source = req.kv.mamba_cow_src_index
        if source is None:
            return []
        req.kv.mamba_cow_src_index = None
        req.kv.mamba_needs_clear = False
        return [(int(source[0]), int(req.kv.mamba_pool_idx))]

    # --- what ran ---------------------------------------------------------------------------------

    def complete(self, scheduled: Scheduled) -> None:
        """Let those generate whose tokens are all computed, and put every chunk that ran into
        the tree.
        """
        chunks = [
            (self._requests[r], chunk)
            for r, chunk in scheduled.chunks.items()
            if r in self._requests
        ]
        extended = [
            req for req, chunk in chunks if req.extend_end == chunk[1] and req.decode_batch_idx == 0
        ]
        for req, (_, stop) in chunks:
            if stop >= req.seqlen:
                self._sample(req, scheduled.step)
        self._checkpoint([req for req in extended if req.rid in self._requests])

    def _sample(self, req: Any, step: int) -> None:
        client = Client(req.rid, [*req.origin_input_ids, *req.output_ids])
        client.num_prompt_tokens = len(req.origin_input_ids)
        tokens = self.engine.sampler.sample(client, [])
        self.engine.generated(req.rid, tokens, step)
        req.output_ids.extend(tokens)
        if req.seqlen >= self.max_model_len:
            self.engine.over(req.rid, step, finished=True)
            self.end(req.rid, finished=True)
            self.diff.forget(req.rid)

    def _checkpoint(self, extended: list[Any]) -> None:
        """Publish what chunks computed; states that are copied for the tree are copied in a step
        of their own.
        """
        forks = bool(extended) and self.built.states is not None
        if forks:
            self.diff.step += 1
        for req in extended:
            self.source.part("mem_cache.common", "checkpoint_kv_cache")(req, self.built.tree)
            self._publish(req)
            self._settle([req.rid])
        if forks:
            assert self.built.states is not None
            latest = {target: source for source, target in self.built.states.copied}
            self.built.states.copied.clear()
            pools = [self._groups[RECURRENT]] * 2
            moves = [Move(source, target, *pools) for target, source in latest.items()]
            self.engine.events.append(StepBegin(step=self.diff.step, copies=moves))
            self.engine.events.append(StepEnd(step=self.diff.step))
