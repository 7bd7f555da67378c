"""Where the rules come from, which are the document's, and which are our choice where it is silent.

The document gives no formula, no block size and no order of events. `RULES` are its statements;
`CHOICES` are the decisions that an implementation has to take besides. A choice with several
`values` is an option of `config.Options`, because a reasonable engine could decide otherwise; one
with a single value is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

REPOSITORY = "https://developer.furiosa.ai"
DOCUMENT = "Furiosa-LLM, Hybrid KV Cache Management (_HybridKVCache)"
SECOND_DOCUMENT = "Furiosa-LLM, Prefix Caching"
"""Linked from the first. Its section on hybrid models could not be retrieved; the rest was read."""
PINNED_ON = "2026-11-20"
PINNED_RELEASE = "document"
"""The pages carry no version; there is no public source to pin."""

VARIABLE = "EXPECTED_AVERAGE_SEQ_LENGTH"
"""The environment variable that says for which sequence length, in tokens, the memory is split."""

INTEGER_MAX = 2**63 - 1
"""No size, in bytes or in tokens, is larger."""


@dataclass(frozen=True)
class Rule:
    """A statement of a document: its name, what it says, where it is said, and whether it is
    here.
    """

    name: str
    summary: str
    source: str
    implemented: bool = True


@dataclass(frozen=True)
class Choice:
    """A decision that the documents leave open: the values that an option can have, the default
    first, and why.
    """

    name: str
    values: tuple[str, ...]
    why: str


def _rules(*rules: Rule) -> dict[str, Rule]:
    return {rule.name: rule for rule in rules}


def _choices(*choices: Choice) -> dict[str, Choice]:
    return {choice.name: choice for choice in choices}


RULES: dict[str, Rule] = _rules(
    Rule(
        "two-pools",
        "KV memory is split into a global and a sliding-window pool when the server starts.",
        DOCUMENT,
    ),
    Rule(
        "attention-aware",
        "The split follows what either kind of attention is expected to need.",
        DOCUMENT,
    ),
    Rule(
        "growth",
        "Global attention grows with the sequence; the window bounds sliding-window attention.",
        DOCUMENT,
    ),
    Rule(
        "expected-length",
        "The variable, if set, says for which sequence length the memory is split.",
        DOCUMENT,
    ),
    Rule("default-ratio", "Unset, the ratio follows from the model's own requirements.", DOCUMENT),
    Rule("positive-integer", "The variable must be a positive integer.", DOCUMENT),
    Rule("prefill", "Prefill takes blocks to write in both pools.", DOCUMENT),
    Rule(
        "extend",
        "Extend and decode load cached blocks, and take blocks to write for new tokens alone.",
        DOCUMENT,
    ),
    Rule(
        "cleanup",
        "Sliding blocks that the window has left are given back at once; global blocks stay.",
        DOCUMENT,
    ),
    Rule("hybrid-match", "A match shares the blocks of both pools.", DOCUMENT),
    Rule(
        "valid-portion",
        "Where a match lacks sliding blocks, its valid portion is reused, the rest computed.",
        DOCUMENT,
    ),
    Rule("automatic", "The two pools come with a hybrid model, without being asked for.", DOCUMENT),
    Rule("radix-tree", "Prefixes are matched token by token in a radix tree.", SECOND_DOCUMENT),
    Rule("stored-after-pass", "Entries are stored after each forward pass.", SECOND_DOCUMENT),
    Rule("shared-memory", "Entries lie in the memory of the pools.", SECOND_DOCUMENT),
    Rule(
        "leaf-lru",
        "The least recently used entry that is not active goes first, from the leaves.",
        SECOND_DOCUMENT,
    ),
    Rule("recurrent", "Layers with a recurrent state.", "neither document", implemented=False),
)

CHOICES: dict[str, Choice] = _choices(
    Choice(
        "default_ratio",
        ("max_model_len", "per_token"),
        "the length for which memory is split if the variable is unset: the longest sequence that"
        " the server accepts, or any one within the window, where each token needs as much of"
        " either pool",
    ),
    Choice(
        "length-clamp",
        ("clamp",),
        "a length beyond max_model_len counts as max_model_len: no sequence is longer",
    ),
    Choice(
        "split-rounding",
        ("global first, sliding the rest",),
        "whole blocks, in integers; what is left is less than one",
    ),
    Choice(
        "window_tail",
        ("W-1", "W"),
        "tokens that a window of W keeps behind a boundary: the next query counts as one of the W,"
        " or W come on top of it",
    ),
    Choice(
        "hit_granularity",
        ("token", "block"),
        "a match is by tokens; reuse may end inside a block, which is then copied",
    ),
    Choice(
        "out_of_window",
        ("evictable", "freed"),
        "a block that the window has left is given back by its request; an entry keeps it until"
        " memory is needed, or loses it",
    ),
    Choice(
        "release-moment",
        ("after the forward pass",),
        "what the window has left is no longer read by anything scheduled",
    ),
    Choice(
        "last-token",
        ("one token is computed",),
        "logits are not stored, so a prompt is never reused whole",
    ),
    Choice(
        "beyond-the-hit",
        ("computed again",),
        "tokens matched in the global pool alone get new blocks in both pools",
    ),
    Choice(
        "duplicate",
        ("adopted",),
        "a full block whose tokens the tree has already is exchanged for the tree's",
    ),
    Choice(
        "holes",
        ("filled",),
        "an entry without a sliding block gets the one of whoever computes its tokens again",
    ),
    Choice(
        "eviction-by-pool",
        ("each its own",),
        "global: the entry goes, with its sliding block; sliding: the block alone",
    ),
    Choice(
        "identity",
        ("a tree for each",),
        "salt and adapter part trees; a media item's hash is part of its tokens",
    ),
    Choice(
        "chunked-prefill",
        ("what fits",),
        "a chunk ends with the step's budget or with the room in either pool",
    ),
    Choice(
        "admission",
        ("whole prompt",),
        "a request joins when its prompt fits the global pool, a chunk the sliding one",
    ),
    Choice(
        "scheduling",
        ("first come, first served",),
        "the last to come gives its blocks up and waits in front",
    ),
    Choice(
        "longest-request",
        ("one block less than the global pool",),
        "so that the copy of a block always has room",
    ),
    Choice("reset", ("refused while somebody runs",), "an active entry cannot be forgotten"),
    Choice("block-size", ("one for both pools",), "a column of either pool covers the same tokens"),
)

AXES = {
    "window": "W − 1; with window_tail=W: W",
    "recurrent": "no recurrent layers",
    "last token": "one token",
    "group miss": "shortened to where both pools have what is needed",
    "duplicate": "the request adopts the block of the tree and frees its own",
    "eviction": (
        "LRU of entries not in use, from the leaves; the sliding pool by itself, leaving a hole"
    ),
    "publication": "after the forward pass",
    "compaction": "none",
}
"""Where the policy stands on the axes in which systems differ."""
