"""What Furiosa-LLM is asked, and the bugs that the questions hunt."""

from __future__ import annotations

from typing import Any

from cachewitness.core.trace_format import GroupSpec
from cachewitness.vectors import scripts
from cachewitness.vectors.case import Case, case
from cachewitness.vectors.form import Flag, LookupInput, RetentionInput, SizingInput
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

FLAGS: dict[str, Flag] = {
    "split": Flag(
        "the two pools are larger than the memory, or one runs out long before the other"
    ),
    "window-straddles": Flag("a window that begins inside a block is given a block too few"),
    "expected-length": Flag("EXPECTED_AVERAGE_SEQ_LENGTH is not read, or read as something else"),
    "bad-config": Flag("a value that is no positive integer is accepted"),
    "overflow": Flag("a number beyond 63 bits wraps around"),
    "token-match": Flag("a match is rounded to blocks, or goes a token too far"),
    "last-token": Flag("a prompt that is stored whole leaves nothing to compute"),
    "window-edge": Flag(
        "the window behind a hit is counted with one token too few, or one block too many"
    ),
    "hole": Flag("a match whose window has a hole is reused, or not reused where it is valid"),
    "released-early": Flag("a sliding block is given back while the next query still reads it"),
    "released-late": Flag("a sliding block that no query reads any more is kept"),
    "shared-write": Flag("a request writes into a block behind which somebody else's tokens lie"),
    "stale": Flag("content of before a reset, or of other weights, is reused"),
    "identity": Flag("content of another salt, adapter or image is reused"),
    "counts": Flag("blocks are lost, or given back twice"),
    "lost-work": Flag("a preempted request goes on from what it no longer holds"),
    "active-evicted": Flag("an entry that somebody's sequence runs through is evicted"),
}


# --- sizing ---------------------------------------------------------------------------------------
# How memory is split between the global and the sliding pool. `config`: `kv_bytes` of memory;
# `block_size`, `window` (the query counted) and `max_model_len` in tokens; layers of either kind,
# and bytes of one token in one layer of either kind; `environment`, what
# EXPECTED_AVERAGE_SEQ_LENGTH is set to (left out: unset); `default_ratio`, for which length memory
# is split if it is unset.


MODEL: dict[str, Any] = {
    "kv_bytes": 2**31,
    "block_size": 16,
    "global_layers": 10,
    "sliding_layers": 50,
    "global_bytes_per_token": 4096,
    "sliding_bytes_per_token": 4096,
    "window": 1024,
    "max_model_len": 32768,
}
"""About the shape of a model with a global layer in six."""

SMALL = MODEL | {
    "kv_bytes": 64 * 1000,
    "global_layers": 1,
    "sliding_layers": 1,
    "global_bytes_per_token": 1,
    "sliding_bytes_per_token": 1,
}
"""Blocks of 16 bytes of either kind: 4000 in all."""

VARIABLE = "EXPECTED_AVERAGE_SEQ_LENGTH"


def sizing_cases() -> list[Case]:
    """Return every question."""
    return [*_sizing_lengths(), *_sizing_defaults(), *_sizing_windows(), *_sizing_refusals()]


def _sizing(name: str, comment: str, flag: str, config: dict[str, Any], **more: Any) -> Case:
    return case("sizing", name, comment, flag, SizingInput(config | more), acceptable=True)


def _sizing_lengths() -> list[Case]:
    return [
        *(
            _sizing(
                f"expected/{n}",
                f"split for sequences of {n} tokens, a window of 1024",
                "expected-length",
                MODEL,
                environment=str(n),
            )
            for n in (1, 15, 16, 17, 1023, 1024, 1025, 1040, 1041, 8192, 32767, 32768)
        ),
        _sizing(
            "expected/beyond",
            "no sequence is longer than max_model_len",
            "expected-length",
            MODEL,
            environment="1000000",
        ),
        _sizing(
            "expected/leading-zeros",
            "a decimal integer, zeros in front",
            "expected-length",
            MODEL,
            environment="0008192",
        ),
    ]


def _sizing_defaults() -> list[Case]:
    return [
        _sizing("default/longest", "unset: for the longest sequence", "split", MODEL),
        _sizing(
            "default/per-token",
            "unset: a token needs as much of either pool",
            "split",
            MODEL,
            default_ratio="per_token",
        ),
        _sizing(
            "default/short-model",
            "a model that is no longer than its window",
            "split",
            MODEL,
            max_model_len=1024,
        ),
        _sizing(
            "default/one-block",
            "one block of each kind, exactly",
            "split",
            SMALL,
            kv_bytes=32,
            max_model_len=16,
            window=16,
        ),
        _sizing(
            "default/one-byte-over",
            "and a byte over",
            "split",
            SMALL,
            kv_bytes=33,
            max_model_len=16,
            window=16,
        ),
        _sizing(
            "default/unequal-layers",
            "a sliding layer weighs twice as much",
            "split",
            SMALL,
            sliding_bytes_per_token=2,
        ),
    ]


