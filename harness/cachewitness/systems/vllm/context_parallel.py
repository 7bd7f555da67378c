"""Decode context parallelism: the blocks of full attention lie in parts on several ranks.

A block of vLLM's scheduler then covers as many tokens as it has on a rank, times the ranks; states
and windows are whole on each. A layout names what such a block covers, and vLLM is given what one
rank has of it. Hits, keys, tables and copies are in the scheduler's blocks, as without ranks; which
tokens of a block a rank computes and keeps is not followed, so the worker has whole blocks.

Source: vLLM 0.33.0, `v1/core/kv_cache_utils.py` (`resolve_dcp_kv_block_size`,
`resolve_kv_cache_block_sizes`), `v1/core/kv_cache_coordinator.py`.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.build import settle
from cachewitness.systems.vllm.source import Source

SINCE = (0, 33)
"""The oldest release that has hybrid layouts over ranks in the form that is driven."""
MOST = 64


def ranks_of(text: str, header: TraceHeader, source: Source) -> int:
    """Return over how many ranks the blocks of full attention lie. Raises UsageError for what is no
    number of ranks, and for blocks that cannot be divided so.
    """
    if not text:
        return 1
    if not text.isdecimal() or not 1 < int(text) <= MOST:
        raise UsageError(
            f"--engine vllm:context_parallel={text}: give a number of ranks from 2 to {MOST}"
        )
    ranks = int(text)
    if source.is_before(SINCE):
        since = "{}.{}".format(*SINCE)
        raise UsageError(
            f"vLLM {source.version}: its context parallelism is driven from {since} on"
        )
    full = [group for group in header.layout.groups if group.kind == "full"]
    if not full:
        raise UsageError(
            f"--engine vllm:context_parallel={ranks}: layout {header.layout.name!r} has no full"
            " attention to lie on several ranks"
        )
    if odd := next((group.block_size for group in full if group.block_size % ranks), 0):
        raise UsageError(
            f"--engine vllm:context_parallel={ranks}: a block of {odd} tokens does not lie on"
            f" {ranks} ranks in equal parts"
        )
    return ranks


def divided(config: Any, header: TraceHeader, ranks: int) -> Any:
    """Return a KVCacheConfig with what one rank has of each block: a part of one of full attention,
    and all of any other. vLLM has windows over ranks for drafters, whose blocks are whole.
    """
    if ranks == 1:
        return config
    groups = []
    for group, described in zip(config.kv_cache_groups, header.layout.groups, strict=True):
        spec = group.kv_cache_spec
        on_a_rank = (
            {"block_size": spec.block_size // ranks}
            if described.kind == "full"
            else {"dcp_sharded": False}
        )
        groups.append(
            dataclasses.replace(group, kv_cache_spec=dataclasses.replace(spec, **on_a_rank))
        )
    return dataclasses.replace(config, kv_cache_groups=groups)


def spread(source: Source, whole: Any, config: Any, ranks: int) -> Any:
    """Return vLLM's configuration of the whole engine over so many ranks; `config` is the cache's,
    divided. The one that was given stays as it was.
    """
    if ranks == 1:
        return whole
    over = copy.copy(whole)
    over.parallel_config = copy.copy(whole.parallel_config)
    over.cache_config = copy.copy(whole.cache_config)
    settle(source, over.parallel_config, {"decode_context_parallel_size": ranks})
    if len(config.kv_cache_groups) == 1:
        alone = config.kv_cache_groups[0].kv_cache_spec.block_size
        settle(source, over.cache_config, {"block_size": alone})
    return over
