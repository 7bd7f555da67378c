"""Runs the scheduler and the cache manager of vllm-rbln under the ledger, without its platform.

`--engine vllm:source=SRC,scheduler_cls=vllm_rbln.v1.core.rbln_scheduler:RBLNScheduler,`
`prepare=rbln_sub_blocks:configure,observer=rbln_sub_blocks:SubBlockManager`, with a folder that
holds `vllm_rbln` on the path. Its platform needs `rebel`, which is not published; of it the
scheduler asks for a configuration, and for smaller parts of blocks than a chunk, for the device.

Beside vLLM's keys of whole blocks its manager keeps, by group, which blocks begin with which parts.
A hit may end inside a block: the scheduler has the worker copy the parts that are there.

Source: vllm-rbln 0.12.0, `v1/core/rbln_kv_cache_manager.py`, `v1/core/rbln_scheduler.py`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from cachewitness.core.events import Move, Rules
from cachewitness.engines.cache_state import Claim
from cachewitness.engines.observe import BlockPoolState, ObservedManager

SIZE = "CACHEWITNESS_RBLN_SUB_BLOCK"
"""The variable with the tokens of a part; left out: those of the largest chunk, as by default."""
KEPT = b"partial_block_"
"""How the names begin that keep blocks which are not full in the queue; nothing is found by them.
"""
Keys = dict[Hashable, Claim]


def configure(vllm_config: Any) -> None:
    """Give vLLM's configuration what vllm-rbln's platform adds to it, and say of the device that
    its chunks may span blocks.
    """
    size = os.environ.get(SIZE)
    config = importlib.import_module("vllm_rbln.config").RBLNConfig
    vllm_config.additional_config = config(sub_block_size=int(size) if size else None)
    platform = importlib.import_module("vllm.platforms").current_platform
    type(platform).is_cr13 = classmethod(lambda cls: True)


class SubBlockState(BlockPoolState):
    """The blocks of a manager that has keys of parts of blocks as well."""

    def __init__(self, manager: Any, group_of: Callable[[Any], int], aside: int) -> None:
        self._manager = manager
        self._claims: dict[tuple[int, int], list[tuple[bytes, Claim]]] = {}
        """By group and block: what was said of its parts, each under its hash."""
        self._last: dict[int, Keys] = {}
        self._rekeyed: set[int] = set()
        super().__init__(manager, group_of, aside)

    def indexed(self, request: Any) -> None:
        """Take note that parts of a request's blocks may have been indexed: each is said to hold
        the tokens that lie there by the request's table.
        """
        size = self._manager.sub_block_size
        tables = self._manager.coordinator.get_blocks(request.request_id)
        for info, row in zip(self._manager._group_infos, tables, strict=True):
            for column, block in enumerate(row):
                place = info.group_id, block.block_id
                hashes = info.sub_block_index._block_hashes.get(block.block_id)
                if hashes is None:
                    continue
                known = self._claims.get(place, [])
                self._claims[place] = [
                    known[index]
                    if index < len(known) and known[index][0] == name
                    else (
                        name,
                        Claim(column * info.block_size + (index + 1) * size, request.request_id),
                    )
                    for index, name in enumerate(hashes)
                ]

    def keys_of(self, page: int, known: Mapping[Hashable, Claim]) -> Mapping[Hashable, Claim]:
        """Return the keys of a block, of all of it and of its parts; nothing is found by the name
        that keeps it in the queue.
        """
        keys: Keys = {
            key: claim
            for key, claim in super().keys_of(page, known).items()
            if not (isinstance(key, bytes) and key.startswith(KEPT))
        }
        lengths = {claim.length for claim in keys.values()}
        parts = self._last.get(page, {})
        return keys | {key: part for key, part in parts.items() if part.length not in lengths}

    def _changed(self, moved: Iterable[tuple[int, int]] | None) -> Sequence[int]:
        now = self._parts()
        pages = now.keys() | self._last.keys()
        self._rekeyed = {page for page in pages if now.get(page) != self._last.get(page)}
        self._last = now
        return sorted(self._rekeyed.union(super()._changed(moved)))

    def _may_have_others(self, pages: Any) -> set[int]:
        parts = self._rekeyed.union(self._last)
        return super()._may_have_others(pages) | {page for page in pages if page in parts}

    def _parts(self) -> dict[int, Keys]:
        """Return the keys of the parts of each block, and forget what was said of others."""
        parts: dict[int, Keys] = {}
        indexed_claims: dict[tuple[int, int], list[tuple[bytes, Claim]]] = {}
        for info in self._manager._group_infos:
            group = info.group_id.to_bytes(4, "big")
            for page, hashes in info.sub_block_index._block_hashes.items():
                place = info.group_id, page
                indexed_claims[place] = self._claims[place]
                claims = dict(indexed_claims[place])
                parts.setdefault(page, {}).update({name + group: claims[name] for name in hashes})
        self._claims = indexed_claims
        return parts


class SubBlockManager(ObservedManager):
    """vllm-rbln's cache manager, observed."""

    shown_by = SubBlockState
    further = ("get_computed_blocks_sub_block", "release_sub_block_match", "release_copy_ops")

    def __init__(self, manager: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(manager, *args, **kwargs)
        core = manager.timed
        for name in ("_index_newly_cached_blocks", "_index_partial_block"):
            setattr(core, name, self._noting(core, name))

    def declared(self, rules: Rules) -> Rules:
        """Hits end with parts of blocks. Of each part routers are told once, whatever the number of
        blocks that begin with it; what a step has filled is indexed when its outputs were published
        (`RBLNScheduler.update_from_output`), and told with those of the next.
        """
        events = rules.key_events and replace(rules.key_events, once=True, late=True)
        return replace(rules, alignment=self.manager.sub_block_size, key_events=events)

    def _noting(self, core: Any, name: str) -> Callable[..., None]:
        """Return a method of the manager that indexes parts of a request's blocks as one that
        says whose they are.
        """

        def indexing(request: Any, *args: Any) -> None:
            getattr(type(core), name)(core, request, *args)
            self.state.indexed(request)  # type: ignore[union-attr]

        return indexing

    def do_pending_indexing(self) -> None:
        """Index what the step that is over has filled."""
        self.manager.do_pending_indexing()
        self._account(None, [])

    def get_computed_blocks_sub_block(self, request: Any, num_computed_tokens: int) -> Any:
        """Look for parts of the block behind a hit; a copy holds the blocks that have them."""
        match = self.manager.get_computed_blocks_sub_block(request, num_computed_tokens)
        if match is not None:
            hit, found = self._looked_up[request.request_id]
            sources = [part.src_block for part in match.group_matches]
            columns = [[*row, block] for row, block in zip(found.blocks, sources, strict=True)]
            longer = SimpleNamespace(blocks=columns)
            self._looked_up[request.request_id] = (hit + match.num_tokens, longer)
            groups = {block.block_id: group for group, block in enumerate(sources)}
            self.hold(sources, groups.__getitem__)
        return match

    def release_sub_block_match(self, match: Any) -> None:
        """Let go of what is not copied after all."""
        self.manager.release_sub_block_match(match)
        hit, found = self._looked_up[match.request.request_id]
        columns = SimpleNamespace(blocks=[row[:-1] for row in found.blocks])
        self._looked_up[match.request.request_id] = (hit - match.num_tokens, columns)
        self.released([part.src_block for part in match.group_matches])

    def release_copy_ops(self, ops: Sequence[Any]) -> None:
        """Let go of what was copied."""
        self.manager.release_copy_ops(ops)
        self.released([self._pool.blocks[op.src_block_id] for op in ops])

    def copies_told(self, output: Any) -> list[Move]:
        """Return the copies of parts of blocks."""
        return [
            Move(op.src_block_id, op.dst_block_id, tokens=op.num_tokens)
            for op in output.kv_cache_copy_ops
        ]
