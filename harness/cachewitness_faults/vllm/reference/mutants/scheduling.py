"""Faults in who runs, and in whether the engine survives it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from cachewitness.core.declared import DENIABLE
from cachewitness.engines.adapter import Refused
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import (
    BOTH,
    REFERENCE,
    adapter,
    core,
    left_while_waiting,
    wrap,
)
from cachewitness.engines.mutant import declared, mutant
from cachewitness.systems.vllm.reference.capacity import longest_held

ADMITTED = 3
"""So many requests get a place from an engine that then stands still."""


@mutant(
    name="resumed-request-refused",
    mirrors="vllm-project/vllm#40707",
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=BOTH,
)
def resumed_request_refused(engine: Driver) -> None:
    """A preempted request is never admitted again."""

    def allocate_slots(original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        return None if request.num_preemptions else original(request, *args, **kwargs)

    wrap(core(engine), "allocate_slots", allocate_slots)


@mutant(
    name="victims-free-nothing-yet",
    mirrors="vllm-project/vllm#49674",
    anomaly="vain-preemption",
    checker="progress",
    group="O",
    engines=REFERENCE,
    level="scheduler",
)
def victims_free_nothing_yet(engine: Driver) -> None:
    """Who is preempted keeps its blocks until the next step is scheduled, so the next one is
    preempted as well.
    """
    scheduler = adapter(engine).scheduler
    manager = core(engine)
    give_back = manager.free
    kept: list[Any] = []

    def preempt(original: Any, request: Any) -> None:
        manager.free = kept.append
        original(request)
        manager.free = give_back

    def schedule(original: Any, *args: Any, **kwargs: Any) -> Any:
        while kept:
            give_back(kept.pop())
        return original(*args, **kwargs)

    wrap(scheduler, "_preempt", preempt)
    wrap(scheduler, "schedule", schedule)


@mutant(
    name="second-preemption-crashes",
    mirrors="sgl-project/sglang#18694",
    anomaly="engine-crashed",
    checker="engine",
    group="O",
    engines=BOTH,
)
def preemption_crashes(engine: Driver) -> None:
    """What is noted of a request when it first runs is dropped when it is preempted, and asked for
    when it is freed again.

    Note how many tokens a request was first admitted for, and look that up whenever its blocks are
    given back.
    """
    first_admitted: dict[str, int] = {}
    manager = core(engine)

    def allocate_slots(
        original: Any, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        given = original(request, num_new_tokens, *args, **kwargs)
        if given is not None and not request.num_preemptions:
            first_admitted.setdefault(request.request_id, num_new_tokens)
        return given

    def free(original: Any, request: Any) -> None:
        if any(
            single.req_to_blocks.get(request.request_id)
            for single in manager.coordinator.single_type_managers
        ):
            del first_admitted[request.request_id]
        original(request)

    wrap(manager, "allocate_slots", allocate_slots)
    wrap(manager, "free", free)


@mutant(
    name="split-returns-nothing",
    mirrors="vllm-project/vllm#40707, 1CatAI/1Cat-vLLM#472",
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=REFERENCE,
)
def split_returns_nothing(engine: Driver) -> None:
    """What is left of a prompt is rounded down to nothing, step after step."""

    def split(original: Any, request: Any, tokens: int, hit: int) -> int:
        start = request.num_computed_tokens + hit
        kept = int(original(request, tokens, hit))
        size = max(single.block_size for single in core(engine).coordinator.single_type_managers)
        return (start + kept) // size * size - start if start < request.num_prompt_tokens else kept

    if getattr(adapter(engine), "split", None) is not None:
        wrap(adapter(engine), "split", split)


@mutant(
    name="replay-boundary-passed",
    mirrors="vllm-project/vllm v1/core/sched/scheduler.py (_mamba_block_aligned_split: a mandatory"
    " stop at the last cacheable boundary)",
    anomaly="missed-checkpoint",
    checker="checkpoints",
    group="N",
    engines=REFERENCE,
)
def replay_boundary_passed(engine: Driver) -> None:
    """A chunk that reaches the end of its prompt does not stop at the last boundary that a replay
    can resume at, so of a prompt that fits in a step no state is kept.
    """

    def split(original: Any, request: Any, tokens: int, hit: int) -> int:
        reaches = request.num_computed_tokens + hit + tokens >= request.num_prompt_tokens
        return tokens if reaches else int(original(request, tokens, hit))

    if getattr(adapter(engine), "split", None) is not None:
        wrap(adapter(engine), "split", split)


@mutant(
    name="failed-allocation-keeps-a-block",
    mirrors="sgl-project/sglang#34676",
    anomaly="leak",
    checker="ownership",
    group="O",
    engines=REFERENCE,
)
def failed_allocation_keeps_a_block(engine: Driver) -> None:
    """An allocation that fails has taken a block before.

    Take a first block before finding out that there is no room for all.
    """
    manager = core(engine)

    def allocate_slots(original: Any, *args: Any, **kwargs: Any) -> Any:
        given = original(*args, **kwargs)
        if given is None and manager.block_pool.get_num_free_blocks():
            manager.block_pool.get_new_blocks(1)
        return given

    wrap(manager, "allocate_slots", allocate_slots)


@mutant(
    name="needs-counted-for-every-group",
    mirrors="vllm-project/vllm#40384",
    anomaly="no-progress",
    checker="progress",
    group="M",
    engines=REFERENCE,
)
def needs_counted_for_every_group(engine: Driver) -> None:
    """What all groups need together is multiplied by their number.

    Multiply what a request needs by the number of groups, which has been summed over already.
    """
    coordinator = core(engine).coordinator

    def get_num_blocks_to_allocate(original: Any, *args: Any, **kwargs: Any) -> int:
        return int(original(*args, **kwargs)) * len(coordinator.single_type_managers)

    wrap(coordinator, "get_num_blocks_to_allocate", get_num_blocks_to_allocate)


@mutant(
    name="busy-pool-taken-for-a-small-one",
    mirrors=(
        "vllm-project/vllm#39734, #35570 (who exceeds the capacity is aborted: what is free now"
        " taken for what there is)"
    ),
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=REFERENCE,
)
def busy_pool_taken_for_a_small_one(engine: Driver) -> None:
    """A request is given up if its prompt does not fit the blocks that are free when it comes,
    instead of waiting for them.
    """
    manager = core(engine)
    driven = adapter(engine)

    def add(original: Any, submit: Any, tokens: Any, shared: int) -> None:
        needed = sum(
            -(-len(tokens) // single.block_size)
            for single in manager.coordinator.single_type_managers
        )
        if needed > manager.block_pool.get_num_free_blocks():
            raise Refused(f"a prompt of {needed} blocks exceeds the capacity")
        original(submit, tokens, shared)

    wrap(driven, "add", add)


@mutant(
    name="cached-blocks-are-no-room",
    mirrors="Avarok-Cybersecurity/atlas#1114",
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=REFERENCE,
)
def cached_blocks_are_no_room(engine: Driver) -> None:
    """A request waits for ever beside blocks that are merely cached.

    Give blocks only as long as there are some that nothing is cached in.
    """
    manager = core(engine)
    pool = manager.block_pool

    def allocate_slots(original: Any, *args: Any, **kwargs: Any) -> Any:
        whole = pool.get_num_free_blocks
        pool.get_num_free_blocks = lambda: sum(
            block.block_hash is None for block in pool.free_block_queue.values()
        )
        try:
            return original(*args, **kwargs)
        finally:
            pool.get_num_free_blocks = whole

    wrap(manager, "allocate_slots", allocate_slots)


@mutant(
    name="ended-request-refuses-a-reset",
    mirrors=(
        "sgl-project/sglang#21413 (a flush right after the last request is refused, the next one is"
        " not)"
    ),
    anomaly="refused-reset",
    checker="progress",
    group="L",
    engines=REFERENCE,
    level="scheduler",
)
def ended_request_refuses_a_reset(engine: Driver) -> None:
    """A request that has ended counts as running until the next step, and a reset is refused for
    it.
    """
    scheduler = adapter(engine).scheduler
    ended: set[str] = set()

    def finish_requests(original: Any, request_ids: Any, *status: Any) -> None:
        names = list(request_ids)
        original(names, *status)
        ended.update(names)

    def schedule(original: Any, *budget: Any) -> Any:
        ended.clear()
        return original(*budget)

    def reset(original: Any, reset_running_requests: bool = False) -> bool:
        return bool((reset_running_requests or not ended) and original(reset_running_requests))

    wrap(scheduler, "finish_requests", finish_requests)
    wrap(scheduler, "schedule", schedule)
    wrap(scheduler, "reset_prefix_cache", reset)


@mutant(
    name="null-block-counted-as-room",
    mirrors=(
        "vLLM's start-up check without the block that its pool sets aside (0.33.0,"
        " v1/core/kv_cache_planning.py, which subtracts it)"
    ),
    anomaly="no-progress",
    checker="progress",
    group="M",
    engines=REFERENCE,
    level="scheduler",
)
def null_block_counted_as_room(engine: Driver) -> None:
    """The check at the start counts the null block as room, and accepts a length that the pool does
    not hold.
    """
    config = adapter(engine).config
    most = longest_held(replace(config, num_blocks=config.num_blocks + 1))
    rules = structs.replace(engine.header.rules, max_prompt=most)
    engine.header = structs.replace(engine.header, rules=rules)


@mutant(
    name="third-request-is-the-last",
    mirrors=(
        "an engine that declares all that may excuse who waits (static batches, requests that are"
        " given up for want of room, resets that are refused) and denies what rules it may"
    ),
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=REFERENCE,
)
def third_request_is_the_last(engine: Driver) -> None:
    """Nobody is admitted behind the third request, and the engine declares whatever may excuse
    that.
    """
    admitted: set[str] = set()
    rules = structs.replace(
        engine.header.rules, static_batches=True, engine_aborts=True, idle_resets=True
    )
    denied = dict.fromkeys(DENIABLE, "not judged here")
    not_applicable = denied | engine.header.not_applicable
    engine.header = structs.replace(engine.header, rules=rules, not_applicable=not_applicable)

    def allocate_slots(original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.request_id not in admitted and len(admitted) == ADMITTED:
            return None
        given = original(request, *args, **kwargs)
        if given is not None:
            admitted.add(request.request_id)
        return given

    wrap(core(engine), "allocate_slots", allocate_slots)


@mutant(
    name="who-left-while-waiting-holds-the-queue",
    mirrors=(
        "vLLM v1/core/sched/scheduler.py (num_waiting_for_streaming_input: a session that ends"
        " while it waits counts as waiting on)"
    ),
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=REFERENCE,
    level="scheduler",
)
def who_left_while_waiting_holds_the_queue(engine: Driver) -> None:
    """A request that ends while it waits is waited for, and nobody is admitted any more."""
    scheduler = adapter(engine).scheduler
    gone = left_while_waiting(scheduler, "finish_requests")

    def schedule_waiting(original: Any, *args: Any) -> None:
        if not gone:
            original(*args)

    wrap(scheduler, "_schedule_waiting", schedule_waiting)


MUTANTS = declared(globals())
