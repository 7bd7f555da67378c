"""SGLang's pools of token slots and its slots of recurrent states as bare allocators, drawn call by
call; and faults in their own code, each of which is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from cachewitness import machines
from cachewitness.engines.pinned_package import PinnedPackage
from cachewitness.systems.sglang.build import Built, build
from cachewitness.systems.sglang.options import PoolSizes
from cachewitness.systems.sglang.source import PATCHES, load
from suites.support.block_pools import killed, passes
from suites.support.real_engines import SGLANG_SOURCE as SOURCE
from suites.support.real_engines import needs_sglang

pytestmark = needs_sglang


def built(size: int, page: int = 1, *, window: int = 0, states: int = 0) -> Built:
    """Return SGLang's objects with so many pages, in both pools if there is a window."""
    sizes = PoolSizes(
        page_size=page,
        pages=size,
        window=window,
        swa_pages=size,
        states=states,
        max_states_per_path=-1,
        max_model_len=page,
    )
    return build(load(SOURCE), sizes)


class Slots(machines.Allocator):
    """What all have in common: indices come and go in tensors, a None refuses, 0 is padding."""

    null_block = 0
    misuse = "undefined"  # "the API is not idempotent"
    pool: Any

    def alloc(self, n: int) -> Any:
        return self.listed(self.pool.alloc(n))

    def free(self, blocks: list[int]) -> None:
        self.pool.free(self.tensor(blocks))

    def available(self) -> int:
        return int(self.pool.available_size())

    @staticmethod
    def listed(indices: Any) -> Any:
        return None if indices is None else indices.tolist()

    @staticmethod
    def tensor(values: list[int]) -> Any:
        import torch

        return torch.tensor(values, dtype=torch.int64)


class Tokens(Slots):
    """`TokenToKVPoolAllocator`."""

    order = "lru"

    def make(self, size: int) -> None:
        self.pool = built(size).allocator


class States(Slots):
    """`MambaSlotAllocator`."""

    order = "lru"

    def make(self, size: int) -> None:
        self.pool = built(size, states=size).requests.mamba_allocator


class GroupedStates(States):
    """The same, with slots for a batch taken in advance and the rest given back."""

    order = None

    def alloc(self, n: int) -> Any:
        self.pool.alloc_group_begin(n + 1)
        taken = [self.listed(self.pool.alloc(1)) for _ in range(n)]
        self.pool.alloc_group_end()
        if None not in taken:
            return [slot for one in taken for slot in one]
        self.free([slot for one in taken if one for slot in one])
        return None