def _sizing_windows() -> list[Case]:
    return [
        _sizing(
            f"window/{w}",
            f"a window of {w}: {w - 1} tokens before the next one, blocks of 16",
            "window-straddles",
            SMALL,
            window=w,
            environment="256",
        )
        for w in (1, 2, 16, 17, 18, 32, 33, 240, 241, 242, 256)
    ]


def _sizing_refusals() -> list[Case]:
    def refused(
        name: str, comment: str, flag: str, field: str, words: str = "", **more: Any
    ) -> Case:
        return case(
            "sizing",
            f"refused/{name}",
            comment,
            flag,
            SizingInput(MODEL | more),
            refused=field,
            words=words,
        )

    must = f"{VARIABLE} must be a positive integer"
    return [
        *(
            refused(
                name, f"the variable is {text!r}", "bad-config", VARIABLE, must, environment=text
            )
            for name, text in (
                ("zero", "0"),
                ("negative", "-1"),
                ("empty", ""),
                ("words", "long"),
                ("fraction", "8192.5"),
                ("hex", "0x2000"),
            )
        ),
        refused(
            "beyond-63-bits", "2^63 tokens", "overflow", VARIABLE, must, environment=str(2**63)
        ),
        refused("no-memory", "no memory", "bad-config", "kv_bytes", kv_bytes=0),
        refused(
            "too-little",
            "memory for less than a block of each kind",
            "split",
            "kv_bytes",
            kv_bytes=4096,
        ),
        refused(
            "not-one-sequence",
            "memory for less than one sequence of 32768 tokens",
            "split",
            "kv_bytes",
            kv_bytes=2**30,
        ),
        refused("memory-2-63", "2^63 bytes", "overflow", "kv_bytes", kv_bytes=2**63),
        refused("window-of-nothing", "a window of 0", "bad-config", "window", window=0),
        refused(
            "no-global-layers",
            "a model without global layers",
            "bad-config",
            "global_layers",
            global_layers=0,
        ),
        refused(
            "unknown-default",
            "a default that there is not",
            "bad-config",
            "default_ratio",
            default_ratio="half",
        ),
    ]


# --- lookup ---------------------------------------------------------------------------------------
# What of a stored prefix a request can reuse: blocks of 16 tokens, a window of 33 unless a name
# says otherwise. `cached` of the global group: the ends of its blocks, the last one perhaps inside
# its block; of the sliding group: the ends of those blocks that still have a sliding block.
# `config`: options that the document leaves open.


BLOCK = 16


def lookup_cases() -> list[Case]:
    """Return every question."""
    return [*_lookup_lengths(), *_lookup_windows(), *_lookup_holes(), *_lookup_options()]


def ends(tokens: int) -> list[int]:
    """Return the ends of the blocks of so many tokens, the last one where they end."""
    return [*range(BLOCK, tokens, BLOCK), tokens] if tokens else []


def _lookup(
    name: str,
    comment: str,
    flags: str,
    cached: list[list[int]],
    tokens: int,
    window: int = 33,
    **config: Any,
) -> Case:
    groups = [GroupSpec("full", BLOCK), GroupSpec("sliding", BLOCK, window=window)]
    return case("lookup", name, comment, flags, LookupInput(groups, tokens, cached, config))


def _lookup_lengths() -> list[Case]:
    return [
        *(
            _lookup(
                f"stored-100/{n}",
                f"100 tokens are stored, the prompt has {n}",
                "token-match last-token",
                [ends(100)] * 2,
                n,
            )
            for n in (1, 2, 16, 17, 99, 100, 101, 112, 200)
        ),
        *(
            _lookup(
                f"stored-96/{n}",
                f"six whole blocks are stored, the prompt has {n}",
                "token-match last-token",
                [ends(96)] * 2,
                n,
            )
            for n in (95, 96, 97)
        ),
        _lookup("stored-nothing", "nothing is stored", "token-match", [[], []], 100),
        _lookup("stored-one", "one token is stored", "token-match", [[1], [1]], 100),
    ]


def _lookup_windows() -> list[Case]:
    return [
        _lookup(
            f"window/{window}-with-{16 * have}",
            f"a window of {window} reads {window - 1} before the query at 96; there are the last"
            f" {16 * have}",
            "window-edge",
            [ends(96), ends(96)[-have:]],
            200,
            window,
        )
        for window, have in (
            (1, 1),
            (2, 1),
            (16, 1),
            (17, 1),
            (18, 1),
            (18, 2),
            (33, 1),
            (33, 2),
            (34, 2),
            (34, 3),
            (97, 6),
            (98, 5),
            (98, 6),
        )
    ]


