"""The bare policy: the reference's cache manager in a plain loop, as anybody would drive it who
does not want a verdict.

It does what a scheduler must (look up, cut the chunk, allocate, drain the pages to zero, sample,
free) and nothing else: no event, no ledger, no worker.
"""

from __future__ import annotations

import time

from cachewitness.core.trace_format import Finish, Op, Step, Submit, TraceHeader, Vocabulary
from cachewitness.systems.vllm.reference.engine import configure
from cachewitness_reference.vllm.align_split import split_for
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request, RequestStatus


class Bare:
    """Carries out submits, steps and finishes on a `KVCacheManager`."""

    def __init__(self, header: TraceHeader) -> None:
        self.config = configure(header)
        self.manager = KVCacheManager(self.config)
        self.requests: dict[str, Request] = {}
        self._vocabulary = Vocabulary()

    def run(self, ops: list[Op]) -> float:
        """Carry out operations and return the CPU seconds."""
        begun = time.process_time()
        for op in ops:
            if isinstance(op, Step):
                self._step(op)
            elif isinstance(op, Submit):
                tokens = self._vocabulary.tokens(op.prompt)
                self.requests[op.r] = Request(op.r, tokens, self.config.hash_block_size)
            else:
                assert isinstance(op, Finish)
                self.manager.free(self.requests.pop(op.r))
        return time.process_time() - begun

    def _step(self, op: Step) -> None:
        manager = self.manager
        manager.new_step_starts()
        ran = [
            (r, count) for r, asked in op.run if (count := self._schedule(self.requests[r], asked))
        ]
        _, retained = manager.take_kv_cache_block_copies()
        manager.take_new_block_ids()
        if retained:
            manager.block_pool.free_blocks(retained)
        for r, count in ran:
            request = self.requests[r]
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:
                position = request.num_tokens - request.num_prompt_tokens
                request.append_output_token_ids(self._vocabulary.token(f"@{r}", position))

    def _schedule(self, request: Request, asked: int) -> int:
        """Give the request pages; return how many tokens it computes, 0 if there was no room."""
        manager = self.manager
        config = self.config
        waiting = request.status is not RequestStatus.RUNNING
        found, hit = None, 0
        if waiting:
            found, hit, request.shared_prefix_boundary = manager.get_computed_blocks(request)
        count = min(asked, request.num_tokens - request.num_computed_tokens - hit)
        count = split_for(config, request, count, hit, config.options.max_num_batched_tokens)
        if not count:
            return 0
        given = manager.allocate_slots(request, count, hit, found, full_sequence_must_fit=waiting)
        if given is None:
            return 0
        if waiting:
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = hit
        return count
