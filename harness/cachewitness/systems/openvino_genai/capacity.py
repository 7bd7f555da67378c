"""What a real pipeline derives from a configuration: the sizes of both pools, and how far snapshots
lie apart.

Each question is asked in a process of its own (`measure.py`). The bytes of both pools are told
together, and the blocks of states apart, so what a block weighs is found from three pools first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.engines.kind import CannotAsk, Derived
from cachewitness.systems.openvino_genai.settings import KV_BLOCK, NAME

WAIT = 120.0
"""Seconds for a question."""
INTERVAL_MAX = 256
"""KV blocks between two snapshots, at most, where the multiplier is unset."""
PROBED_MAX = 16384
"""Tokens that the models were made for."""
GROWS = "both pools grow on demand, so there is no size to be read"


def derives(model: Path) -> Derived:
    """Return how a pipeline with a model is asked what it derives from fields of
    `SchedulerConfig`.
    """
    return partial(_derived, str(model))


def _derived(model: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the capacity of both pools, under the names of the vectors of `sizing`."""
    fields = dict(config)
    weights = fields.pop("kv_block_bytes"), fields.pop("la_block_bytes", 0)
    if fields.pop("kv_block_size", KV_BLOCK) != KV_BLOCK or "release" in fields:
        raise CannotAsk(
            f"blocks of other than {KV_BLOCK} tokens, and other releases than the installed one"
        )
    if weights != _weights(model):
        raise CannotAsk("models whose blocks weigh other numbers of bytes")
    _ask_only_what_the_engine_refuses_itself(fields)
    answer = asked(model, fields)
    if "refused" in answer:
        raise UsageError(answer["refused"])
    if answer["grown"] != answer["bytes"]:
        raise CannotAsk(GROWS)
    states = answer["states"]
    (kv, la) = weights
    blocks, rest = divmod(answer["bytes"] - states * la, kv)
    if rest:
        raise RuntimeError(
            f"{answer['bytes']} bytes are no whole number of blocks beside {states} blocks of"
            " states"
        )
    interval = (
        _interval(model, fields.get("cache_interval_multiplier"))
        if la and fields.get("enable_prefix_caching")
        else None
    )
    return {
        "kv_blocks": blocks,
        "la_blocks": states,
        "kv_bytes": blocks * kv,
        "la_bytes": states * la,
        "multiplier": None if interval is None else interval // KV_BLOCK,
        "interval": interval,
        "dynamic": False,
    }


def _ask_only_what_the_engine_refuses_itself(fields: dict[str, Any]) -> None:
    """Take out what the machine has by itself; raise CannotAsk for numbers that the engine
    takes, and that then wrap around.
    """
    memory = fields.pop("total_memory_bytes", None)
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if memory is not None and fields.get("cache_size", 0) << 30 <= max(memory, here):
        raise CannotAsk("machines with less memory than this one")
    multiplier = fields.get("cache_interval_multiplier") or 0
    blocks = fields.get("num_kv_blocks", 0)
    if (1 << 31 <= multiplier * KV_BLOCK < 1 << 64) or blocks > 1 << 31:
        raise CannotAsk(
            "numbers that the engine takes, and that overflow later"
            " (docs/systems/openvino_genai-notes.md)"
        )


@cache
def _weights(model: str) -> tuple[int, int]:
    """Return the bytes of a KV block and of a state; the latter is 0 for attention alone."""
    one, two, more = (
        asked(model, {"num_kv_blocks": blocks, "max_num_seqs": states})
        for blocks, states in ((1, 1), (2, 1), (1, 2))
    )
    return two["bytes"] - one["bytes"], more["bytes"] - one["bytes"]


@cache
def _interval(model: str, multiplier: int | None) -> int:
    """Return the tokens between two snapshots, found in a pool that has room for two of them."""
    blocks = 2 * (multiplier or INTERVAL_MAX)
    fields: dict[str, Any] = {"num_kv_blocks": 2 * blocks + 8, "enable_prefix_caching": True}
    if multiplier is not None:
        fields["cache_interval_multiplier"] = multiplier
    answer = asked(model, fields, probe=min(blocks * KV_BLOCK + 40, PROBED_MAX))
    if "refused" in answer:
        raise RuntimeError(answer["refused"])
    found: int = answer["interval"]
    return found


def asked(
    model: str, fields: Mapping[str, Any], *, prompt: int = 1, probe: int = 0
) -> dict[str, Any]:
    """Ask a pipeline, in a process of its own, what becomes of fields of `SchedulerConfig`
    (`measure.Measured`).

    Raises RuntimeError, in one line, if there is no answer.
    """
    command = [sys.executable, "-m", "cachewitness.systems.openvino_genai.measure", model]
    try:
        ended = subprocess.run(
            command,
            input=json.dumps({**fields, "prompt": prompt, "probe": probe}),
            capture_output=True,
            text=True,
            timeout=WAIT,
        )
        answer = json.loads(ended.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{NAME} gave no answer to {dict(fields)} in {WAIT:g} s") from None
    except json.JSONDecodeError:
        last_line = ended.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(
            f"{NAME} ended with {ended.returncode} at {dict(fields)}: {last_line}"
        ) from None
    if not isinstance(answer, dict):
        raise RuntimeError(f"{NAME} printed {answer!r} at {dict(fields)}")
    return answer