def _lookup_holes() -> list[Case]:
    return [
        _lookup("hole/last", "the last sliding block is gone", "hole", [ends(96), [64, 80]], 200),
        _lookup(
            "hole/last-but-one",
            "the one before it is gone: nothing later is of use",
            "hole",
            [ends(96), [48, 64, 96]],
            200,
        ),
        _lookup(
            "hole/all-but-first",
            "only the first block's is there: less than a window",
            "hole window-edge",
            [ends(96), [16]],
            200,
        ),
        _lookup(
            "hole/first-two",
            "the first two: a window from the start",
            "hole window-edge",
            [ends(96), [16, 32]],
            200,
        ),
        _lookup("hole/middle", "an earlier window is whole", "hole", [ends(96), [32, 48, 96]], 200),
        _lookup("hole/all", "no sliding block is left", "hole", [ends(96), []], 200),
        _lookup(
            "hole/prompt-ends-before",
            "the hole lies behind the prompt",
            "hole last-token",
            [ends(96), [16, 32, 48]],
            50,
        ),
        _lookup(
            "hole/inside-the-last",
            "the prompt ends inside the last block that has one",
            "hole token-match",
            [ends(96), [32, 48, 64]],
            60,
        ),
    ]


def _lookup_options() -> list[Case]:
    return [
        *(
            _lookup(
                f"by-block/{n}",
                f"hits end with blocks: 100 are stored, the prompt has {n}",
                "token-match",
                [ends(100)] * 2,
                n,
                hit_granularity="block",
            )
            for n in (96, 97, 98, 200)
        ),
        *(
            _lookup(
                f"tail-of-w/{have}",
                f"W tokens are kept behind a boundary, not W − 1: there are {16 * have}",
                "window-edge",
                [ends(96), ends(96)[-have:]],
                200,
                33,
                window_tail="W",
            )
            for have in (2, 3)
        ),
        _lookup(
            "caching-off", "caching is off", "token-match", [[], []], 100, enable_caching=False
        ),
    ]


# --- retention ------------------------------------------------------------------------------------
# Cleanup: which sliding blocks of 16 tokens a request still holds after so many tokens, computed
# `chunk` at a time. A window of one token reads nothing behind it, and the reference keeps a block
# all the same: another engine need not.


def retention_cases() -> list[Case]:
    """Return every question."""
    return [
        *(
            _retention(f"after-{n}", f"a window of 33 after {n} tokens", 33, n)
            for n in (1, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97)
        ),
        *(
            _retention(f"window-{w}", f"a window of {w} after 96 tokens", w, 96)
            for w in (1, 2, 16, 17, 18, 32, 34, 96, 97, 98)
        ),
        *(
            _retention(
                f"window-{w}-of-w",
                f"W tokens are kept, not W − 1: {w}, after 96 tokens",
                w,
                96,
                window_tail="W",
            )
            for w in (16, 17, 32, 33)
        ),
        *(
            _retention(f"by-{c}", f"the same whatever the chunks: {c} at a time", 33, 96, chunk=c)
            for c in (1, 16, 40)
        ),
    ]


def _retention(name: str, comment: str, window: int, tokens: int, **config: Any) -> Case:
    groups = [GroupSpec("full", BLOCK), GroupSpec("sliding", BLOCK, window=window)]
    asked = RetentionInput(groups, 1, 0, -(-tokens // BLOCK), tokens=tokens, config=config)
    flags = ["released-early", "released-late", "window-edge"]
    return Case(f"retention/{name}", comment, flags, asked, acceptable=window == 1)


# --- lifecycle ------------------------------------------------------------------------------------
# Whole lives: prompts served twice around blocks and windows, continued conversations, and
# scenarios.


STORIES: dict[str, list[str]] = {
    "exact-replay": ["last-token", "token-match"],
    "siblings-in-a-block": ["shared-write", "token-match"],
    "siblings-at-a-block": ["shared-write"],
    "preempt-and-resume": ["lost-work"],
    "abort-and-retry": ["counts"],
    "one-group-evicted": ["hole", "active-evicted"],
    "reset-with-running": ["stale"],
    "new-weights": ["stale"],
    "identities": ["identity"],
    "long-decode": ["released-early", "released-late"],
    "crowded": ["counts", "active-evicted"],
}
"""What each scenario hunts."""


def lifecycle_cases() -> list[Case]:
    """Return every question."""
    layout = layouts.load("full-swa")
    configuration = Configuration(layout, {"expected_average_seq_length": 64}, "furiosa")
    blocks = Configuration(
        layout, {"expected_average_seq_length": 64, "hit_granularity": "block"}, "furiosa"
    )
    freed = Configuration(
        layout, {"expected_average_seq_length": 64, "out_of_window": "freed"}, "furiosa"
    )
    return [
        *scripts.replays(
            configuration,
            "manager",
            (1, 2, 16, 17, 31, 32, 33, 47, 48, 49),
            ["last-token", "token-match"],
        ),
        *scripts.replays(blocks, "manager", (16, 17, 32, 33), ["last-token", "token-match"]),
        *scripts.turns(configuration, "manager", (1, 15, 16, 32), ["token-match", "shared-write"]),
        *scripts.siblings(freed, "manager", 97, (64, 80, 88, 95, 96), ["hole", "window-edge"]),
        *scripts.stories(configuration, "manager", STORIES),
        *scripts.stories(
            configuration, "scheduler", STORIES, ("crowded", "exact-replay", "preempt-and-resume")
        ),
    ]
