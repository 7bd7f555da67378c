"""Who computes how much in a step, who is admitted, and who gives way.

With `dynamic_split_fuse` the generate phase comes first: every request whose prompt was once
processed, in order of arrival. If one lacks a block, the request that came last gives up what it
has, in part if that is enough, and computes it again. Then prompts are served greedily in order of
arrival, each cut to what is left of the budget and to the slots that *both* pools have. Nobody is
preempted for a prompt. Without split-fuse ("vLLM mode") prompts come first and whole,
`max_num_seqs` counts, and requests generate only in steps without prompts.

The pools are what admits: `max_num_seqs` does not bound a split-fuse batch. A step in which nothing
fits drops every request that was not preempted in it (OUT_OF_MEMORY, reported as IGNORED). Only a
dynamic cache grows; explicit sizing never does.

Requests are restored before the step in which they are first scheduled, and again after they were
preempted in full (our choice: OpenVINO computes those again from the first token).

Source: `scheduler.hpp`, `pipeline_impl.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cachewitness_reference.openvino_genai.block_manager import BlockCopy
from cachewitness_reference.openvino_genai.config import SchedulerConfig
from cachewitness_reference.openvino_genai.orchestrator import (
    LA,
    CacheOrchestrator,
    CacheType,
    Restored,
)
from cachewitness_reference.openvino_genai.sequence import Sequence, SequenceGroup, Status
from cachewitness_reference.openvino_genai.sizing import (
    Capacity,
    growth_blocks,
    initial_tokens,
    target_blocks,
)
from cachewitness_reference.openvino_genai.spec import NEWEST, RELEASES
from cachewitness_reference.primitives import BlockId, Position


class RefusedRequest(ValueError):
    """A request that can never run; the message is one line."""


@dataclass
class SchedulerOutput:
    """What one step does. `scheduled`: tokens per sequence of each request, from where it stands.

    `zeros` are blocks of states to clear, then `copies` are made, then everybody runs. `preempted`
    lost everything; `rolled_back` stand at an earlier position; `dropped` did not fit.
    """

    scheduled: dict[str, int] = field(default_factory=dict)
    copies: list[tuple[CacheType, BlockCopy]] = field(default_factory=list)
    zeros: list[BlockId] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    num_tokens: int = 0


class Scheduler:
    """Serves requests over both caches. `capacity` as derived; `kv_block_size` in tokens;
    `hybrid`: two caches.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        capacity: Capacity,
        kv_block_size: int,
        *,
        hybrid: bool,
        version: str = NEWEST,
    ) -> None:
        config.validate()
        self.config = config
        self.capacity = capacity
        self.release = RELEASES[version]
        self.cache = CacheOrchestrator(
            capacity, kv_block_size, hybrid=hybrid, caching=config.enable_prefix_caching
        )
        self.groups: dict[str, SequenceGroup] = {}
        self._initialized = False

    def add_request(self, group: SequenceGroup) -> None:
        """Take a request in. Raises RefusedRequest if it can never be scheduled."""
        if group.prompt_length == 0:
            raise RefusedRequest("Prompt length cannot be 0")
        limit = self.config.max_num_batched_tokens
        if not self.config.dynamic_split_fuse and group.prompt_length > limit:
            raise RefusedRequest(
                f"Sequence length ({group.prompt_length}) is longer than max number of tokens in"
                f" batch ({limit})"
            )
        assert group.request_id not in self.groups
        self.groups[group.request_id] = group

    def restore_new(self, request_ids: Iterable[str] | None = None) -> dict[str, Restored]:
        """Look up requests (all, unless named) that have lost or never had their blocks; return
        what was found for each.
        """
        found = {}
        # LOOKUP
        for group in (
            self.groups.values() if request_ids is None else [self.groups[r] for r in request_ids]
        ):
            if not group.looked_up:
                found[group.request_id] = restored = self.cache.restore(group)
                group.looked_up = True
                group.num_processed = restored.processed
                group.max_content = max(group.max_content, restored.processed)
        # ALLOCATE: nothing; what was found is held, and a chunk takes its blocks when it is
        # scheduled.
        # COMMIT, RELEASE: nothing; no token is computed, and nobody gives way.
        return found

    def schedule(self, max_tokens: int = 0) -> SchedulerOutput:
        """Decide what the next step computes, within `max_tokens` as well if it is not 0."""
        # LOOKUP
        self.restore_new()
        # ALLOCATE, RELEASE
        if self.capacity.dynamic:
            self._reserve()
        output = SchedulerOutput()
        budget = self.config.max_num_batched_tokens
        budget = min(budget, max_tokens) if max_tokens else budget
        if self.config.dynamic_split_fuse:
            self._generate(output, budget)
            self._prompts(output, budget)
        else:
            self._whole_prompts(output)
            if not output.scheduled:
                self._generate(output, budget)
        self._drop_if_stuck(output)
        for group in self.groups.values():
            group.waiting = False
        # COMMIT: nothing; blocks are keyed as they are allocated.
        return output

    def schedule_expected(self, expected: Iterable[tuple[str, int]]) -> SchedulerOutput:
        """Schedule what the caller expects, each cut to what is known of it and to the room that
        there is; nobody gives way.
        """
        output, expected = SchedulerOutput(), list(expected)
        self.restore_new(request_id for request_id, _ in expected)
        if self.capacity.dynamic:
            self._reserve()
        for request_id, tokens in expected:
            group = self.groups[request_id]
            self._run(output, group, self._room(group, min(tokens, group.num_available)))
        return output

    def complete(self, output: SchedulerOutput) -> None:
        """Take note that a step has run."""
        # LOOKUP, ALLOCATE: nothing; the next step does.
        # RELEASE
        self.cache.step_done()
        # COMMIT
        for request_id, tokens in output.scheduled.items():
            if request_id in self.groups:
                self.groups[request_id].processed(tokens)

    def append(self, request_id: str, tokens: Iterable[int]) -> None:
        """Add what was sampled, a token for each sequence; only for a request of which
        everything known was processed.
        """
        group = self.groups[request_id]
        assert group.num_available == 0, "a token is sampled before the last one is processed"
        for sequence, token in zip(group.sequences, tokens, strict=True):
            sequence.append(token)

    def fork(self, request_id: str, child_id: str) -> Sequence:
        """Fork the first sequence of a request: the child has its tokens and holds its blocks."""
        group = self.groups[request_id]
        parent = group.sequences[0]
        child = parent.fork(child_id)
        self.cache.fork_sequence(parent, child)
        group.sequences.append(child)
        return child

    def finish(self, request_id: str, status: Status = Status.FINISHED) -> None:
        """Let a request go; what its blocks hold can still be restored."""
        group = self.groups.pop(request_id)
        group.status = status
        # LOOKUP, ALLOCATE, COMMIT: nothing; what is keyed of a request stays keyed.
        # RELEASE
        self.cache.free(group)

    def preempt(self, request_id: str) -> None:
        """Take everything from a request, which computes it again later."""
        group = self.groups[request_id]
        # LOOKUP, ALLOCATE, COMMIT: nothing; it is looked up again before the next step.
        # RELEASE
        self.cache.free(group)
        group.num_processed = Position(0)
        group.looked_up = False

    # --- phases -----------------------------------------------------------------------------------

    def _generate(self, output: SchedulerOutput, budget: int) -> None:
        for group in list(self.groups.values()):
            if not group.can_generate or group.waiting:
                continue
            count = len(group.sequences)
            tokens = min((budget - output.num_tokens) // count, group.num_available)
            if tokens == 0:
                continue
            while not self.cache.fits(group, tokens) and self._grow(group):
                pass
            self._make_way(output, group, tokens)
            if self.cache.fits(group, tokens):
                self._run(output, group, tokens)

    def _prompts(self, output: SchedulerOutput, budget: int) -> None:
        for group in self.groups.values():
            if group.can_generate or group.waiting:
                continue
            self._run(
                output,
                group,
                self._room(group, min(budget - output.num_tokens, group.num_available)),
            )

    def _whole_prompts(self, output: SchedulerOutput) -> None:
        running = sum(group.can_generate for group in self.groups.values())
        for group in self.groups.values():
            if group.can_generate or group.waiting:
                continue
            tokens = group.num_available
            if (
                running >= self.config.max_num_seqs
                or output.num_tokens + tokens > self.config.max_num_batched_tokens
            ):
                return
            if self._room(group, tokens) < tokens:
                return
            self._run(output, group, tokens)
            running += 1

    def _room(self, group: SequenceGroup, tokens: int) -> int:
        """Return how many of so many tokens there is room for, when a dynamic cache has grown."""
        while self._admitted(group, tokens) < tokens and self._grow(group):
            pass
        return self._admitted(group, tokens)

    def _admitted(self, group: SequenceGroup, tokens: int) -> int:
        return min(tokens, self.cache.available_slots(group.sequences[0], group.num_processed))

    def _run(self, output: SchedulerOutput, group: SequenceGroup, tokens: int) -> None:
        if tokens <= 0:
            return
        start = group.num_processed
        for sequence in group.sequences:
            output.copies += self.cache.allocate(sequence, start, start + tokens)
            if start == 0 and self.cache.la is not None:
                first = self.cache.table(LA, sequence.sequence_id)[0]
                assert first is not None
                output.zeros.append(first)
        output.scheduled[group.request_id] = tokens
        output.num_tokens += tokens * len(group.sequences)

    # --- who gives way ----------------------------------------------------------------------------

    def _make_way(self, output: SchedulerOutput, group: SequenceGroup, tokens: int) -> None:
        """Take blocks from requests that came later, the last one first, until this one fits."""
        while (
            not self.cache.fits(group, tokens) and (victim := self._last_after(group)) is not None
        ):
            self._take_from(output, victim, lambda: self.cache.fits(group, tokens))

    def _last_after(self, group: SequenceGroup) -> SequenceGroup | None:
        """Return the last request after this one that has anything in the cache."""
        for other in reversed(self.groups.values()):
            if other is group:
                return None
            if other.num_processed > 0:
                return other
        return None

    def _take_from(
        self, output: SchedulerOutput, victim: SequenceGroup, enough: Callable[[], bool]
    ) -> None:
        position = (
            self.cache.roll_back(victim, enough) if self.cache.can_roll_back() else Position(0)
        )
        if not self.config.dynamic_split_fuse and position < victim.prompt_length:
            position = Position(0)
        victim.waiting = True
        if position:
            victim.num_processed = position
            output.rolled_back.append(victim.request_id)
        else:
            self.preempt(victim.request_id)
            output.preempted.append(victim.request_id)

    def _drop_if_stuck(self, output: SchedulerOutput) -> None:
        if output.scheduled:
            return
        for request_id in [group.request_id for group in self.groups.values() if not group.waiting]:
            self.finish(request_id, Status.IGNORED)
            output.dropped.append(request_id)

    # --- dynamic growth ---------------------------------------------------------------------------

    def _reserve(self) -> None:
        """Make room for what active requests may need, when a prompt comes in: in one go, not
        while it is processed.
        """
        groups = list(self.groups.values())
        arrived = self.release.reserves_for_arrivals and not all(
            group.can_generate for group in groups
        )
        if self._initialized and not arrived:
            return
        targets = [
            (initial_tokens(g.prompt_length, g.max_new_tokens), g.num_sequences) for g in groups
        ]
        for manager in self.cache.managers.values():
            if not manager.fixed:
                manager.pool.grow(
                    max(0, target_blocks(targets, manager.block_size) - manager.pool.num_blocks)
                )
            elif not self._initialized and (
                not manager.pool.num_blocks or self.release.dynamic_adds_to_explicit
            ):
                manager.pool.grow(sum(sequences for _, sequences in targets))
        self._initialized = True

    def _grow(self, group: SequenceGroup) -> bool:
        """Grow a dynamic cache by what is missing of fixed states and by a round of tokens;
        whether it grew.
        """
        if not self.capacity.dynamic:
            return False
        for manager in self.cache.managers.values():
            if manager.fixed:
                missing = manager.missing_blocks(group.sequences, 0, 1)
                manager.pool.grow(max(0, missing - manager.pool.num_free_blocks))
            else:
                manager.pool.grow(growth_blocks(manager.block_size))
        return True
