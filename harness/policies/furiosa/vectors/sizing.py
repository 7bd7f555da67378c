"""How memory is split between the global and the sliding pool.

`config`: `kv_bytes` of memory; `block_size`, `window` (the query counted) and `max_model_len` in tokens; layers of either kind,
and bytes of one token in one layer of either kind; `environment`, what EXPECTED_AVERAGE_SEQ_LENGTH is set to (left out: unset);
`default_ratio`, for which length memory is split if it is unset.
"""

from __future__ import annotations

from typing import Any

from harness.vectors.case import Case
from harness.vectors.form import SizingInput

MODEL: dict[str, Any] = {
    "kv_bytes": 2**30,
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


def cases() -> list[Case]:
    """Return every question."""
    return [*_lengths(), *_defaults(), *_windows(), *_refusals()]


def _case(name: str, comment: str, flag: str, config: dict[str, Any], **more: Any) -> Case:
    return Case(f"sizing/{name}", comment, [flag], SizingInput(config | more), acceptable=True)


def _lengths() -> list[Case]:
    return [
        *(
            _case(
                f"expected/{n}",
                f"split for sequences of {n} tokens, a window of 1024",
                "expected-length",
                MODEL,
                environment=str(n),
            )
            for n in (1, 15, 16, 17, 1023, 1024, 1025, 1040, 1041, 8192, 32767, 32768)
        ),
        _case("expected/beyond", "no sequence is longer than max_model_len", "expected-length", MODEL, environment="1000000"),
        _case("expected/leading-zeros", "a decimal integer, zeros in front", "expected-length", MODEL, environment="0008192"),
    ]


def _defaults() -> list[Case]:
    return [
        _case("default/longest", "unset: for the longest sequence", "split", MODEL),
        _case("default/per-token", "unset: a token needs as much of either pool", "split", MODEL, default_ratio="per_token"),
        _case("default/short-model", "a model that is no longer than its window", "split", MODEL, max_model_len=1024),
        _case("default/one-block", "one block of each kind, exactly", "split", SMALL, kv_bytes=32, max_model_len=16, window=16),
        _case("default/one-byte-over", "and a byte over", "split", SMALL, kv_bytes=33, max_model_len=16, window=16),
        _case("default/unequal-layers", "a sliding layer weighs twice as much", "split", SMALL, sliding_bytes_per_token=2),
    ]


def _windows() -> list[Case]:
    return [
        _case(
            f"window/{w}",
            f"a window of {w}: {w - 1} tokens before the next one, blocks of 16",
            "window-straddles",
            SMALL,
            window=w,
            environment="256",
        )
        for w in (1, 2, 16, 17, 18, 32, 33, 240, 241, 242, 256)
    ]


def _refusals() -> list[Case]:
    def refused(name: str, comment: str, flag: str, field: str, words: str = "", **more: Any) -> Case:
        return Case(f"sizing/refused/{name}", comment, [flag], SizingInput(MODEL | more), refused=field, words=words)

    must = f"{VARIABLE} must be a positive integer"
    return [
        *(
            refused(name, f"the variable is {text!r}", "bad-config", VARIABLE, must, environment=text)
            for name, text in (
                ("zero", "0"),
                ("negative", "-1"),
                ("empty", ""),
                ("words", "long"),
                ("fraction", "8192.5"),
                ("hex", "0x2000"),
            )
        ),
        refused("beyond-63-bits", "2^63 tokens", "overflow", VARIABLE, must, environment=str(2**63)),
        refused("no-memory", "no memory", "bad-config", "kv_bytes", kv_bytes=0),
        refused("too-little", "memory for less than a block of each kind", "split", "kv_bytes", kv_bytes=4096),
        refused("memory-2-63", "2^63 bytes", "overflow", "kv_bytes", kv_bytes=2**63),
        refused("window-of-nothing", "a window of 0", "bad-config", "window", window=0),
        refused("no-global-layers", "a model without global layers", "bad-config", "global_layers", global_layers=0),
        refused("unknown-default", "a default that there is not", "bad-config", "default_ratio", default_ratio="half"),
    ]
