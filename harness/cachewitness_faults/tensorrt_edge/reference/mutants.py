"""Faults in batch rows that move, and in captured system prompts."""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.core.events import Move
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant

fault = partial(mutant, engines=("tensorrt_edge",))


@fault(
    name="edge-states-left-behind",
    mirrors="NVIDIA/TensorRT-LLM#13151, EricLBuehler/mistral.rs#2017",
    anomaly="stale-hit",
    checker="safety-law",
    group="F",
)
def states_left_behind(engine: Driver) -> None:
    """A compaction moves keys and values, and not the states."""

    def compact_batch(original: Any, *args: Any) -> Any:
        return original(*args)._replace(states=())

    wrap(_runtime(engine).cache, "compact_batch", compact_batch)


@fault(
    name="edge-capture-rewritten",
    mirrors="alibaba/MNN#4495",
    anomaly="state-position-skew",
    checker="safety-law",
    group="A",
)
def capture_rewritten(engine: Driver) -> None:
    """A capture is written again while its request goes on."""
    runtime = _runtime(engine)
    captured = dict[str, Any]()

    def schedule(original: Any, *args: Any) -> Any:
        scheduled = original(*args)
        aside = _adapter(engine)._aside
        for request in runtime.running():
            saved = captured.get(request.request_id)
            if (
                saved is not None
                and runtime.prompts.saved.get(saved.key) is saved
                and request.request_id in scheduled.chunks
            ):
                groups = _adapter(engine)._groups
                scheduled.stores += [
                    Move(request.slot, saved.place, g.pool, aside[g.id].pool) for g in groups
                ]
        captured.update(
            (request.request_id, saved) for request, saved in _adapter(engine)._step.saves
        )
        return scheduled

    wrap(_adapter(engine), "schedule", schedule)


@fault(
    name="edge-capture-without-weights",
    mirrors="vllm-project/vllm#53495",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
)
def capture_without_weights(engine: Driver) -> None:
    """A capture is found by its tokens alone, whatever the LoRA weights and the salt."""

    def add(original: Any, request: Any) -> None:
        request.lora = request.salt = ""
        original(request)

    wrap(_runtime(engine), "add", add)


@fault(
    name="edge-captures-survive-new-weights",
    mirrors="NVIDIA-NeMo/RL#4018",
    anomaly="cross-identity-hit",
    checker="identity",
    group="L",
)
def captures_survive_new_weights(engine: Driver) -> None:
    """New weights do not end the captures of the old ones."""

    def renew(original: Any) -> bool:
        engine.preempt_all()
        return True

    wrap(_adapter(engine), "renew", renew)


@fault(
    name="edge-later-chunks-not-captured",
    mirrors=(
        "vllm-project/vllm#43628 (of a prompt in several chunks one boundary alone is kept);"
        " sgl-project/sglang#28222"
    ),
    anomaly="lost-capture",
    checker="captures",
    group="N",
)
def later_chunks_not_captured(engine: Driver) -> None:
    """A system prompt is captured if the first chunk computes all of it, else never."""

    def compute(original: Any, request: Any, count: int, step: Any) -> None:
        captures = request.captures
        request.captures = {} if request.computed else captures
        original(request, count, step)
        request.captures = captures

    wrap(_runtime(engine), "_compute", compute)


@fault(
    name="edge-captures-looked-up-by-the-whole-prompt",
    mirrors=(
        "ggml-org/llama.cpp#24055 (the length of the whole prompt where that of the checkpoint is"
        " meant)"
    ),
    anomaly="lost-capture",
    checker="captures",
    group="N",
)
def captures_looked_up_by_the_whole_prompt(engine: Driver) -> None:
    """A request looks for a capture of all its tokens but the last, whatever part of them is a
    system prompt.
    """

    def name(original: Any, request: Any) -> None:
        original(request)
        if request.key is not None:
            request.key = request.key_at(len(request.tokens) - 1)

    wrap(_runtime(engine), "_name", name)


@fault(
    name="edge-captures-end-with-their-request",
    mirrors="inference-sim/inference-sim#1057, #1079 (hashes deleted as blocks are freed)",
    anomaly="lost-capture",
    checker="captures",
    group="N",
)
def captures_end_with_their_request(engine: Driver) -> None:
    """When a request ends, what was captured of it is forgotten, places or no places."""
    runtime = _runtime(engine)

    def end(original: Any, r: str) -> None:
        keys = set(runtime.requests[r].captures.values())
        original(r)
        for saved in [
            saved for key, saved in runtime.prompts.saved.items() if key in keys and not saved.users
        ]:
            runtime.prompts._forget(saved)

    wrap(runtime, "end", end)


@fault(
    name="edge-newest-capture-given-up",
    mirrors="sgl-project/sglang-omni#1724 (review: the heap's order under a negated key)",
    anomaly="lost-capture",
    checker="captures",
    group="N",
)
def newest_capture_given_up(engine: Driver) -> None:
    """Where places run out, the capture that was used last makes room."""
    prompts = _runtime(engine).prompts

    def reserve(original: Any, key: Any) -> Any:
        order = list(prompts.saved)
        for known in reversed(order):
            prompts.saved.move_to_end(known)
        saved = original(key)
        for known in [known for known in order if known in prompts.saved]:
            prompts.saved.move_to_end(known)
        if key not in order and key in prompts.saved:
            prompts.saved.move_to_end(key)
        return saved

    wrap(prompts, "reserve", reserve)


@fault(
    name="edge-hit-does-not-renew-a-capture",
    mirrors=(
        "ml-explore/mlx-lm#1495; antonellof/ferrox#14 (first in, first out under the name of LRU)"
    ),
    anomaly="lost-capture",
    checker="captures",
    group="N",
)
def hit_does_not_renew_a_capture(engine: Driver) -> None:
    """What is restored keeps its age: the capture that was made first makes room."""
    prompts = _runtime(engine).prompts

    def find(original: Any, key: Any) -> Any:
        order = list(prompts.saved)
        saved = original(key)
        for known in order:
            prompts.saved.move_to_end(known)
        return saved

    wrap(prompts, "find", find)


def _runtime(engine: Driver) -> Any:
    return _adapter(engine).runtime


def _adapter(engine: Driver) -> Any:
    return engine.adapter


MUTANTS = declared(globals())
