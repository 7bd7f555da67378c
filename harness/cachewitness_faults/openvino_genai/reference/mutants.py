"""Faults in OpenVINO GenAI's two pools."""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import adapter, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.openvino_genai.sequence import Identity, Status
from cachewitness_reference.primitives import Position

fault = partial(mutant, engines=("openvino_genai",))


@fault(
    name="openvino-restored-without-a-state",
    mirrors="vllm-project/tpu-inference#3412",
    anomaly="stale-hit",
    checker="safety-law",
    group="C",
)
def restored_without_a_state(engine: Driver) -> None:
    """A hit of the KV cache is restored where the other cache has no state."""
    cache = _cache(engine)
    if cache.la is None:
        return

    def longest(original: Any, sequence: Any, length: int) -> Position:
        return Position(
            min(cache.kv.longest_run(sequence, length), (length - 1) // cache.kv.block_size)
            * cache.kv.block_size
        )

    def restore(original: Any, sequence: Any, lengths: Any) -> None:
        original(sequence, [length for length in lengths if cache.la.holds(sequence, length)])

    wrap(cache, "_longest", longest)
    wrap(cache.la, "restore", restore)


@fault(
    name="openvino-shared-block-written",
    mirrors="FlashML-org/FreeToken#287",
    anomaly="aliased-write",
    checker="ownership",
    group="H",
)
def shared_block_written(engine: Driver) -> None:
    """A block that several requests hold is written without a copy."""
    for manager in _cache(engine).managers.values():
        wrap(manager, "_shared_target", lambda original, *args: None)


@fault(
    name="openvino-state-ahead-after-rollback",
    mirrors="OpenVINO GenAI 2026.4, preemption of a hybrid in part",
    anomaly="state-position-skew",
    checker="safety-law",
    group="D",
    level="scheduler",
)
def state_ahead_after_rollback(engine: Driver) -> None:
    """Tokens are taken off a preempted request, and its state stays ahead of them."""
    cache = _cache(engine)

    def previous(original: Any, group: Any, position: int) -> Position:
        return Position((position - 1) // cache.kv.block_size * cache.kv.block_size)

    wrap(cache, "_previous", previous)


@fault(
    name="openvino-key-kept-after-hand-out",
    mirrors="vllm-project/vllm#4761",
    anomaly="stale-hit",
    checker="safety-law",
    group="I",
)
def key_kept_after_hand_out(engine: Driver) -> None:
    """A block that was handed out anew is still found under its old key."""
    for manager in _cache(engine).managers.values():
        wrap(manager.pool, "allocate", _keeping_key(manager.pool))


def _keeping_key(pool: Any) -> Any:
    def allocate(original: Any, owner: str) -> Any:
        keys = {block.block_id: key for key, block in pool.cached.items()}
        block = original(owner)
        if block.block_id in keys:
            pool.cached[keys[block.block_id]] = block
        return block

    return allocate


@fault(
    name="openvino-salt-and-adapter-left-out",
    mirrors="openvinotoolkit/openvino.genai#3722",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
)
def salt_and_adapter_left_out(engine: Driver) -> None:
    """Tokens and media alone are hashed."""

    def add_request(original: Any, group: Any) -> None:
        for sequence in group.sequences:
            sequence.identity = Identity("", "", sequence.identity.media)
        original(group)

    wrap(_adapter(engine).scheduler, "add_request", add_request)


@fault(
    name="openvino-keys-survive-new-weights",
    mirrors="InternLM/lmdeploy#4917",
    anomaly="cross-identity-hit",
    checker="identity",
    group="L",
)
def keys_survive_new_weights(engine: Driver) -> None:
    """New weights end the keys of states, and those of keys and values stay.

    Clear the cache of states where there is one, as if nothing else could be restored.
    """
    cache = _cache(engine)

    def forget(original: Any, reason: str) -> bool:
        if reason != "version":
            return bool(original(reason))
        if cache.la is not None:
            cache.la.pool.clear_keys()
        _adapter(engine).diff.settle(reason=reason)
        return True

    wrap(_adapter(engine), "forget", forget)


@fault(
    name="openvino-tail-keyed-beyond",
    mirrors="waybarrios/vllm-mlx#683",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
)
def tail_keyed_beyond(engine: Driver) -> None:
    """A state inside an interval is keyed one token further than it is."""
    cache = _cache(engine)
    if cache.la is None or not cache.caching:
        return

    def register(original: Any, sequence: Any, start: int, stop: int) -> None:
        beyond = stop % cache.la.block_size > 0 and stop < len(sequence.tokens)
        original(sequence, start, stop + 1 if beyond else stop)

    wrap(cache.la, "register", register)


def _adapter(engine: Driver) -> Any:
    return engine.adapter


def _cache(engine: Driver) -> Any:
    return _adapter(engine).scheduler.cache


@fault(
    name="openvino-newest-overwritten",
    mirrors="sgl-project/sglang-omni#1724 (review: the heap's order under a negated key)",
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
)
def newest_overwritten(engine: Driver) -> None:
    """The heap of ages gives out the youngest block of the store."""
    for manager in _cache(engine).managers.values():
        wrap(manager.pool, "_oldest", _youngest(manager.pool))


def _youngest(pool: Any) -> Any:
    def oldest(original: Any) -> Any:
        return pool._store.pop(
            max(pool._store.values(), key=lambda block: block.timestamp).block_id
        )

    return oldest


@fault(
    name="openvino-restored-but-not-renewed",
    mirrors=(
        "ml-explore/mlx-lm#1495; antonellof/ferrox#14 (first in, first out under the name of LRU)"
    ),
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
)
def restored_but_not_renewed(engine: Driver) -> None:
    """A block that was restored keeps the age that it had."""
    for manager in _cache(engine).managers.values():
        wrap(manager.pool, "share", _without_a_stamp)


def _without_a_stamp(original: Any, block: Any) -> None:
    before = block.timestamp
    original(block)
    block.timestamp = before


@fault(
    name="openvino-store-overwritten-first",
    mirrors="vLLM before its free queue put blocks without a hash in front",
    anomaly="needless-eviction",
    checker="eviction",
    group="N",
)
def store_overwritten_first(engine: Driver) -> None:
    """Blocks of the store are overwritten while unused ones wait."""
    for manager in _cache(engine).managers.values():
        wrap(manager.pool, "allocate", _from_the_store(manager.pool))


def _from_the_store(pool: Any) -> Any:
    def allocate(original: Any, owner: str) -> Any:
        if not pool._store:
            return original(owner)
        unused = list(pool._unused)
        pool._unused.clear()
        block = original(owner)
        pool._unused.extend(unused)
        return block

    return allocate


@fault(
    name="openvino-ignored-beside-others",
    mirrors="vllm-project/vllm#39734 (who could wait for room is aborted)",
    anomaly="no-progress",
    checker="progress",
    group="O",
    level="scheduler",
)
def ignored_beside_others(engine: Driver) -> None:
    """Whoever came last is ignored when three requests run, whatever room there is."""
    scheduler = adapter(engine).scheduler

    def drop(original: Any, output: Any) -> None:
        original(output)
        running = [group.request_id for group in scheduler.groups.values() if not group.waiting]
        for request_id in running[3:]:
            output.scheduled.pop(request_id, None)
            scheduler.finish(request_id, Status.IGNORED)
            output.dropped.append(request_id)

    wrap(scheduler, "_drop_if_stuck", drop)


MUTANTS = declared(globals())
