"""An engine at manager height: the harness plays vLLM's scheduler over an observed cache manager.

A trace says who computes how many tokens in a step; this file does what vLLM's scheduler does around that. A request that
waits is looked up, its chunk is cut where a recurrent state has to be kept, and it is given pages; if there are none it
does not run in this step. Nobody is preempted unless the trace says so. A request that has computed all its tokens
samples one more, from the text that the trace scripts for it.

A withdrawn request is scheduled with the others and taken back before the step begins, as vLLM's scheduler does with a
request that it preempts in the pass that scheduled it.

Sources: vLLM 0.33.0, `v1/core/sched/scheduler.py`, `schedule`, `_preempt_request`, `reset_prefix_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from harness._util.errors import UsageError
from harness.engines.observe import ObservedManager
from harness.engines.observe_pins import POOL
from harness.history.events import (
    Aborted,
    Accept,
    Event,
    Finished,
    Group,
    Header,
    Move,
    Pool,
    Preempted,
    ResetDone,
    Retention,
    Rules,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Version,
)
from harness.trace.format import (
    Abort,
    Finish,
    GroupSpec,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    TraceHeader,
    UpdateWeights,
    Vocabulary,
)
from reference_impl.vllm.config import Options

CAPABILITIES = ["abort", "adapter", "media", "preempt", "reset", "salt", "update_weights", "withdraw"]
PRUNABLE = ("sliding", "recurrent")

NewRequest = Callable[[Submit, list[int]], Any]
Split = Callable[[Any, int, int], int]


def describe(trace: TraceHeader, engine: str, engine_version: str, rules: Rules, options: Options | None = None) -> Header:
    """Return the history header of an engine of vLLM's shape: one pool that all groups alias, page 0 the null block.

    `options` say how recurrent groups are run, in mode `align` if they are left out.
    """
    options = options or Options()
    kinds = {group.kind for group in trace.layout.groups}
    not_applicable = {}
    if "recurrent" not in kinds or not rules.caching:
        not_applicable["no-fabricated-snapshots"] = _why(rules, "no recurrent group")
    if not rules.retention.groups or not rules.caching:
        reason = _why(rules, "no group that retention prunes")
        not_applicable |= {"replay-boundary-retained": reason, "interval-sparsity": reason}
    return Header(
        engine=engine,
        height="manager",
        pools=[Pool(id=POOL, pages=trace.pages, null=[0])],
        groups=[_group(index, spec, options) for index, spec in enumerate(trace.layout.groups)],
        rules=rules,
        capabilities=CAPABILITIES,
        not_applicable=not_applicable,
        engine_version=engine_version,
        trace=trace.name,
    )


def _group(index: int, spec: GroupSpec, options: Options) -> Group:
    """Return a group as the worker sees it. In mode `none` one block holds the state of a whole request."""
    recurrent, mode = spec.kind == "recurrent", options.mamba_cache_mode
    return Group(
        id=index,
        kind=spec.kind,
        block_size=options.max_model_len if recurrent and mode == "none" else spec.block_size,
        pool=POOL,
        window=spec.window,
        chunk=spec.chunk,
        snapshots="every-block" if recurrent and mode == "all" else "chunk-end",
    )


def retention(trace: TraceHeader, interval: int | None, kinds: Collection[str] = PRUNABLE, **declared: bool) -> Retention:
    """Return what vLLM keeps of the groups of a layout.

    `interval` in tokens, `kinds` of groups that it governs, `declared` as in `Retention`.
    """
    groups = [index for index, spec in enumerate(trace.layout.groups) if spec.kind in kinds]
    return Retention(interval=interval, groups=groups, **declared)


def _why(rules: Rules, otherwise: str) -> str:
    return otherwise if rules.caching else "prefix caching is off"


class _Client:
    """A request and what the scheduler knows of it. `text` is what it samples from."""

    __slots__ = ("request", "running", "text")

    def __init__(self, request: Any, text: str) -> None:
        self.request, self.text = request, text
        self.running = False


class ManagerHeight:
    """Carries out the operations of a trace on an observed manager.

    `new_request` makes the manager's request object from a submit and its tokens. `split(request, tokens, hit)` says how
    many of the next tokens of a request may be computed in one chunk; None leaves chunks as the trace asks for them.
    `reserve_full_isl`: a waiting request is admitted only if all of its tokens would fit (vLLM's
    `scheduler_reserve_full_isl`).
    """

    def __init__(
        self,
        header: Header,
        manager: ObservedManager,
        new_request: NewRequest,
        max_model_len: int,
        split: Split | None = None,
        reserve_full_isl: bool = True,
    ) -> None:
        self.header = header
        self.manager, self.diff = manager, manager.diff
        self.new_request, self.split, self._max_model_len = new_request, split, max_model_len
        self._reserve_full_isl = reserve_full_isl
        self._running = 0
        self._vocabulary = Vocabulary()
        self._clients: dict[str, _Client] = {}
        self._ended: set[str] = set()
        self._step_number = 0

    def describe(self) -> Header:
        """Return the header that the engine was built with."""
        return self.header

    def close(self) -> None:
        """Nothing is held outside this process."""

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events.

        Raises UsageError if it names a request that was never submitted, or one that already was.
        """
        events: list[Event] = []
        self.diff.events = events
        match op:
            case Submit():
                self._submit(op)
            case Step():
                self._step(op)
            case Finish() | Abort():
                self._end(op)
            case Preempt():
                if client := self._client(op.r):
                    self._preempt(op.r, client)
            case Reset():
                if op.tier in ("", "local"):
                    self._reset(op.running)
            case UpdateWeights():
                self._update_weights(op)
        return events

    # --- life of a request --------------------------------------------------------------------------------------------

    def _submit(self, op: Submit) -> None:
        if op.r in self._clients or op.r in self._ended:
            raise UsageError(f"trace: request {op.r!r} is submitted twice; give the second one another name")
        tokens = self._vocabulary.tokens(op.prompt)
        if not 0 < len(tokens) < self._max_model_len:
            raise UsageError(
                f"trace: request {op.r!r} has a prompt of {len(tokens)} tokens; "
                f"it must have at least 1 and fewer than max_model_len ({self._max_model_len})"
            )
        client = _Client(self.new_request(op, tokens), op.stream or f"@{op.r}")
        self._clients[op.r] = client
        event = Submitted(r=op.r, tokens=tokens, salt=op.salt, adapter=op.adapter, media=op.media)
        event.step = self._step_number
        self.diff.events.append(event)

    def _end(self, op: Finish | Abort) -> None:
        client = self._client(op.r)
        if client is None:
            return
        ended = Finished if isinstance(op, Finish) else Aborted
        self.diff.events.append(ended(step=self._step_number, r=op.r))
        self.manager.free(client.request)
        self._running -= client.running
        del self._clients[op.r]
        self._ended.add(op.r)

    def _preempt(self, r: str, client: _Client) -> None:
        if not client.running:
            return
        self.diff.events.append(Preempted(step=self._step_number, r=r))
        self.manager.free(client.request)
        self._wait_again(client)

    def _preempt_all(self) -> None:
        for r, client in reversed(self._clients.items()):
            self._preempt(r, client)

    def _reset(self, running: bool) -> None:
        if running:
            self._preempt_all()
        done = self.manager.reset_prefix_cache()
        self.diff.events.append(ResetDone(step=self._step_number, ok=done))

    def _update_weights(self, op: UpdateWeights) -> None:
        """Do what vLLM asks of those who change weights: nobody runs on, and the prefix cache is reset."""
        self._preempt_all()
        done = self.manager.reset_prefix_cache("version")
        self.diff.events.append(ResetDone(step=self._step_number, ok=done))
        self.diff.events.append(Version(step=self._step_number, weights=op.version, adapter=op.adapter))

    def _client(self, r: str) -> _Client | None:
        """Return a live request, None for one that has ended."""
        client = self._clients.get(r)
        if client is None and r not in self._ended:
            raise UsageError(f"trace: request {r!r} is named before it is submitted")
        return client

    # --- a step -------------------------------------------------------------------------------------------------------

    def _step(self, op: Step) -> None:
        self._step_number += 1
        step = self.diff.step = self._step_number
        self.manager.new_step_starts()
        scheduled: dict[str, tuple[int, int]] = {}
        for r, asked in op.run:
            client = self._client(r)
            if client is not None and r not in scheduled:
                start, count = self._schedule(client, asked)
                if count > 0:
                    scheduled[r] = (start, start + count)
        withdrawn = self._withdraw(op.withdraw, scheduled)
        runs = [Run(r, start, stop, self.manager.tables(r)) for r, (start, stop) in scheduled.items()]
        copies, retained = self.manager.take_kv_cache_block_copies()
        moves = [Move(copy.src_block_id, copy.dst_block_id) for copy in copies]
        zeros = self._zeros()
        events = self.diff.events
        events.append(StepBegin(step=step, asked=op.run, runs=runs, copies=moves, zeros=[(POOL, zeros)] if zeros else []))
        events.append(StepEnd(step=step, withdrawn=withdrawn))
        if retained:
            self.manager.block_pool.free_blocks(retained)
        for run in runs:
            self._ran(run)

    def _zeros(self) -> list[int]:
        """Drain the new blocks; a configuration whose pages need no zeroing leaves them as they are."""
        new_blocks: list[int] = self.manager.take_new_block_ids()
        return new_blocks if self.manager.kv_cache_config.needs_kv_cache_zeroing else []

    def _withdraw(self, asked: list[str], scheduled: dict[str, tuple[int, int]]) -> list[str]:
        """Take requests back out of the step, and whoever has to go with them; return their names."""
        withdrawn: list[str] = []
        for r in asked:
            if r in scheduled:
                for gone in self.manager.withdraw(self._clients[r].request):
                    scheduled.pop(gone, None)
                    self._wait_again(self._clients[gone])
                    self.diff.events.append(Preempted(step=self._step_number, r=gone))
                    withdrawn.append(gone)
        return withdrawn

    def _schedule(self, client: _Client, asked: int) -> tuple[int, int]:
        """Give the request pages; return (the position where it starts, how many tokens it computes)."""
        request, manager = client.request, self.manager
        hit, found = 0, None
        if not client.running:
            answer = manager.get_computed_blocks(request)
            found, hit = answer[0], answer[1]
            request.shared_prefix_boundary = _shared_prefix_boundary(manager, answer)
            if hit >= request.num_tokens:
                manager.report_hit(request)
        start = request.num_computed_tokens + hit
        count = min(asked, request.num_tokens - start, self._max_model_len - start)
        if self.split is not None and count > 0:
            count = self.split(request, count, hit)
        if count <= 0:
            return start, 0
        if client.running:
            given = manager.allocate_slots(request, count)
        else:
            given = manager.allocate_slots(
                request,
                count,
                num_new_computed_tokens=hit,
                new_computed_blocks=found,
                full_sequence_must_fit=self._reserve_full_isl,
                has_scheduled_reqs=self._running > 0,
            )
        if given is None:
            return start, 0
        if not client.running:
            client.running = True
            self._running += 1
            _set_status(request, "RUNNING")
            request.num_computed_tokens = hit
        return start, count

    def _ran(self, run: Run) -> None:
        client = self._clients[run.r]
        request = client.request
        request.num_computed_tokens = run.stop
        if run.stop == request.num_tokens < self._max_model_len:
            token = self._vocabulary.token(client.text, request.num_tokens - request.num_prompt_tokens)
            request.append_output_token_ids(token)
            accept = Accept(step=self._step_number, r=run.r, upto=request.num_tokens, tokens=[token])
            self.diff.events.append(accept)

    def _wait_again(self, client: _Client) -> None:
        self._running -= client.running
        client.running = False
        client.request.num_computed_tokens = 0
        client.request.num_preemptions += 1
        _set_status(client.request, "PREEMPTED")


def _set_status(request: Any, name: str) -> None:
    request.status = type(request.status)[name]


def _shared_prefix_boundary(manager: Any, answer: tuple[Any, ...]) -> int:
    """Return where a prefix shared with other requests goes on beyond the hit, in tokens; 0 if it does not.

    The look-up answers this since 0.26; before (0.24, 0.25), the coordinator kept how far beyond the hit the boundary is.
    """
    if len(answer) > 2:
        return int(answer[2])
    further = int(getattr(manager.coordinator, "num_uncached_common_prefix_tokens", 0))
    return int(answer[1]) + further if further else 0
