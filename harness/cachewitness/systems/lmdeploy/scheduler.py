"""Drives lmdeploy's scheduler as its engine loop does: a forward is sent while the one before is
still computing.

The calls and their order are those of lmdeploy 0.18.0's `EngineLoop.main_loop`:

* `InputsMakerAsync.send_next_inputs` decides between prefill, a chunk of a long prompt and
  decoding, has the `Scheduler` find room, and makes the inputs of a forward: its requests, and what
  is copied before it (checkpoints that are restored) and behind it (those that are saved);
* once it is sent, `update_running_seqs` and `finish_forward_dispatch`: a checkpoint can be hit from
  then on;
* the next forward is made (`prefetch_next_inputs`) before the tokens of this one are known;
* its tokens are appended (`ARSequenceStrategy.update_running`), but for those who have lost their
  place since, which compute theirs again; `preempt_invalid_decode_seqs` puts them back into the
  queue.

A preempted request keeps its blocks until somebody needs them, and is reported as preempted when
it loses them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from cachewitness.core.events import Acquire, Event, Move, Release, UnpublishReason
from cachewitness.core.trace_format import Step, Submit
from cachewitness.engines.adapter import Adapter, Asked, Refused, Scheduled
from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
from cachewitness.engines.driver import Client
from cachewitness.engines.pinned_package import PinnedPackage
from cachewitness.systems.lmdeploy.build import Built
from cachewitness.systems.lmdeploy.observed import ATTENTION, RECURRENT, Shown


class Forward(msgspec.Struct):
    """A forward that was sent: whom it runs, and whether its tokens were not known yet when the
    next one was made.
    """

    running: list[Any]
    inputs: dict[str, Any]
    dispatched: bool = False


class LmdeployScheduler(Adapter):
    """lmdeploy's scheduler and the maker of its inputs, under the harness's worker."""

    samples = True
    depth = 1

    def __init__(self, source: PinnedPackage, built: Built) -> None:
        self.source = source
        self.scheduler = built.scheduler
        self.maker = built.maker
        self.asked = built.asked
        self.shown = Shown(built)
        self.max_model_len = built.asked.longest
        self.holds = built.asked.longest
        self._names: dict[int, str] = {}
        self._sessions = 0
        self._sent: deque[Forward | None] = deque()
        self._computed: dict[str, int] = {}
        """How many tokens of each request the forwards have that were sent."""
        self._placed: set[str] = set()
        self._pins: dict[str, list[tuple[int, int]]] = {}
        self._overhear(built)

    # --- what it shows ----------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the pages that a request holds."""
        return self.shown.tables(r)

    def keys(self) -> dict[KeyId, Claim]:
        """Return every key that can be hit now."""
        return self.shown.keys()

    def counts(self) -> dict[int, Count]:
        """Return the books of every pool."""
        return dict(self.shown.counts())

    def references(self, pool: int, page: int) -> int | None:
        """Return how many hold a block beside the trie; None for states, which are not counted."""
        return self.shown.references(pool, page)

    def _settle(self, *, served: str = "", reason: UnpublishReason = "evict") -> None:
        self.diff.settle(
            list(self.shown.sequences), served=served, reason=reason, further=self._pinned
        )

    def _pinned(self) -> list[Event]:
        """Return which checkpoints a forward began to need, or needs no more."""
        before = self._pins
        self._pins = now = self.shown.pinned()
        step = self.diff.step
        gone = [(name, place) for name, place in _places(before) if place not in now.get(name, [])]
        come = [(name, place) for name, place in _places(now) if place not in before.get(name, [])]
        events: list[Event] = [
            Release(step=step, pool=group, group=group, pages=[page], holder=name)
            for name, (group, page) in gone
        ]
        return events + [
            Acquire(step=step, pool=group, group=group, pages=[page], holder=name)
            for name, (group, page) in come
        ]

    # --- what happens inside of a call ------------------------------------------------------------

    def _overhear(self, built: Built) -> None:
        """Look at the cache too inside of lmdeploy's calls, where a request is given its place or
        loses it, and where keys begin.
        """
        scheduler = built.scheduler
        _follow(scheduler.block_manager, "allocate", after=self._allocated)
        _follow(scheduler.block_trie, "allocate", after=self._keyed)
        _follow(scheduler.state_checkpoints, "publish_save", after=self._published)
        _follow(
            scheduler.sequence_lifecycle,
            "release_paging_resources",
            before=self._losing,
            after=lambda seq: self._settle(),
        )

    def _allocated(self, seq: Any) -> None:
        """Blocks were taken: a request that waited has its place now."""
        r = self._names[seq.seq_id]
        if r not in self._placed:
            self._admitted(r, seq)
        self._settle()

    def _keyed(self, seq: Any) -> None:
        self._settle(served=self._names[seq.seq_id])

    def _published(self, seq: Any) -> None:
        if r := self._names.get(seq.seq_id):
            self._settle(served=r)

    def _admitted(self, r: str, seq: Any) -> None:
        """Report what a look-up found: blocks of the trie, and where the state and the beginning
        of a block are copied from.
        """
        self._placed.add(r)
        length = int(seq.num_history_ids)
        pages = [self.tables(r)[0][: length // self.asked.block_size]]
        restore = seq.prefix_cache.restore
        if restore.is_selected:
            pages.append([])
            for group, page in reversed(self.shown.places(restore.node)):
                pages[group].append(page)
        self.diff.hit(r, length, pages)

    def _losing(self, seq: Any) -> None:
        r = self._names.get(seq.seq_id, "")
        if r in self._placed:
            self._placed.discard(r)
            self.engine.preempted(r)

    # --- life of a request ------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in, in a session of its own; what leaves no room to generate is
        refused.
        """
        if not 0 < len(tokens) < self.max_model_len:
            raise Refused(
                f"a prompt of {len(tokens)} tokens; it must have at least 1 and fewer than"
                f" {self.max_model_len}"
            )
        self._sessions += 1
        session = self.scheduler.add_session(self._sessions)
        sampling = self.source.part("messages", "SamplingParam")(max_new_tokens=self.max_model_len)
        seq = session.add_sequence(
            tokens, sampling_param=sampling, adapter_name=submit.adapter or None
        )
        self._names[seq.seq_id] = submit.r
        self.shown.sequences[submit.r] = seq

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Never called: what was sampled is taken note of when it is."""
        raise AssertionError(r)

    def end(self, r: str, *, finished: bool) -> None:
        """End the session of a request, as lmdeploy's server does when an answer is over or its
        client goes away.
        """
        seq = self.shown.sequences[r]
        self._placed.discard(r)
        self.scheduler.end_session(seq.session_id)
        self._settle()
        del self.shown.sequences[r]
        del self._names[seq.seq_id]
        self._computed.pop(r, None)

    def running(self) -> list[str]:
        """Return the requests that hold blocks."""
        return [r for r, seq in self.shown.sequences.items() if seq.num_blocks]

    def preempt(self, r: str) -> None:
        """Never called: nobody can ask lmdeploy to preempt a request."""
        raise AssertionError(r)

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Have lmdeploy make the next forward, as it does while the last one computes. It has its
        own limits, whatever the trace's budget.
        """
        if self._sent and self._sent[-1] is not None:
            self._dispatch(self._sent[-1])
        inputs, running = _run(self.maker.send_next_inputs())
        self._settle()
        if inputs is None:
            self._sent.append(None)
            return Scheduled()
        forward = Forward(running, inputs)
        self._sent.append(forward)
        scheduled = Scheduled(chunks=dict(self._chunks(forward)))
        self._computed.update({r: stop for r, (_, stop) in scheduled.chunks.items()})
        self._copy(inputs["cache_inputs"], scheduled)
        return scheduled

    def _chunks(self, forward: Forward) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield which tokens a forward computes of each request."""
        inputs = forward.inputs["inputs"]
        for index, seq in enumerate(forward.running):
            r = self._names[seq.seq_id]
            if inputs is None:
                start = self._computed[r]
                yield r, (start, start + 1)
            else:
                start = int(inputs.history_lengths[index])
                yield r, (start, start + int(inputs.seq_length[index]))

    def _copy(self, plan: Any, scheduled: Scheduled) -> None:
        """Put what a forward copies around it into its step: checkpoints restored before it,
        checkpoints saved behind it.
        """
        if plan is None:
            return
        scheduled.copies = [
            *_moves(plan.kv_restore_plan, ATTENTION),
            *_moves(plan.state_restore_plan, RECURRENT),
        ]
        scheduled.stores = [
            *_moves(plan.kv_save_plan, ATTENTION),
            *_moves(plan.state_save_plan, RECURRENT),
        ]

    def _dispatch(self, forward: Forward) -> None:
        """Take note that a forward was sent: the next one may be made."""
        if forward.dispatched:
            return
        forward.dispatched = True
        plan = forward.inputs["cache_inputs"]
        self.scheduler.activate_seqs(forward.running)
        self.maker.update_running_seqs(forward.running, forward.inputs["inputs"])
        self.scheduler.state_checkpoints.finish_forward_dispatch(
            forward.running, has_save_plan=plan is not None and plan.state_save_plan is not None
        )
        self._settle()

    def complete(self, scheduled: Scheduled) -> None:
        """Append what a forward generated, and let those go that are as long as they may be."""
        forward = self._sent.popleft()
        if forward is None:
            return
        self._dispatch(forward)
        self.scheduler.state_checkpoints.unpin_saves(forward.running)
        self._settle()
        inputs = forward.inputs["inputs"]
        if inputs is None or not inputs.is_chunk or inputs.is_last_chunk:
            for seq in forward.running:
                if seq.status.name == "RUNNING":
                    self._sample(self._names[seq.seq_id], seq, scheduled.step, inputs)
        self.maker.preempt_invalid_decode_seqs()
        self._settle()

    def _sample(self, r: str, seq: Any, step: int, inputs: Any) -> None:
        mode = self.source.part("messages", "UpdateTokenMode")
        client = Client(r, seq.all_ids.tolist())
        client.num_prompt_tokens = int(seq.input_end_pos)
        tokens = self.engine.sampler.sample(client, [])
        self.engine.generated(r, tokens, step)
        seq.update_token_ids(tokens, mode=mode.DECODE if inputs is None else mode.PREFILL)
        if seq.num_all_ids >= self.max_model_len:
            seq.finish()
            self.engine.over(r, step, finished=True)
            self.end(r, finished=True)
            self.diff.forget(r)


def _follow(
    owner: Any,
    name: str,
    *,
    before: Callable[[Any], None] = lambda seq: None,
    after: Callable[[Any], None] = lambda seq: None,
) -> None:
    """Have a method of one object tell of the request that it is called with."""
    method = getattr(owner, name)

    def followed(seq: Any, *args: Any, **kwargs: Any) -> Any:
        before(seq)
        result = method(seq, *args, **kwargs)
        after(seq)
        return result

    setattr(owner, name, followed)


def _places(pins: dict[str, list[tuple[int, int]]]) -> Iterable[tuple[str, tuple[int, int]]]:
    return ((name, place) for name, places in pins.items() for place in places)


def _moves(plan: Any, group: int) -> list[Move]:
    """Return the copies of a plan: sources and targets, in rows of a tensor or in tuples."""
    if plan is None:
        return []
    sources, targets = plan if isinstance(plan, tuple) else plan.tolist()
    return [
        Move(int(src), int(dst), group, group) for src, dst in zip(sources, targets, strict=True)
    ]


def _run(coroutine: Any) -> Any:
    """Run a coroutine that waits for nothing, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a forward was waited for")
