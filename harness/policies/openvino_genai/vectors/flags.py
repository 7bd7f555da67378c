"""The bugs that OpenVINO GenAI's vectors hunt."""

from __future__ import annotations

from harness.vectors.form import Flag

FLAGS: dict[str, Flag] = {
    "interval-rounding": Flag("checkpoints are counted with a floor where a started interval needs one too"),
    "adaptive-multiplier": Flag("an unset multiplier is taken as 8 where the release derives it", "openvino.genai#4050"),
    "shared-budget": Flag("the two pools together are larger than the budget, or leave room for another block of both"),
    "manual-states": Flag("a number of states that was set is kept, or discarded, where the other is the rule"),
    "client-or-server": Flag("states are sized for a server where one stream is served, or the other way round"),
    "dynamic": Flag("a pool of no blocks is taken for a pool that is full"),
    "overflow": Flag("a product wraps around, or a count is cut off to 32 bits, and the pool is empty"),
    "bad-config": Flag("a configuration that contradicts itself is accepted"),
    "memory-check": Flag("more is asked for than the machine has, and not refused"),
    "common-position": Flag("a prompt resumes where one of the two caches has nothing"),
    "checkpoint-edge": Flag("a checkpoint at a multiple of the interval is missed, or used one token early or late"),
    "last-token": Flag("a prompt that is cached whole leaves no token, or applies its last one to the state twice"),
    "tail-checkpoint": Flag(
        "the state that a finished request leaves inside an interval is not found, or found where KV ends before"
    ),
    "hole": Flag("a missing block in the middle is passed over"),
    "room": Flag("a chunk takes more than one of the pools has, or less than both have"),
    "stale": Flag("content of before a reset, or of other weights, is restored"),
    "identity": Flag("content of another salt, adapter or image is restored"),
    "lost-work": Flag("a preempted request goes on from a state that is not the one of its tokens"),
    "counts": Flag("blocks are lost, or given back twice"),
    "shared-write": Flag("a block that others hold is written without a copy"),
}
