"""Asks a cache manager of vLLM's shape: its pool is given the keys of a vector, its own look-up,
mask and split answer.

Keys are put under blocks by the pool's `cache_full_blocks` and `cache_partial_block`, as the
manager itself does it. Arguments go by name, each to the releases that know it, because signatures
differ.

Source of the interface: vLLM 0.33.0, `v1/core/kv_cache_manager.py`, `block_pool.py`,
`single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import GroupSpec, Layout, Submit, TraceHeader
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import adapter, core
from cachewitness.engines.kind import Answer, CannotAsk
from cachewitness.engines.registry import EngineSpec, kinds
from cachewitness.engines.version_check import takes
from cachewitness.vectors.case import PolicyAnswers
from cachewitness.vectors.form import (
    LookupExpected,
    LookupInput,
    RetentionExpected,
    RetentionInput,
    SizingExpected,
    SizingInput,
    SplitExpected,
    SplitInput,
)

PAGES = 512
"""Blocks in the pool where a vector says nothing of it: enough for any of them."""


def answers(
    open_engine: Callable[[TraceHeader], Engine], *, one_release: bool = False
) -> Mapping[str, Answer]:
    """Return who answers each kind of question; `open_engine` opens the engine that is asked.

    `one_release`: the engine is the release that it is, so a question about another one is not
    asked.
    """
    asked = _Asked(open_engine, one_release)
    return {
        "sizing": asked.sizing,
        "lookup": asked.lookup,
        "retention": asked.retention,
        "split": asked.split,
    }


class _Asked:
    """An engine, opened anew for each question."""

    def __init__(self, open_engine: Callable[[TraceHeader], Engine], one_release: bool) -> None:
        self._open = open_engine
        self._one_release = one_release

    def sizing(self, question: SizingInput) -> SizingExpected:
        """Return the sizes that the manager settles on, and the blocks that a new request of
        `tokens` tokens needs.
        """
        config = dict(question.config)
        pages = config.pop("pages", PAGES)
        tokens = config.pop("tokens", 0)
        engine = self._engine(question.groups, config, pages)
        rules = engine.header.rules
        coordinator = core(engine).coordinator
        values = {
            "alignment": rules.alignment,
            "eagle_drop_tokens": rules.eagle_drop_tokens,
            "hash_block_size": coordinator.block_pool.hash_block_size,
            "retention_interval": rules.retention.interval if rules.retention.groups else None,
            "scheduler_block_size": coordinator.scheduler_block_size,
        }
        if tokens:
            values["blocks_for_tokens"] = _named(
                coordinator,
                "get_num_blocks_to_allocate",
                request_id="r",
                num_tokens=tokens,
                new_computed_blocks=tuple([] for _ in question.groups),
                num_encoder_tokens=0,
                total_computed_tokens=0,
                num_local_computed_tokens=0,
                num_tokens_main_model=tokens,
                apply_admission_cap=True,
            )
        return SizingExpected(values)

    def lookup(self, question: LookupInput) -> LookupExpected:
        """Give the pool the keys of the question and look the request up."""
        engine = self._engine(question.groups, question.config)
        manager = core(engine)
        request = _request(engine, question.tokens)
        longest = max((length for lengths in question.cached for length in lengths), default=0)
        writer = _request(engine, longest, "w") if longest else None
        for group, lengths in enumerate(question.cached):
            for length in lengths:
                _plant(manager, writer, group, question.groups[group].block_size, length)
        manager.new_step_starts()
        blocks, resume, shared_prefix_boundary = manager.get_computed_blocks(request)
        columns = [
            [column for column, block in enumerate(table) if not block.is_null]
            for table in blocks.blocks
        ]
        return LookupExpected(resume, shared_prefix_boundary, columns if resume else [])

    def retention(self, question: RetentionInput) -> RetentionExpected:
        """Ask the manager of the group for its mask; no mask keeps every column."""
        engine = self._engine(question.groups, question.config)
        manager = core(engine).coordinator.single_type_managers[question.group]
        interval = engine.header.rules.retention.interval
        mask = _named(
            manager,
            "reachable_block_mask",
            columns=range(question.first, question.stop),
            reachable=question.reachable,
            start_block=question.first,
            end_block=question.stop,
            alignment_tokens=manager.cache_hit_alignment_tokens,
            kv_cache_spec=manager.kv_cache_spec,
            use_eagle=manager.use_eagle,
            retention_interval=interval,
            reachable_boundaries=question.reachable,
        )
        columns = range(question.first, question.stop)
        return RetentionExpected([c for c in columns if mask is None or mask[c - question.first]])

    def split(self, question: SplitInput) -> SplitExpected:
        """Ask the scheduler's rule how many tokens a request may compute."""
        engine = self._engine(question.groups, question.config)
        if adapter(engine).split is None:
            return SplitExpected(question.asked)
        request = _request(engine, question.prompt)
        for token in range(question.known - question.prompt):
            request.append_output_token_ids(token + 1)
        request.num_computed_tokens = question.start
        request.shared_prefix_boundary = question.shared_prefix_boundary
        return SplitExpected(adapter(engine).split(request, question.asked, 0))

    def _engine(
        self, groups: list[GroupSpec], config: Mapping[str, Any], pages: int = PAGES
    ) -> Driver:
        if self._one_release and "release" in config:
            raise CannotAsk(
                f"questions about release {config['release']}, which this engine may not be"
            )
        if self._one_release and _out_of_range(groups, config, pages):
            raise CannotAsk(
                "numbers out of range, which vLLM's configuration refuses before there is a cache"
                " to ask"
            )
        header = TraceHeader("vector", Layout("vector", list(groups)), pages, options=dict(config))
        engine = self._open(header)
        assert isinstance(engine, Driver)
        return engine


