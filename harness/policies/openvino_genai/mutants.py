"""Faults in OpenVINO GenAI's two pools."""

from __future__ import annotations

from typing import Any

from harness.engines.fault_tools import wrap
from harness.engines.mutant import Mutant
from harness.engines.policy_height import PolicyHeight
from reference_impl.openvino_genai.sequence import Identity
from reference_impl.primitives import Position

OPENVINO = ("openvino_genai",)


def restored_without_a_state(engine: PolicyHeight) -> None:
    """Restore what the KV cache has, whether the other cache has a state there or not."""
    cache = _cache(engine)
    if cache.la is None:
        return

    def longest(original: Any, sequence: Any, length: int) -> Position:
        return Position(min(cache.kv.longest_run(sequence, length), (length - 1) // cache.kv.block_size) * cache.kv.block_size)

    def restore(original: Any, sequence: Any, lengths: Any) -> None:
        original(sequence, [length for length in lengths if cache.la.holds(sequence, length)])

    wrap(cache, "_longest", longest)
    wrap(cache.la, "restore", restore)


def shared_block_written(engine: PolicyHeight) -> None:
    """Write into blocks that others hold too."""
    for manager in _cache(engine).managers.values():
        wrap(manager, "_shared_target", lambda original, *args: None)


def state_ahead_after_rollback(engine: PolicyHeight) -> None:
    """Take tokens off a preempted request by KV blocks, and leave the state where it was."""
    cache = _cache(engine)

    def previous(original: Any, group: Any, position: int) -> Position:
        return Position((position - 1) // cache.kv.block_size * cache.kv.block_size)

    wrap(cache, "_previous", previous)


def key_kept_after_hand_out(engine: PolicyHeight) -> None:
    """Hand a block of the store out, and let its key be found until another takes its place."""
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


def salt_and_adapter_left_out(engine: PolicyHeight) -> None:
    """Hash tokens and media alone."""

    def add_request(original: Any, group: Any) -> None:
        for sequence in group.sequences:
            sequence.identity = Identity("", "", sequence.identity.media)
        original(group)

    wrap(_adapter(engine).scheduler, "add_request", add_request)


def keys_survive_new_weights(engine: PolicyHeight) -> None:
    """Load new weights, and keep the keys of the old ones."""
    wrap(_adapter(engine), "renew", lambda original: None)


def tail_keyed_beyond(engine: PolicyHeight) -> None:
    """Key a state inside an interval as one token further than it is."""
    cache = _cache(engine)
    if cache.la is None or not cache.caching:
        return

    def register(original: Any, sequence: Any, start: int, stop: int) -> None:
        beyond = stop % cache.la.block_size > 0 and stop < len(sequence.tokens)
        original(sequence, start, stop + 1 if beyond else stop)

    wrap(cache.la, "register", register)


def _adapter(engine: PolicyHeight) -> Any:
    return engine.adapter


def _cache(engine: PolicyHeight) -> Any:
    return _adapter(engine).scheduler.cache


MUTANTS = (
    Mutant(
        "openvino-restored-without-a-state",
        "a hit of the KV cache is restored where the other cache has no state",
        "vllm-project/tpu-inference#3412",
        "stale-hit",
        "safety-law",
        restored_without_a_state,
        OPENVINO,
        group="C",
    ),
    Mutant(
        "openvino-shared-block-written",
        "a block that several requests hold is written without a copy",
        "FlashML-org/FreeToken#287",
        "aliased-write",
        "ownership",
        shared_block_written,
        OPENVINO,
        group="H",
    ),
    Mutant(
        "openvino-state-ahead-after-rollback",
        "tokens are taken off a preempted request, and its state stays ahead of them",
        "OpenVINO GenAI 2026.4, preemption of a hybrid in part",
        "state-position-skew",
        "safety-law",
        state_ahead_after_rollback,
        OPENVINO,
        "scheduler",
        group="D",
    ),
    Mutant(
        "openvino-key-kept-after-hand-out",
        "a block that was handed out anew is still found under its old key",
        "vllm-project/vllm#4761",
        "stale-hit",
        "safety-law",
        key_kept_after_hand_out,
        OPENVINO,
        group="I",
    ),
    Mutant(
        "openvino-salt-and-adapter-left-out",
        "tokens and media alone are hashed",
        "openvinotoolkit/openvino.genai#3722",
        "cross-identity-hit",
        "identity",
        salt_and_adapter_left_out,
        OPENVINO,
        group="I",
    ),
    Mutant(
        "openvino-keys-survive-new-weights",
        "new weights do not end the keys of the old ones",
        "InternLM/lmdeploy#4917",
        "cross-identity-hit",
        "identity",
        keys_survive_new_weights,
        OPENVINO,
        group="L",
    ),
    Mutant(
        "openvino-tail-keyed-beyond",
        "a state inside an interval is keyed one token further than it is",
        "waybarrios/vllm-mlx#683",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        tail_keyed_beyond,
        OPENVINO,
        group="A",
    ),
)