class Pages(Slots):
    """`PagedTokenToKVPoolAllocator`: blocks are pages of four tokens."""

    page = 4

    def make(self, size: int) -> None:
        self.pool = built(size, self.page).allocator

    def alloc(self, n: int) -> Any:
        return self.pages(self.pool.alloc(n * self.page))

    def free(self, blocks: list[int]) -> None:
        self.pool.free(self.tokens(blocks))

    def available(self) -> int:
        return int(self.pool.available_size()) // self.page

    def tokens(self, blocks: list[int]) -> Any:
        starts = self.tensor(blocks)[:, None] * self.page
        return (starts + self.tensor(list(range(self.page)))).reshape(-1)

    def pages(self, indices: Any) -> Any:
        """Return the pages of slots, which must be whole ones."""
        if indices is None:
            return None
        pages = self.listed(indices[:: self.page] // self.page)
        assert self.listed(indices) == self.listed(self.tokens(pages))
        return pages


class PagesOfPrompts(Pages):
    """The same by `alloc_extend`: requests of one page each, the last of them not full."""

    def alloc(self, n: int) -> Any:
        lengths = self.tensor([1 + place % self.page for place in range(n)])
        nothing = self.tensor([0] * n)
        slots = self.pool.alloc_extend(
            nothing, nothing, lengths, lengths, nothing - 1, int(lengths.sum())
        )
        if slots is None:
            return None
        starts = lengths.cumsum(0) - lengths
        return self.listed(slots[starts] // self.page)


class PagesOfAnswers(Pages):
    """The same by `alloc_decode`: requests whose next token begins a page."""

    def alloc(self, n: int) -> Any:
        lengths = self.tensor([self.page + 1] * n)
        slots = self.pool.alloc_decode(lengths, lengths, lengths * 0 - 1)
        return self.listed(slots if slots is None else slots // self.page)


class Windows(Slots):
    """`SWATokenToKVPoolAllocator`: a slot of full attention and its peer of the window."""

    def make(self, size: int) -> None:
        self.pool = built(size, window=8).allocator


class WindowPages(PagesOfPrompts):
    """The same in pages."""

    def make(self, size: int) -> None:
        self.pool = built(size, self.page, window=8).allocator


class Sorted(Tokens):
    """Slots that are sorted before they are handed out again."""

    order = None
    module: ClassVar[str] = "token"
    kind: ClassVar[str] = "TokenToKVPoolAllocator"
    page = 1

    def make(self, size: int) -> None:
        import torch

        source: PinnedPackage = load(SOURCE)
        pages = {"page_size": self.page} if self.page > 1 else {}
        self.pool = source.part(f"mem_cache.allocator.{self.module}", self.kind)(
            size * self.page, **pages, dtype=torch.float16, device="cpu", kvcache=None,
            need_sort=True,
        )  # fmt: skip


class SortedPages(Sorted, PagesOfPrompts):
    """The same of pages."""

    module = "paged"
    kind = "PagedTokenToKVPoolAllocator"
    page = 4
    alloc = PagesOfPrompts.alloc
    free = Pages.free
    available = Pages.available


ALLOCATORS = (
    Tokens,
    States,
    GroupedStates,
    Pages,
    PagesOfPrompts,
    PagesOfAnswers,
    Windows,
    WindowPages,
    Sorted,
    SortedPages,
)


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    PATCHES.undo()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_nothing_is_wrong_with_calls_that_are_allowed(
    allocator: type[machines.Allocator],
) -> None:
    passes(allocator)


FAULTS = {
    "slots-not-taken": (
        Tokens,
        ("token", "TokenToKVPoolAllocator", "alloc"),
        "self.free_pages = self.free_pages[need_size:]",
        "self.free_pages = self.free_pages[need_size - 1:]",
        {"count", "handed-out-twice"},
    ),
    "freed-in-front": (
        Tokens,
        ("token", "TokenToKVPoolAllocator", "free"),
        "torch.cat((self.free_pages, free_index))",
        "torch.cat((free_index, self.free_pages))",
        {"order"},
    ),
    "waiting-slots-not-merged": (
        Sorted,
        ("token", "TokenToKVPoolAllocator", "alloc"),
        "if self.need_sort and need_size > len(self.free_pages):\nself.merge_and_sort_free()",
        "pass",
        {"refused"},
    ),
    "state-slot-off-by-one": (
        States,
        ("mamba", "MambaSlotAllocator", "clear"),
        "1, self.size + 1",
        "0, self.size",
        {"null-block"},
    ),
    "rest-of-a-group-kept": (
        GroupedStates,
        ("mamba", "MambaSlotAllocator", "alloc_group_end"),
        "if remaining:",
        "if len(remaining) > 1:",
        {"count", "refused"},
    ),
    "page-freed-for-each-token": (
        Pages,
        ("paged", "PagedTokenToKVPoolAllocator", "free"),
        "torch.unique(free_index // self.page_size)",
        "free_index // self.page_size",
        {"count", "handed-out-twice"},
    ),
    "a-page-fewer-for-a-prompt": (
        PagesOfPrompts,
        ("paged", "PagedTokenToKVPoolAllocator", "alloc_extend"),
        "if num_new_pages > len(self.free_pages):",
        "if num_new_pages >= len(self.free_pages):",
        {"refused"},
    ),
    "new-pages-stay-free": (
        PagesOfAnswers,
        ("paged", "PagedTokenToKVPoolAllocator", "alloc_decode"),
        "self.free_pages = self.free_pages[num_new_pages:]",
        "self.free_pages = self.free_pages[max(num_new_pages - 1, 0):]",
        {"count", "handed-out-twice"},
    ),
    "peer-of-the-window-kept": (
        Windows,
        ("swa", "SWATokenToKVPoolAllocator", "free"),
        "self.free_swa(free_index)",
        "self.free_swa(free_index[1:])",
        {"count", "refused", "raised"},
    ),
}
"""A piece of SGLang's own code, and what stands there instead."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_its_code_is_killed(name: str) -> None:
    allocator, (module, owner, method), old, new, kinds = FAULTS[name]
    load(SOURCE)
    PATCHES.text(f"mem_cache.allocator.{module}", owner, method, old, new)
    killed(allocator, kinds)
