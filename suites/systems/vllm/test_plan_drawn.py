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
from cachewitness_reference.vllm.options import ConfigError
from cachewitness_reference.vllm.planning import Started
from suites.support.real_vllm import REAL, SOURCE
from suites.support.vllm_sized import Drawn, Server, Sized, draw

DRAWS = int(os.environ.get("CACHEWITNESS_PLAN_DRAWS", "120"))
NEEDED = re.compile(r"\(([0-9.]+) GiB KV cache is needed")
REFUSED = re.compile(
    "divisible|divide|DCP must be disabled|context parallelism|context-parallel|page size is not"
)
"""Ranks and pages that vLLM does not take, and a plan does not either."""
EMPTY = re.compile(r"must share one device backing|mixed page sizes \(\[\]\)|division or modulo")
"""What it says of a stage without caches."""
QUERIES = re.compile("Total number of attention heads|query heads per KV head")
"""Those that it refuses by the heads of queries, which a plan does not read."""
ESTIMATED = re.compile(r"estimated maximum model length is ([0-9]+)")


def planned(drawn: Drawn, folder: Path) -> tuple[int, Started]:
    """Return our block and what we say a server has."""
    path = folder / "config.json"
    path.write_text(json.dumps(drawn.config))
    beside = ""
    if drawn.drafter is not None:
        beside = str(folder / "drafter.json")
        Path(beside).write_text(json.dumps(drawn.drafter))
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
        speculative_method=_method(drawn),
        draft_config=beside,
        prefill_context_parallel_size=drawn.prefill_ranks,
        pipeline_parallel_size=drawn.stages,
        num_speculative_tokens=drawn.drafts,
    )
    model = sources.model(str(path))
    serving = request.serving(model)
    rank = rank_of(model, serving, "--config")
    limits = Limits(drawn.memory, drawn.longest, batched_tokens=drawn.batched)
    return rank.block, started_of(rank, serving, limits)


def _method(drawn: Drawn) -> str:
    if not drawn.drafts:
        return ""
    return "mtp" if drawn.draft_layers else "eagle3" if drawn.drafter else "ngram"


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
            ("longest", longest, started.estimated),
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
        except (AssertionError, ValueError, NotImplementedError) as error:
            if not QUERIES.search(str(error)):
                with pytest.raises((UsageError, ConfigError)):
                    planned(drawn, tmp_path)
                assert REFUSED.search(str(error)), (seed, error)
            continue
        if EMPTY.search(sized.refused):
            with pytest.raises(UsageError, match="--pipeline-parallel-size"):
                planned(drawn, tmp_path)
            continue
        judged += 1
        found = compare(drawn, sized, *planned(drawn, tmp_path))
        differences += [f"seed {seed}, {drawn.config['model_type']}: {each}" for each in found]
    assert differences[:5] == []
    assert judged > DRAWS // 2
