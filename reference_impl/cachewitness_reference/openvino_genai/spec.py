"""Where the rules come from, which of them are here, and what each release of OpenVINO GenAI does
differently.

The document "Hybrid Attention Model Cache Management" is that of release 2026.2. What it leaves
open was read in the published sources; figures marked "measured" were taken on the installed
package 2026.4.1.0. No rule is silently half there: `implemented` is false for what is left out, and
an option that would need it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

REPOSITORY = "https://github.com/openvinotoolkit/openvino.genai"
DOCUMENT = "Hybrid Attention Model Cache Management (site/docs, release 2026.2)"
PINNED_COMMIT = "da1db864d2bc1a265e9a036f5b57ef13f0e86c2c"
PINNED_ON = "2026-08-21"
MEASURED_RELEASE = "2026.4.1.0"

SIZE_MAX = 2**64 - 1
"""The largest `size_t`: `max_num_batched_tokens` of so much is unlimited."""

INT32_MAX = 2**31 - 1
"""Block indices and the cache interval travel to the kernels as 32-bit integers."""

GIB = 2**30
"""`cache_size` is counted in it."""

DEFAULT_MULTIPLIER = 8
MULTIPLIER_MAX = 256
"""The adaptive multiplier is never smaller than the first, nor larger than the second."""

GROWTH_TOKENS = 256
"""By so many tokens a dynamic cache grows when it is full."""

INITIAL_MULTIPLIER = 2
"""A dynamic cache starts with room for so many times the prompt, or for all that may be generated
if that is less."""

KV_BLOCK_SIZES = {"CPU": 32, "GPU": 16, "GPU+XATTENTION": 256}
"""Tokens in a KV block, by device."""


@dataclass(frozen=True)
class Release:
    """What a release does its own way, by its sources (2026.2, 2026.3) or as measured (2026.4).

    `adaptive_multiplier`: an unset `cache_interval_multiplier` is derived from the bytes of the two
    kinds of block; else 8. `reserves_for_arrivals`: a dynamic cache makes room for a whole prompt
    that comes while others run, and all that they may become; else it does so for the first
    requests alone, and grows by 256 tokens where a later one finds no room.
    `dynamic_adds_to_explicit`: a dynamic cache without prefix caching adds a linear-attention block
    for every waiting sequence to an explicit `num_linear_attention_blocks`; else it keeps the
    explicit number.
    """

    adaptive_multiplier: bool
    reserves_for_arrivals: bool
    dynamic_adds_to_explicit: bool


RELEASES: dict[str, Release] = {
    "2026.2": Release(
        adaptive_multiplier=False, reserves_for_arrivals=False, dynamic_adds_to_explicit=True
    ),
    "2026.3": Release(
        adaptive_multiplier=True, reserves_for_arrivals=True, dynamic_adds_to_explicit=True
    ),  # PR 4050
    "2026.4": Release(
        adaptive_multiplier=True, reserves_for_arrivals=True, dynamic_adds_to_explicit=False
    ),
}
NEWEST = "2026.4"


@dataclass(frozen=True)
class Rule:
    """One rule of the policy: its name, what it says, where OpenVINO GenAI says it, and whether
    it is here.
    """

    name: str
    summary: str
    source: str
    implemented: bool = True


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules}


_CB = "src/cpp/src/continuous_batching"
_CONFIG = "src/cpp/include/openvino/genai/scheduler_config.hpp"
_ORCHESTRATOR = f"{_CB}/cache/cache_orchestrator.hpp"
_BLOCKS = f"{_CB}/cache/block_manager.hpp"
_SCHEDULER = f"{_CB}/scheduler.hpp"
_PIPELINE = f"{_CB}/pipeline_impl.cpp"
_HERE = "not in OpenVINO GenAI"

RULES: dict[str, Rule] = _rules(
    Rule(
        "two-pools", "KV grows with tokens; linear attention with sequences or intervals.", DOCUMENT
    ),
    Rule(
        "profiles",
        "LLMPipeline and VLMPipeline default to unlimited batches and prefix caching.",
        "src/cpp/src/utils.cpp",
    ),
    Rule("validation", "Contradictory options are refused, with OpenVINO's own words.", _CONFIG),
    Rule(
        "overflow-refused",
        "Numbers that wrap or are cut off in OpenVINO are refused, by field.",
        _HERE,
    ),
    Rule(
        "fixed-state",
        "Without prefix caching a sequence has one linear-attention block, however long it is.",
        DOCUMENT,
    ),
    Rule(
        "client-or-server",
        "Unlimited batches: 1 linear-attention block; bounded: max_num_seqs.",
        DOCUMENT,
    ),
    Rule(
        "interval", "A checkpoint every kv_block_size x cache_interval_multiplier tokens.", DOCUMENT
    ),
    Rule(
        "multiplier-default",
        "Unset: 8 (2026.2); min(max(8, ceil(state / KV block)), 256) later.",
        f"{_ORCHESTRATOR}, PR 4050",
    ),
    Rule("explicit-kv", "Linear-attention blocks = ceil(num_kv_blocks / multiplier).", DOCUMENT),
    Rule(
        "shared-budget",
        "cache_size is split so that the most tokens fit both pools.",
        _ORCHESTRATOR,
    ),
    Rule("kv-wins", "num_kv_blocks wins over cache_size.", DOCUMENT),
    Rule(
        "manual-override",
        "num_linear_attention_blocks is kept, except under a shared budget with prefix caching.",
        _ORCHESTRATOR,
    ),
    Rule(
        "memory-check",
        "What is asked for fits the memory of the machine (all of it, not what is free).",
        _ORCHESTRATOR,
    ),
    Rule("dynamic", "With an empty pool the cache starts small and grows on demand.", _SCHEDULER),
    Rule(
        "checkpoint-paging",
        "The state at a multiple of the interval stays; between, it is overwritten in place.",
        _SCHEDULER,
    ),
    Rule(
        "tail-checkpoint",
        "A finished request leaves a state after its last computed token, P + G - 1.",
        _BLOCKS,
    ),
    Rule(
        "restore-common",
        "A prompt resumes at the largest checkpoint that both caches hold.",
        _ORCHESTRATOR,
    ),
    Rule(
        "restore-once",
        "Restored before the step in which it is first scheduled: a batch shares nothing within"
        " itself.",
        _PIPELINE,
    ),
    Rule(
        "last-token",
        "Of a prompt cached in full (KV alone) the last token is computed again.",
        _BLOCKS,
    ),
    Rule(
        "overwritable-store",
        "Freed blocks keep their key; unused blocks go first, then the oldest.",
        _BLOCKS,
    ),
    Rule("copy-on-write", "A shared block is copied before it is written.", _BLOCKS),
    Rule("fork", "A forked sequence shares every block.", _BLOCKS),
    Rule("split-fuse", "Generation first, then prompts in order, cut to the budget.", _SCHEDULER),
    Rule(
        "vllm-mode",
        "Prompts first and whole; generation only in steps without prompts; max_num_seqs counts.",
        _SCHEDULER,
    ),
    Rule("admission-by-pool", "A chunk is cut to the slots that every pool has.", _SCHEDULER),
    Rule(
        "preemption",
        "The last request gives way; in part if every pool can, else in full.",
        _SCHEDULER,
    ),
    Rule(
        "out-of-memory",
        "If nothing can be scheduled, every request is dropped (status IGNORED).",
        _PIPELINE,
    ),
    Rule("initial-zero", "The first state of a sequence is zeroed before it runs.", _ORCHESTRATOR),
    Rule("identity", "Salt, adapter and media enter the hashes.", _HERE),
    Rule("clear-keys", "Every key can be forgotten while requests run.", _HERE),
    Rule(
        "cache-eviction",
        "use_cache_eviction: each layer drops the KV blocks of a running sequence that it attended"
        " to least.",
        f"{_CB}/cache/cache_eviction.cpp",
        implemented=False,
    ),
    Rule(
        "sparse-attention",
        "use_sparse_attention: a prompt reads a part of its KV blocks.",
        "src/cpp/include/openvino/genai/sparse_attention.hpp",
        implemented=False,
    ),
    Rule(
        "temporary-checkpoints",
        "Checkpoints of every draft in speculative decoding.",
        _SCHEDULER,
        implemented=False,
    ),
    Rule(
        "gpu-growth", "Dynamic growth limited by free device memory.", _SCHEDULER, implemented=False
    ),
)

AXES: dict[str, str] = {
    "window": "none: sliding layers keep every token",
    "recurrent": "every interval, and a tail checkpoint at any length",
    "last token": "KV alone: R - 1 if R is the whole prompt; hybrids: the checkpoint before it",
    "group miss": "shorten to what both caches hold; total miss without a checkpoint",
    "duplicate": "the live block keeps the key; an idle one gives way",
    "eviction": (
        "unused blocks first, then by age of last hand-out or restore, each pool for itself"
    ),
    "publication": "when scheduled; a lookup precedes the step",
    "compaction": "none",
}
"""Where the policy stands on the axes in which systems differ."""
