"""LMCache's memory allocators, drawn call by call; and faults in their own code, each of which is
killed.
"""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from cachewitness import machines
from cachewitness.engines.source_patch import Patches
from cachewitness.sessions.fuzz.allocator import Failure, find
from suites.support.block_pools import killed, passes
from suites.support.real_engines import LMCACHE

pytestmark = LMCACHE
PATCHES = Patches("lmcache.v1")
ALIGN = 64
"""Bytes of a block."""


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    logging.disable(
        logging.ERROR
    )  # LMCache writes a line for each refusal, and each object at the end
    yield
    gc.collect()
    logging.disable(logging.NOTSET)
    PATCHES.undo()


def part(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"lmcache.v1.{module}"), name)


def memory(size: int) -> Any:
    """Return room for so many blocks; no byte of it is ever written."""
    import torch

    return torch.empty(size * ALIGN, dtype=torch.uint8)


class Addresses(machines.Allocator):
    """`AddressManager`: addresses in an address space, free regions merged."""

    misuse = "undefined"  # "may have internal errors"

    def make(self, size: int) -> None:
        self.pool = part("memory_management", "AddressManager")(size * ALIGN, ALIGN)

    def alloc(self, n: int) -> Any:
        return [address // ALIGN for address, _ in self.pool.batched_allocate(ALIGN - 1, n)]

    def free(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pool.free(block * ALIGN, ALIGN)

    def available(self) -> int:
        assert self.pool.check_consistency()
        return int(self.pool.get_free_size()) // ALIGN


class Tensors(machines.Allocator):
    """`TensorMemoryAllocator`: objects with reference counts, over an address manager."""

    misuse = "refused"  # what was freed is marked as invalid, and a second free passes over it

    def make(self, size: int) -> None:
        import torch

        kind = part("memory_allocators.tensor_memory_allocator", "TensorMemoryAllocator")
        self.shape = torch.Size([ALIGN - 1])
        self.pool = kind(memory(size), align_bytes=ALIGN)

    def alloc(self, n: int) -> Any:
        import torch

        if n == 1:
            taken = self.pool.allocate(self.shape, torch.uint8)
            return None if taken is None else [taken]
        return self.pool.batched_allocate(self.shape, torch.uint8, n)

    def free(self, blocks: list[Any]) -> None:
        for block in blocks:
            block.ref_count_down()

    def share(self, block: Any) -> None:
        block.ref_count_up()

    def available(self) -> int:
        assert self.pool.memcheck()
        return int(self.pool.address_manager.get_free_size()) // ALIGN

    def references(self, block: Any) -> int:
        return int(block.get_ref_count())

    def name(self, block: Any) -> int:
        return int(block.meta.address) // ALIGN


class BatchedTensors(Tensors):
    """The same, given back by `batched_free`, which merges neighbours first."""

    def free(self, blocks: list[Any]) -> None:
        last = [block for block in blocks if block.get_ref_count() == 1]
        for block in blocks:
            if block.get_ref_count() > 1:
                block.ref_count_down()
        for block in last:
            block.meta.ref_count = 0
        self.pool.batched_free(last)


class Mixed(Tensors):
    """`MixedMemoryAllocator`, as the backend in CPU memory has it."""

    def make(self, size: int) -> None:
        super().make(size)
        mixed = part("memory_allocators.mixed_memory_allocator", "MixedMemoryAllocator")
        self.mixed = mixed(size * ALIGN, align_bytes=ALIGN)
        self.pool = self.mixed.pin_allocator

    def alloc(self, n: int) -> Any:
        import torch

        return self.mixed.batched_allocate(self.shape, torch.uint8, n)


class Paged(Tensors):
    """`PagedTensorMemoryAllocator`: pages of one size, each with its object."""

    order = "lru"
    misuse = "undefined"
    sizes = st.integers(0, 29).flatmap(
        lambda place: st.integers(1, 24) if place < 29 else st.integers(25, 1_000)
    )

    def make(self, size: int) -> None:
        import torch

        kind = part("memory_allocators.paged_tensor_memory_allocator", "PagedTensorMemoryAllocator")
        self.shape = torch.Size([ALIGN])
        self.pool = kind(memory(size), [self.shape], [torch.uint8])

    def name(self, block: Any) -> int:
        return int(block.meta.address)


class PagedTwice(Paged):
    """The same, where a second free is to change nothing, as its warning says."""

    misuse = "refused"


ALLOCATORS = (Addresses, Tensors, BatchedTensors, Mixed, Paged)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_nothing_is_wrong_with_calls_that_are_allowed(
    allocator: type[machines.Allocator],
) -> None:
    passes(allocator)


def test_a_page_that_is_freed_twice_is_handed_out_twice() -> None:
    """`findings/lmcache-paged-allocator.sh` shows it without this package."""
    found = find(PagedTwice)
    assert isinstance(found, Failure)
    assert found.kind in ("handed-out-twice", "count"), found.text


MANAGER = "memory_management"
TENSORS = "memory_allocators.tensor_memory_allocator"
PAGES = "memory_allocators.paged_tensor_memory_allocator"
FAULTS = {
    "neighbour-lost": (
        Addresses,
        (MANAGER, "AddressManager", "_coalesce"),
        "prev_block.size += curr_block.size + succ_block.size",
        "prev_block.size += curr_block.size",
        {"raised", "refused"},
    ),
    "rest-begins-a-block-early": (
        Addresses,
        (MANAGER, "AddressManager", "batched_allocate"),
        "start=block.start + used, size=block.size - used",
        "start=block.start + used - aligned_size, size=block.size - used",
        {"raised", "handed-out-twice", "refused"},
    ),
    "freed-while-shared": (
        Tensors,
        (MANAGER, "TensorMemoryObj", "ref_count_down"),
        "self.meta.ref_count == 0 and self.parent_allocator",
        "self.meta.ref_count <= 1 and self.parent_allocator",
        {"count", "handed-out-twice"},
    ),
    "freed-object-stays-valid": (
        Tensors,
        (TENSORS, "TensorMemoryAllocator", "free"),
        "memory_obj.invalidate()",
        "pass",
        {"count", "handed-out-twice", "raised", "capacity"},
    ),
    "merged-over-a-gap": (
        BatchedTensors,
        (TENSORS, "TensorMemoryAllocator", "batched_free"),
        "elif curr_start + curr_size == memory_obj.meta.address:",
        "elif curr_start + curr_size <= memory_obj.meta.address:",
        {"count", "handed-out-twice", "raised"},
    ),
    "pages-of-a-refusal-kept": (
        Paged,
        (PAGES, "PagedTensorMemoryAllocator", "batched_allocate"),
        "self.batched_free(allocated_blocks, update_stats=False)",
        "pass",
        {"count", "refused", "raised"},
    ),
    "freed-page-in-front": (
        Paged,
        (PAGES, "PagedTensorMemoryAllocator", "free"),
        "self.free_blocks.append(memory_obj)",
        "self.free_blocks.appendleft(memory_obj)",
        {"order"},
    ),
}
"""A piece of LMCache's own code, and what stands there instead."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_its_code_is_killed(name: str) -> None:
    allocator, place, old, new, kinds = FAULTS[name]
    PATCHES.text(*place, old, new)
    killed(allocator, kinds)
