"""Kernels that are written for Triton run on the host and write what Triton's would.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`; the kernels here are this file's own.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cachewitness.core.engine_failure import EngineFailure
from suites.support.real_vllm import REAL

pytestmark = REAL

tl: Any = SimpleNamespace()
"""The words, in place while a kernel is launched."""
HERE: ModuleType = sys.modules[__name__]


def launch(
    function: Any, grid: tuple[int, ...], *values: Any, known: Any = (), **named: Any
) -> None:
    """Launch a kernel of this file over a grid."""
    from cachewitness.systems.vllm.triton_words import Kernel, Memory

    memory = Memory()
    memory.know(known)
    Kernel(function, [HERE])[grid](*values, **named)


def add_rows(target: Any, source: Any, stride: Any, width: Any, BLOCK: Any) -> None:
    """Add a row of numbers to each row, in pieces."""
    row = tl.program_id(0)
    for start in tl.range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        numbers = tl.load(source + column, mask=inside, other=7)
        there = target + row * stride + column
        tl.store(there, tl.load(there, mask=inside) + numbers, mask=inside)


def test_lanes_behind_a_mask_are_neither_read_nor_written() -> None:
    """A row of 5 in pieces of 4; the storage goes on behind it, and stays."""
    import torch

    target = torch.zeros((3, 6), dtype=torch.int32)
    target[:, 5] = 9
    launch(add_rows, (3,), target, torch.arange(5), 6, 5, BLOCK=4, num_warps=1)
    assert target.tolist() == [[0, 1, 2, 3, 4, 9]] * 3


def divide(target: Any, source: Any) -> None:
    """Divide, and leave the rest."""
    number = tl.load(source + tl.program_id(0))
    tl.store(target + 2 * tl.program_id(0), number // 4)
    tl.store(target + 2 * tl.program_id(0) + 1, number % 4)


def test_division_is_that_of_c() -> None:
    import torch

    target = torch.zeros(6, dtype=torch.int64)
    launch(divide, (3,), target, torch.tensor([-7, 7, -8]))
    assert target.tolist() == [-1, -3, 1, 3, -2, 0]


def divide_what_is_given(target: Any, source: Any, given: Any) -> None:
    """Divide an argument by a number that was read."""
    number = tl.load(source)
    tl.store(target, (given // number).to(tl.int64))
    tl.store(target + 1, given % number)


def test_an_argument_is_divided_as_what_was_read_is() -> None:
    import torch

    target = torch.zeros(2, dtype=torch.int64)
    launch(divide_what_is_given, (1,), target, torch.tensor([2]), -7)
    assert target.tolist() == [-3, -1]


def test_a_division_by_nothing_is_a_failure_of_the_engine() -> None:
    import torch

    with pytest.raises(EngineFailure, match="divide by 0"):
        launch(divide_what_is_given, (1,), torch.zeros(2), torch.tensor([0]), 7)


def through_addresses(target: Any, addresses: Any, count: Any, BLOCK: Any) -> None:
    """Read the first number behind each of some addresses, all at once and one by one."""
    each = tl.arange(0, BLOCK)
    inside = each < count
    places = tl.load(addresses + each, mask=inside, other=0).to(tl.pointer_type(tl.int32))
    numbers = tl.load(places[:, None] + tl.arange(0, 1)[None, :], mask=inside[:, None])
    tl.store(target + each[:, None], numbers, mask=inside[:, None])
    first = tl.cast(tl.load(addresses), tl.pointer_type(tl.int32))
    tl.store(first + 1, tl.load(tl.multiple_of(first, 16)) + 100)


def test_addresses_lead_into_the_tensors_that_they_are_of() -> None:
    import torch

    one = torch.tensor([3, 4], dtype=torch.int32)
    other = torch.tensor([5, 6], dtype=torch.int32)
    addresses = torch.tensor([one.data_ptr(), other.data_ptr()], dtype=torch.uint64)
    target = torch.zeros(4, dtype=torch.int32)
    launch(through_addresses, (1,), target, addresses, 2, BLOCK=4, known=[one, other])
    assert target.tolist() == [3, 5, 0, 0]
    assert one.tolist() == [3, 103]


def in_words(target: Any, source: Any) -> None:
    """Compute with one number alone: compare, negate, choose, shift, and go on with lanes."""
    number = tl.load(source)
    outside = ~((number >= 0) & (number < 4))
    chosen = tl.where(outside, -number, number << 2)
    lanes = (chosen + 1).to(tl.int64) + tl.arange(0, 2)
    tl.store(target + tl.arange(0, 2), lanes, mask=tl.arange(0, 2) < tl.maximum(number, 1))


@pytest.mark.parametrize(("number", "expected"), [(3, [13, 14]), (-5, [6, 0]), (7, [-6, -5])])
def test_a_number_alone_computes_as_lanes_do(number: int, expected: list[int]) -> None:
    import torch

    target = torch.zeros(2, dtype=torch.int64)
    launch(in_words, (1,), target, torch.tensor([number], dtype=torch.int32))
    assert target.tolist() == expected


def by_rows(target: Any, addresses: Any) -> None:
    """Read two numbers behind each of two addresses, in rows, without a mask."""
    places = tl.load(addresses + tl.arange(0, 2)).to(tl.pointer_type(tl.int32))
    rows = tl.load(places[:, None] + tl.arange(0, 2)[None, :])
    tl.store(target + 2 * tl.arange(0, 2)[:, None] + tl.arange(0, 2)[None, :], rows)


def test_what_is_read_by_addresses_keeps_its_shape() -> None:
    import torch

    one = torch.tensor([3, 4], dtype=torch.int32)
    other = torch.tensor([5, 6], dtype=torch.int32)
    addresses = torch.tensor([one.data_ptr(), other.data_ptr()], dtype=torch.uint64)
    target = torch.zeros(4, dtype=torch.int32)
    launch(by_rows, (1,), target, addresses, known=[one, other])
    assert target.tolist() == [3, 4, 5, 6]


def far(target: Any, offset: Any) -> None:
    """Write somewhere."""
    tl.store(target + offset, 1)


@pytest.mark.parametrize("offset", [-1, 4])
def test_what_lies_beyond_a_tensor_is_a_failure_of_the_engine(offset: int) -> None:
    import torch

    with pytest.raises(EngineFailure, match="reach beyond a tensor"):
        launch(far, (1,), torch.zeros(4), offset)


def test_an_address_of_no_tensor_is_a_failure_of_the_engine() -> None:
    import torch

    with pytest.raises(EngineFailure, match="no tensor's"):
        launch(through_addresses, (1,), torch.zeros(1), torch.tensor([64]), 1, BLOCK=1)
