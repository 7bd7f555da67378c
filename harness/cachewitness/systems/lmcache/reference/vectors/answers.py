"""How the reference of LMCache answers test vectors: through its own checks, groups, server
and connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, Layout
from cachewitness.engines.kind import Answer
from cachewitness.systems.lmcache.reference.engine import layer_specs
from cachewitness.vectors.case import PolicyAnswers, rules_alone
from cachewitness.vectors.form import (
    LookupExpected,
    LookupInput,
    RetentionExpected,
    RetentionInput,
    SizingExpected,
    SizingInput,
)
from cachewitness_reference.lmcache import checks
from cachewitness_reference.lmcache.connector import LMCacheMPConnector
from cachewitness_reference.lmcache.fold import unfold
from cachewitness_reference.lmcache.groups import (
    KVLayerGroups,
    RegistrationError,
    create_engine_group_infos,
)
from cachewitness_reference.lmcache.server import LMCacheServer
from cachewitness_reference.lmcache.sizing import SizingError, settings
from cachewitness_reference.lmcache.spec import NEWEST, RELEASES
from cachewitness_reference.primitives import BlockId

PAGES = 256
"""Pages of the server's memory where a look-up is asked: enough for any of them."""
VALUES = ("block_size", "chunk_size", "budget", "budget_least", "budget_most")
NULL = BlockId(0)
WRITTEN = BlockId(1)
"""A block without content, and one with: which is of no account."""


def answer_sizing(question: SizingInput) -> SizingExpected:
    """Return the settings of a model or, of an engine that starts, what became of its groups."""
    try:
        if question.groups:
            return _started(question.groups, **question.config)
        derived = settings(**question.config)
    except (SizingError, checks.StartupError, RegistrationError) as error:
        raise UsageError(str(error)) from None
    return SizingExpected({name: getattr(derived, name) for name in VALUES})


def _started(
    specs: list[GroupSpec],
    *,
    chunk_size: int,
    max_num_batched_tokens: int,
    mamba_cache_mode: str = "align",
    separate_object_groups: bool = True,
    release: str = NEWEST,
) -> SizingExpected:
    layers = layer_specs(Layout("vector", specs), mamba_cache_mode)
    checks.validate_kv_cache_groups([list(group.values()) for group in layers], release)
    states = [spec.block_size for spec in specs if spec.kind == "recurrent"]
    checks.validate_mamba_step_alignment(max_num_batched_tokens, states, mamba_cache_mode, release)
    checks.validate_chunk_size(chunk_size, [spec.block_size for spec in specs])
    groups = _groups(specs, chunk_size, separate=separate_object_groups, mode=mamba_cache_mode)
    object_groups = [list(group.kernel_group_indices) for group in groups.object_groups]
    kept = [groups.kept_blocks(index) for index in range(len(specs))]
    return SizingExpected(
        {"object_groups": object_groups, "windows": groups.windows, "kept_blocks": kept}
    )


def _groups(
    specs: list[GroupSpec], chunk_size: int, *, separate: bool = True, mode: str = "align"
) -> KVLayerGroups:
    infos = create_engine_group_infos(layer_specs(Layout("vector", specs), mode))
    return KVLayerGroups(infos, chunk_size, separate_object_groups=separate)


def answer_lookup(question: LookupInput) -> LookupExpected:
    """Store the chunks that are there, leave the others null, and let the connector look a
    request up.
    """
    chunk = question.config["chunk_size"]
    separate = question.config.get("separate_object_groups", True)
    release = RELEASES[question.config.get("release", NEWEST)]
    groups = _groups(question.groups, chunk, separate=separate)
    server = LMCacheServer(groups, PAGES)
    reserve = release.reserves_last_token and any(
        spec.kind == "recurrent" for spec in question.groups
    )
    connector = LMCacheMPConnector(server, reserve_last_token=reserve)
    longest = max((end for ends in question.cached for end in ends), default=0)
    tokens = list(range(1, max(longest, question.tokens) + 1))
    server.start_session("writer")
    blocks = [
        _blocks(spec, ends, longest // chunk, chunk)
        for spec, ends in zip(question.groups, question.cached, strict=True)
    ]
    server.finish_store(server.store("writer", tokens, range(longest // chunk), blocks))
    connector.on_new_request("r", tokens[: question.tokens])
    resume = connector.get_num_new_matched_tokens("r", 0)
    hit = connector.trackers["r"].num_lmcache_hit_tokens // chunk
    needed = {
        index: unfold(hit, own)
        for group, own in zip(groups.object_groups, groups.windows, strict=True)
        for index in group.kernel_group_indices
    }
    columns = [list(needed[index]) for index in range(len(question.groups))]
    return LookupExpected(resume, columns=columns if hit else [])


def _blocks(spec: GroupSpec, ends: list[int], chunks: int, chunk: int) -> list[BlockId]:
    """Return a group's blocks by column: those of a chunk that is there are written, those of
    another are null.
    """
    per_chunk = chunk // spec.block_size
    return [
        WRITTEN if (index + 1) * chunk in ends else NULL
        for index in range(chunks)
        for _ in range(per_chunk)
    ]


def answer_retention(question: RetentionInput) -> RetentionExpected:
    """Return the chunks that a hit needs of a group."""
    groups = _groups(question.groups, question.config["chunk_size"])
    (window,) = (
        own
        for group, own in zip(groups.object_groups, groups.windows, strict=True)
        if question.group in group.kernel_group_indices
    )
    return RetentionExpected(list(unfold(question.stop, window)))


def answers(options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return who answers each kind of question."""
    known: dict[str, Any] = {
        "sizing": answer_sizing,
        "lookup": answer_lookup,
        "retention": answer_retention,
    }
    return rules_alone(known, options, by_release=("sizing", "lookup"))


ANSWERS = PolicyAnswers(reference=answers)