def _out_of_range(groups: list[GroupSpec], config: Mapping[str, Any], pages: int) -> bool:
    numbers = [pages - 1, *(group.block_size for group in groups)]
    numbers += [group.window for group in groups if group.kind == "sliding"]
    numbers += [
        config.get("max_num_batched_tokens", 1),
        config.get("hash_block_size", 1),
        1 - config.get("watermark", 0),
    ]
    return min(numbers) <= 0


def _request(engine: Driver, tokens: int, name: str = "r") -> Any:
    if tokens < 1:
        raise UsageError(f"tokens ({tokens}): a request has at least one")
    return adapter(engine).new_request(Submit(name, f"text:{tokens}"), list(range(1, tokens + 1)))


def _plant(manager: Any, writer: Any, group: int, block_size: int, length: int) -> None:
    """Let a block of its own be hit as the first `length` tokens of the writer, and free it."""
    pool = manager.coordinator.block_pool
    (block,) = pool.get_new_blocks(1)
    column = -(-length // block_size) - 1
    if length % block_size:
        _named(
            pool,
            "cache_partial_block",
            request=writer,
            block=block,
            num_tokens=length,
            kv_cache_group_id=group,
            block_size=block_size,
        )
    else:
        table = [pool.null_block] * column + [block]
        pool.cache_full_blocks(writer, table, column, column + 1, block_size, group)
    pool.free_blocks([block])


def _named(owner: Any, method: str, **offered: Any) -> Any:
    """Call a method with those of the arguments that its class knows; the object's own may be a
    patched one.
    """
    known = getattr(type(owner), method)
    return getattr(owner, method)(
        **{name: value for name, value in offered.items() if takes(known, name)}
    )


def _reference(options: Mapping[str, str]) -> Mapping[str, Answer]:
    return answers(EngineSpec(kinds()["reference"], dict(options), "reference").open)


ANSWERS = PolicyAnswers(reference=_reference, of_shape=partial(answers, one_release=True))
