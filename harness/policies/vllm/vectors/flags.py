"""The bugs that vLLM's vectors hunt."""

from __future__ import annotations

from harness.vectors.form import Flag

FLAGS: dict[str, Flag] = {
    "block-boundary": Flag("a length at a multiple of the block is rounded to the wrong side"),
    "last-token": Flag("a prompt that is cached whole leaves nothing to compute, so there are no logits"),
    "hole": Flag("a missing block in the middle is passed over, and what follows it is hit all the same"),
    "window-edge": Flag("the window is counted without its query, or with one block too few", "vllm-project/vllm#43090"),
    "one-token-window": Flag("a window that needs no earlier block is treated as one that needs some"),
    "group-fixpoint": Flag("one group's shorter hit is not told to the others", "local-inference-lab/vllm#403"),
    "state-without-attention": Flag("a state is resumed where the attention blocks do not reach"),
    "shared-prefix-boundary": Flag(
        "the prefix that others share goes on, and nobody is told to keep a state there", "vllm-project/vllm#37898"
    ),
    "inside-a-block": Flag("a hit inside a block is rounded to the block, or not found", "vllm-project/vllm#45238"),
    "eagle-margin": Flag(
        "the block that a speculative look-up gives back is counted as hit, or not asked for", "vllm-project/vllm#52216"
    ),
    "unequal-blocks": Flag("groups with blocks of different sizes are aligned to one of them and not to all"),
    "caching-off": Flag("something is hit although caching is off"),
    "replay-boundary": Flag("the boundary at which the same prompt resumes is not kept", "vllm-project/vllm#53504"),
    "interval": Flag("more or less is kept than one boundary in an interval", "vllm-project/vllm#45845"),
    "dense": Flag("an interval that the window or the block fills is thinned out all the same"),
    "mask-offset": Flag("a mask is computed from the start of the chunk and not of the request", "vllm-project/vllm#45845"),
    "chunk-end": Flag("a chunk ends inside a block, so that no state lies on a boundary", "vllm-project/vllm#53084"),
    "run-past": Flag("a chunk runs past the last boundary at which the prompt can be resumed", "vllm-project/vllm#48402"),
    "put-off": Flag("a chunk too short for a block is computed all the same, or stalls a request that could go on"),
    "wide-block": Flag("a block wider than a step never fills, or its private state is published"),
    "recomputed-output": Flag("what was generated before a preemption is not treated as prefill", "vllm-project/vllm#31583"),
    "sizing": Flag("sizes that depend on all groups are taken from one of them"),
    "admission": Flag("a request is admitted that cannot finish, or refused although blocks are recycled"),
    "bad-config": Flag("a configuration that contradicts itself is accepted"),
    "stale": Flag("content of before a reset, or of other weights, is hit", "vllm-project/vllm#34382"),
    "identity": Flag("content of another salt, adapter or image is hit", "vllm-project/vllm#3263"),
    "same-step": Flag("a state is hit in the step that writes it", "vllm-project/vllm#29387"),
    "never-written": Flag("a key outlives the step that should have written its block", "vllm-project/vllm#57580"),
    "lost-work": Flag("a request that lost its blocks counts tokens that it does not hold", "vllm-project/vllm#31583"),
    "counts": Flag("blocks are lost, or given back twice, when a request ends"),
    "evicts-what-it-hit": Flag("making room evicts what was just hit", "vllm-project/vllm#10507"),
    "drafts": Flag("a rejected draft's state is kept as if the draft stood", "vllm-project/vllm#53912"),
    "in-flight": Flag("a step is scheduled on tokens that an earlier one has not produced"),
    "tier": Flag("what comes back from the second tier is not what was stored", "LMCache/LMCache#4247"),
}
