"""`plan vllm` beside vLLM's own code: drawn configurations and flags, no difference allowed.

`CACHEWITNESS_PLAN_DRAWS` is how many are drawn (120 by default).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.plan import sources
from cachewitness.plan.serving import rank_of
from cachewitness.systems.vllm.reference.plan import Request
from cachewitness.systems.vllm.reference.server import Limits, gib, started_of
from cachewitness.systems.vllm.source import load
from cachewitness_reference.vllm.planning import Started
from suites.support.real_vllm import REAL, SOURCE
from suites.support.vllm_sized import Drawn, Server, Sized, draw

DRAWS = int(os.environ.get("CACHEWITNESS_PLAN_DRAWS", "120"))
NEEDED = re.compile(r"\(([0-9.]+) GiB KV cache is needed")
ESTIMATED = re.compile(r"estimated maximum model length is ([0-9]+)")


def planned(drawn: Drawn, folder: Path) -> tuple[int, Started]:
    """Return our block and what we say a server has."""
    path = folder / "config.json"
    path.write_text(json.dumps(drawn.config))
    request = Request(
        str(path),
        block_size=drawn.block_size,
        checkpoint_alignment=drawn.exports,
        tensor_parallel_size=drawn.ranks,
        decode_context_parallel_size=drawn.context_ranks,
        kv_cache_dtype=drawn.kv_cache_dtype,
        mamba_cache_dtype=drawn.mamba_cache_dtype,
        mamba_ssm_cache_dtype=drawn.mamba_ssm_cache_dtype,
        enable_prefix_caching=drawn.caching,
        speculative_method=("mtp" if drawn.draft_layers else "ngram") if drawn.drafts else "",
        num_speculative_tokens=drawn.drafts,
    )
    model = sources.model(str(path))
    serving = request.serving(model)
    rank = rank_of(model, serving, "--config")
    limits = Limits(drawn.memory, drawn.longest, batched_tokens=drawn.batched)
    return rank.block, started_of(rank, serving, limits)


def compare(drawn: Drawn, sized: Sized, block: int, started: Started) -> list[str]:
    """Return the differences, each by name."""
    pairs: list[tuple[str, Any, Any]] = [
        ("block", sized.block, block),
        ("groups", sized.groups, tuple(sorted(len(each.layers) for each in started.groups))),
        ("starts", not sized.refused, started.starts),
    ]
    if not sized.refused:
        pairs += [
            ("blocks", sized.blocks, started.blocks),
            ("tokens", sized.size_tokens, started.size_tokens),
            ("concurrency", sized.concurrency, started.blocks / started.request_blocks),
        ]
    elif needed := NEEDED.search(sized.refused):
        estimated = ESTIMATED.search(sized.refused)
        longest = int(estimated.group(1)) if estimated else 0
        pairs += [
            ("needed", needed.group(1), gib(started.needed_bytes)),
            ("longest", longest, started.longest_that_fits),
        ]
    return [f"{name}: vLLM {own}, plan {ours}" for name, own, ours in pairs if own != ours]


@pytest.mark.parametrize("start", [pytest.param(0, marks=REAL)])
def test_drawn_configurations_and_flags_come_to_the_same(start: int, tmp_path: Path) -> None:
    server = Server(load(SOURCE))
    differences: list[str] = []
    judged = 0
    for seed in range(start, start + DRAWS):
        drawn = draw(seed)
        try:
            sized = server.size(drawn)
        except (AssertionError, ValueError) as error:
            with pytest.raises(UsageError):
                planned(drawn, tmp_path)
            assert "divisible" in str(error) or "divide" in str(error), (seed, error)
            continue
        judged += 1
        found = compare(drawn, sized, *planned(drawn, tmp_path))
        differences += [f"seed {seed}, {drawn.config['model_type']}: {each}" for each in found]
    assert differences[:5] == []
    assert judged > DRAWS // 2
