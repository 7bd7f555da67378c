"""What lmdeploy's paging shows of itself: block tables, nodes of the prefix trie, checkpoints of
states, and the books of its allocators.

A page of attention is a physical block, a page of states a row of the state cache; page 0 of either
is lmdeploy's own, for inputs that nobody asked for. A node of the trie has one whole block of a
prefix. A checkpoint lies at a node and has the state after so many tokens, and where these end
inside a block a copy of that block's beginning (the frozen block).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from cachewitness.engines.cache_state import ABSENT, Claim, Count, KeyId, Tables
from cachewitness.systems.lmdeploy.build import Built

ATTENTION, RECURRENT = 0, 1
"""The groups, each with a pool of its number."""


class Shown:
    """Reads lmdeploy's own books."""

    def __init__(self, built: Built) -> None:
        self._scheduler = built.scheduler
        self._asked = built.asked
        self.sequences: dict[str, Any] = {}
        """lmdeploy's records of those who have come and not ended."""
        self._holders = WeakKeyDictionary[Any, str]()
        self._numbers = count()

    # --- requests ---------------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the blocks of a request by column, and the row of its state."""
        seq = self.sequences.get(r)
        if seq is None:
            return []
        blocks = self._scheduler.block_manager.get_block_table(seq).tolist()
        dropped = seq.num_ignored_history // self._asked.block_size if blocks else 0
        tables = [[ABSENT] * dropped + blocks]
        if self._asked.recurrent:
            tables.append([seq.logical_state] if seq.logical_state >= 0 else [])
        return tables

    # --- the trie ---------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Any]:
        """Yield the nodes of the trie, the roots of its adapters among them."""
        waiting = list(self._scheduler.block_trie._roots.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node

    def checkpoints(self) -> Iterator[Any]:
        """Yield the nodes that have a checkpoint, or the place for one."""
        return (node for node in self.nodes() if node.state_checkpoint is not None)

    def places(self, node: Any) -> list[tuple[int, int]]:
        """Return where the checkpoint of a node lies: (group, page)."""
        checkpoint = node.state_checkpoint
        found = [(RECURRENT, int(checkpoint.slot))]
        if checkpoint.frozen_block_id >= 0:
            found.append((ATTENTION, self._page(checkpoint.frozen_block_id)))
        return found

    def keys(self) -> dict[KeyId, Claim]:
        """Return a key for each node, and for each place of a checkpoint that can be hit."""
        found = dict[KeyId, Claim]()
        for node in self.nodes():
            if node.block_id >= 0:
                found[ATTENTION, self._page(node.block_id), node] = Claim(node.prefix_len)
            checkpoint = node.state_checkpoint
            if checkpoint is not None and checkpoint.published:
                step = int(checkpoint.step)
                for group, page in self.places(node):
                    found[group, page, (node, step)] = Claim(step)
        return found

    def pinned(self) -> dict[str, list[tuple[int, int]]]:
        """Return the places of checkpoints that a forward is to write or to read: by the names of
        who holds them.
        """
        return {
            self._holder(node): self.places(node)
            for node in self.checkpoints()
            if _is_held(node.state_checkpoint)
        }

    def _holder(self, node: Any) -> str:
        """Return the name under which a forward holds the checkpoint of a node: a number, since the
        addresses of nodes are others in every run.
        """
        if node not in self._holders:
            self._holders[node] = f"pin:{next(self._numbers)}"
        return self._holders[node]

    def _page(self, block: int) -> int:
        return int(self._scheduler.block_manager.allocator.get_physical_blocks(int(block)))

    # --- books ------------------------------------------------------------------------------------

    def counts(self) -> Mapping[int, Count]:
        """Return the books of every pool: what the trie alone has is kept for its key."""
        manager = self._scheduler.block_manager
        references = self._references()
        free = manager.get_num_free_gpu_blocks()
        held = sum(count > 0 for count in references.values())
        found = {ATTENTION: Count(free, held, self._asked.pages - 1 - free - held)}
        if self._asked.recurrent:
            states = self._scheduler.state_manager
            pinned = sum(_is_held(node.state_checkpoint) for node in self.checkpoints())
            kept = states.get_num_allocated_checkpoint_states() - pinned
            held = states.get_num_runtime_states() + pinned
            found[RECURRENT] = Count(states.get_num_free(), held, kept)
        return found

    def references(self, pool: int, page: int) -> int | None:
        """Return how many hold a block beside the trie, by lmdeploy's count; it does not count
        those of a state.
        """
        return self._references().get(page, 0) if pool == ATTENTION else None

    def _references(self) -> dict[int, int]:
        """Return how often lmdeploy says that each block is held, the trie left out."""
        memory = self._scheduler.block_manager.allocator._log_mem
        used = memory.ref_count.nonzero()[0]
        found = dict(
            zip(memory.phy_map[used].tolist(), memory.ref_count[used].tolist(), strict=True)
        )
        for node in self.nodes():
            if node.block_id >= 0:
                found[self._page(node.block_id)] -= 1
        for node in self.checkpoints():
            frozen = node.state_checkpoint.frozen_block_id
            if frozen >= 0 and not _is_held(node.state_checkpoint):
                found[self._page(frozen)] -= 1
        return found


def _is_held(checkpoint: Any) -> bool:
    """Whether a forward is still to write a checkpoint or to read it."""
    return not checkpoint.published or checkpoint.pin_count > 0
