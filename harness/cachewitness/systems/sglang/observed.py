"""What SGLang's cache shows of itself: rows of requests, values of tree nodes, the books of its
allocators.

A page is a slot of the pool divided by the page size. A node's value has the slots of its part of a
prefix, so each of its pages can be hit as the prefix that ends there; a recurrent state can be hit
as the prefix that ends with its node alone. Where the window was given back the node keeps its full
attention (a tombstone), and its window pages have no key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cachewitness.engines.cache_state import ABSENT, Claim, Count, KeyId, KeysByEntry, Tables
from cachewitness.systems.sglang.build import Built

FULL, SLIDING, RECURRENT = "full", "sliding", "recurrent"


class Node(NamedTuple):
    """A node of the tree: the prefix that it ends begins at 0, its own part is tokens [start,
    stop).
    """

    id: int
    start: int
    stop: int
    full: tuple[int, ...]
    sliding: tuple[int, ...]
    state: int
    """The slot of the state after `stop` tokens; ABSENT if there is none."""


class Shown:
    """Reads SGLang's own books. `groups` are the groups by kind, numbered as in the header; each
    has a pool of its number.
    """

    def __init__(self, built: Built, groups: dict[str, int]) -> None:
        self._built = built
        self._groups = groups
        self._kinds = {str(part): part for part in built.tree.tree_components}
        self.requests: dict[str, Any] = {}
        """SGLang's records of those who have come and not ended."""
        self._keys = KeysByEntry()
        self._nodes: list[Node] = []
        self._pinned = dict[int, str]()

    # --- rows -------------------------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return the pages of a request: of its row of token slots, and the slot of its state."""
        req = self.requests.get(r)
        if req is None:
            return []
        tables: Tables = [[] for _ in self._groups]
        if req.kv.holds_kv:
            size = self._built.asked.page_size
            slots = self._built.requests.req_to_token[
                req.kv.req_pool_idx, : req.kv.kv_allocated_len : size
            ]
            tables[self._groups[FULL]] = [slot // size for slot in slots.tolist()]
            if SLIDING in self._groups:
                tables[self._groups[SLIDING]] = self._window(req, slots)
        if RECURRENT in self._groups and req.kv.holds_mamba:
            tables[self._groups[RECURRENT]] = [int(req.kv.mamba_pool_idx)]
        return tables

    def _window(self, req: Any, slots: Any) -> list[int]:
        """Return the window's pages that a request holds: its own, and of the tree's those that
        its lock covers.
        """
        size = self._built.asked.page_size
        mapped = self._built.allocator.full_to_swa_index_mapping[slots.long()].tolist()
        own = req.kv.cache_protected_len
        locked = own - self._locked(req) if self._locked(req) else own
        pages = []
        for column, slot in enumerate(mapped):
            start = column * size
            held = start >= own or start >= locked
            pages.append(slot // size if slot > 0 and held else ABSENT)
        return pages

    def _locked(self, req: Any) -> int:
        """Return how many tokens at the end of its prefix the request's lock keeps in the
        window's pool.
        """
        kind = self._kinds["swa"]
        if req.lock is None or req.lock.swa_released:
            return 0
        core = self._built.tree.tree_core
        node = core.node_by_id(req.lock.node)
        end = req.lock.receipt.component_lock_uuids.get(kind)
        covered = 0
        while node.parent is not None:
            covered += len(node.key)
            if end is not None and node.component_data[kind].metadata.get("uuid") == end:
                break
            node = node.parent
        return covered

    # --- the tree ---------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes of the tree that have something on the device, the root apart."""
        waiting = [(child, 0) for child in self._built.tree.tree_core.root_node.children.values()]
        while waiting:
            node, start = waiting.pop()
            stop = start + len(node.key)
            waiting += [(child, stop) for child in node.children.values()]
            values = {name: node.component_data[kind].value for name, kind in self._kinds.items()}
            state = values.get("mamba")
            yield Node(
                node.id,
                start,
                stop,
                _slots(values["full"]),
                _slots(values.get("swa")),
                ABSENT if state is None else int(state[0]),
            )

    def pinned(self) -> dict[str, int]:
        """Return the slots of the states that are locked in the tree, by the names of who holds
        them: numbers in the order in which nodes are locked. SGLang counts its nodes over all trees
        of a process.
        """
        kind = self._kinds.get("mamba")
        if kind is None:
            return {}
        found = {}
        for number, node in self._built.tree.tree_core._node_arena.items():
            data = node.component_data[kind]
            if data.lock_ref > 0 and data.value is not None and node.parent is not None:
                name = self._pinned.setdefault(number, f"pin:{len(self._pinned) + 1}")
                found[name] = int(data.value[0])
        return found

    def locks_alone(self, req: Any) -> bool:
        """Whether a request has locked a state in the tree that nobody else has."""
        if req.lock is None:
            return False
        data = self._built.tree.tree_core.node_by_id(req.lock.node).component_data[
            self._kinds["mamba"]
        ]
        return data.value is not None and data.lock_ref == 1

    def keys(self) -> KeysByEntry:
        """Return a key for each page of a node's values, and one for its state."""
        nodes = sorted(self.nodes())
        if nodes != self._nodes:
            known = self._keys
            self._nodes = nodes
            self._keys = KeysByEntry(
                (node, known.get(node) or self._claims(node)) for node in nodes
            )
        return self._keys

    def _claims(self, node: Node) -> dict[KeyId, Claim]:
        size = self._built.asked.page_size
        found = dict[KeyId, Claim]()
        for name, slots in ((FULL, node.full), (SLIDING, node.sliding)):
            for offset in range(0, len(slots), size):
                length = node.start + offset + size
                found[self._groups[name], slots[offset] // size, length] = Claim(length)
        if node.state != ABSENT:
            found[self._groups[RECURRENT], node.state, (node.id, node.stop)] = Claim(node.stop)
        return found

    # --- books ------------------------------------------------------------------------------------

    def counts(self) -> Mapping[int, Count]:
        """Return the books of every pool: free by its allocator; held by locks and by requests;
        kept in the tree alone.
        """
        tree = self._built.tree
        size = self._built.asked.page_size
        requests = [req.kv for req in self.requests.values()]
        own = sum(
            -(-kv.kv_allocated_len // size) - kv.cache_protected_len // size
            for kv in requests
            if kv.holds_kv
        )
        found = {}
        if SLIDING not in self._groups:
            free = self._built.allocator.available_size()
            evictable = tree.full_evictable_size()
            found[self._groups[FULL]] = Count(
                free // size, tree.full_protected_size() // size + own, evictable // size
            )
        else:
            allocator = self._built.allocator
            free = allocator.full_available_size()
            evictable = tree.full_evictable_size()
            found[self._groups[FULL]] = Count(
                free // size, tree.full_protected_size() // size + own, evictable // size
            )
            gone = sum(self._given_back(kv) for kv in requests if kv.holds_kv)
            free = allocator.swa_available_size()
            evictable = tree.swa_evictable_size()
            held = tree.swa_protected_size() // size + own - gone
            found[self._groups[SLIDING]] = Count(free // size, held, evictable // size)
        if RECURRENT in self._groups:
            slots = sum(kv.holds_mamba for kv in requests)
            free = self._built.requests.mamba_allocator.available_size()
            evictable = tree.mamba_evictable_size()
            found[self._groups[RECURRENT]] = Count(
                free, tree.mamba_protected_size() + slots, evictable
            )
        return found

    def _given_back(self, kv: Any) -> int:
        """Return how many pages of its own a request has given back because its window left
        them.
        """
        size = self._built.asked.page_size
        return int(max(kv.get_evicted_seqlen(self._kinds["swa"]) - kv.swa_dead_lo(size), 0) // size)

    def references(self, pool: int, page: int) -> int | None:
        """Return None: SGLang counts locks on nodes, not holders of pages."""
        return None


def _slots(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(value.tolist())
