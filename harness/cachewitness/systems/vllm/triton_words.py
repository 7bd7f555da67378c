"""vLLM's Triton kernels, run as Python on the memory of the host.

Without Triton vLLM leaves a kernel as the function that it was written as. Here such a function is
launched over its grid, one program after another, and `tl` of its module is the few words of the
language that vLLM's kernels of tables, states and tokens use. Numbers are arrays; a whole number
alone is an int, whose arithmetic is several times as fast and does not wrap around. Division is
that of C, as in Triton. A pointer is a place in a tensor's storage, or an address that lies in one;
a load or a store beyond every storage is a failure of the engine, where a device would read what
lies there.

What the order of programs, of threads and of streams decides is not shown: everything runs in turn.
What a masked load leaves open is 0.

Source: Triton's language (`triton.language`); the kernels are those of vLLM 0.29.0 to 0.33.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy

from cachewitness.core.engine_failure import EngineFailure

LAUNCH_OPTIONS = ("num_warps", "num_stages")
"""What a launch says to the compiler alone."""


class Numbers(numpy.ndarray):  # type: ignore[misc]
    """What a program computes with."""

    def to(self, kind: Any) -> Any:
        """Return the numbers as another type, or as pointers to it."""
        return kind.at(self) if isinstance(kind, PointerTo) else self.astype(kind)

    def __floordiv__(self, other: Any) -> Any:
        """Divide, towards 0."""
        whole = numpy.floor_divide(self, other)
        return whole + ((whole < 0) & (whole * other != self))

    def __mod__(self, other: Any) -> Any:
        """Return what a division towards 0 leaves."""
        return self - (self // other) * other


class Scalar(int):
    """A whole number that a program computes with; what it is compared with gives a bool of numpy,
    so that `~` negates it.
    """

    def to(self, kind: Any) -> Any:
        """Return the number as another type, or as a pointer to it."""
        if isinstance(kind, PointerTo):
            return kind.at(self)
        return numbers(numpy.asarray(int(self)).astype(kind))

    def __floordiv__(self, other: Any) -> Any:
        """Divide, towards 0. Raises EngineFailure for a division by 0."""
        if not isinstance(other, int):
            return numpy.asarray(int(self)).view(Numbers) // other
        if not other:
            raise EngineFailure("engine-crashed", "had a kernel divide by 0")
        whole = abs(int(self)) // abs(int(other))
        return Scalar(whole if (self < 0) == (other < 0) else -whole)

    def __mod__(self, other: Any) -> Any:
        """Return what a division towards 0 leaves."""
        return self - (self // other) * other

    def __rfloordiv__(self, other: int) -> Any:
        """Divide what is an int by this."""
        return Scalar(other) // self

    def __rmod__(self, other: int) -> Any:
        """Return what such a division leaves."""
        return Scalar(other) % self


def _give(name: str, made: Callable[[Any], Any]) -> None:
    """Give scalars an operator of int, whose result is made into what programs compute with."""
    of_int = getattr(int, name)

    def compute(*operands: Any) -> Any:
        result = of_int(*operands)
        return result if result is NotImplemented else made(result)

    setattr(Scalar, name, compute)


for _name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift"):
    _give(f"__{_name}__", Scalar)
    _give(f"__r{_name}__", Scalar)
for _name in ("neg", "invert", "abs"):
    _give(f"__{_name}__", Scalar)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _give(f"__{_name}__", numpy.bool_)
Scalar.__hash__ = int.__hash__  # type: ignore[method-assign]


class Place:
    """Places in a storage: an array of all of it, and how many elements further."""

    __array_ufunc__ = None
    __slots__ = ("array", "offset")

    def __init__(self, array: Any, offset: Any) -> None:
        self.array = array
        self.offset = offset

    def __add__(self, further: Any) -> Place:
        """Return places so many elements further."""
        return Place(self.array, self.offset + further)

    __radd__ = __add__

    def __sub__(self, back: Any) -> Place:
        """Return places so many elements in front."""
        return Place(self.array, self.offset - back)

    @property
    def kind(self) -> Any:
        """The type of the elements."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places there are, in which order."""
        return () if isinstance(self.offset, int) else tuple(numpy.shape(self.offset))

    def read(self, mask: Any) -> Any:
        """Return what lies there, of those that the mask lets through."""
        return self.array[self._let_through(mask)]

    def write(self, values: Any, mask: Any) -> None:
        """Put values there, where the mask lets them through."""
        self.array[self._let_through(mask)] = values

    def _let_through(self, mask: Any) -> Any:
        """Return where in the storage. Raises EngineFailure for a place outside it."""
        offset = _lanes(self.offset, mask)
        if isinstance(offset, int):
            inside = 0 <= offset < self.array.size
        else:
            inside = not offset.size or 0 <= offset.min() <= offset.max() < self.array.size
        if not inside:
            raise EngineFailure("engine-crashed", "had a kernel reach beyond a tensor")
        return offset


class Addresses:
    """Addresses of elements that may lie in several storages."""

    __array_ufunc__ = None
    __slots__ = ("_addresses", "kind")

    def __init__(self, addresses: Any, kind: Any) -> None:
        self._addresses = addresses
        self.kind = kind

    def __add__(self, further: Any) -> Addresses:
        """Return addresses so many elements further."""
        return Addresses(self._addresses + further * self.kind.itemsize, self.kind)

    __radd__ = __add__

    def __getitem__(self, index: Any) -> Addresses:
        """Return these addresses in another order."""
        return Addresses(self._addresses[index], self.kind)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many there are, in which order."""
        return tuple(numpy.shape(self._addresses))

    def read(self, mask: Any) -> Any:
        """Return what lies there, of those that the mask lets through."""
        addresses = _lanes(self._addresses, mask)
        read = [place_at(one, self.kind).read(None) for one in addresses.flat]
        return numpy.array(read, self.kind).reshape(addresses.shape)

    def write(self, values: Any, mask: Any) -> None:
        """Put values there, where the mask lets them through."""
        addresses = _lanes(self._addresses, mask)
        for one, value in zip(
            addresses.flat, numpy.broadcast_to(values, addresses.shape).flat, strict=True
        ):
            place_at(one, self.kind).write(value, None)


class PointerTo(NamedTuple):
    """The type of a pointer."""

    kind: Any

    def at(self, addresses: Numbers | Scalar) -> Place | Addresses:
        """Return pointers of this type for addresses."""
        if isinstance(addresses, int):
            return place_at(addresses, self.kind)
        return Addresses(addresses, self.kind)


class Memory:
    """The storages of an engine that kernels reach by address, as long as it is there.

    A kernel's name stands for it in its module, whichever engine launches it, so an address is
    looked for in the storages of all of them.
    """

    def __init__(self) -> None:
        self.storages: dict[int, Any] = {}
        """By address: the bytes."""
        _MEMORIES.add(self)

    def know(self, tensors: Iterable[Any]) -> None:
        """Take note of tensors whose addresses kernels are given."""
        for tensor in tensors:
            data = place_of(tensor).array.view(numpy.uint8)
            self.storages[int(data.ctypes.data)] = data


_MEMORIES = WeakSet[Memory]()


def place_at(address: Any, kind: Any) -> Place:
    """Return where an address lies, or ends. Raises EngineFailure for one in no storage."""
    address = int(address)
    for memory in _MEMORIES:
        if address in memory.storages:
            return Place(_typed(memory.storages[address], kind), 0)
    for further in (0, 1):
        for memory in _MEMORIES:
            for start, data in memory.storages.items():
                if start <= address < start + data.size + further:
                    return Place(_typed(data, kind), (address - start) // kind.itemsize)
    raise EngineFailure("engine-crashed", "had a kernel reach an address that is no tensor's")


def _typed(data: Any, kind: Any) -> Any:
    """Return the elements of a type that lie whole in these bytes."""
    return data[: data.size // kind.itemsize * kind.itemsize].view(kind)


class Kernel:
    """A kernel that is launched over a grid, one program after another.

    `modules` are those whose words it and the functions that it calls are written in.
    """

    def __init__(self, function: Callable[..., None], modules: Sequence[ModuleType]) -> None:
        self.__wrapped__ = function
        self._modules = modules
        self._signature = inspect.signature(function)
        self.arg_names = list(self._signature.parameters)
        """The names of its parameters, which vLLM's launchers ask for."""

    def __call__(self, *values: Any, **named: Any) -> None:
        """Run as a part of the program that calls it."""
        self.__wrapped__(*values, **named)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Return what launches it over a grid of up to three dimensions."""

        def launch(*values: Any, **named: Any) -> None:
            for option in LAUNCH_OPTIONS:
                if option not in self.arg_names:
                    named.pop(option, None)
            bound = self._signature.bind(*values, **named).arguments
            given = {name: _argument(value) for name, value in bound.items()}
            sizes = [int(size) for size in grid]
            sizes += [1] * (3 - len(sizes))
            with _written_in(self._modules, _Language(sizes)) as language:
                for program in product(*map(range, sizes)):
                    language.program = program
                    self.__wrapped__(**given)

        return launch


@contextmanager
def _written_in(modules: Sequence[ModuleType], language: _Language) -> Iterator[_Language]:
    before = [(module, vars(module).get("tl")) for module in modules]
    try:
        for module in modules:
            vars(module)["tl"] = language
        yield language
    finally:
        for module, words in before:
            vars(module)["tl"] = words


def _argument(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return place_of(value)
    return value


def place_of(tensor: Any) -> Place:
    """Return where a tensor begins in its storage."""
    import torch

    storage = tensor.untyped_storage()
    size = storage.nbytes() // tensor.element_size()
    whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (size,), (1,))
    return Place(whole.numpy(), tensor.storage_offset())


def numbers(value: Any) -> Any:
    """Return numbers for a value: as they are, and addresses as signed ones."""
    array = numpy.asarray(value)
    signed = array.view(numpy.int64) if array.dtype == numpy.uint64 else array
    if not signed.ndim and signed.dtype.kind in "iu":
        return Scalar(signed)
    return signed.view(Numbers)


class _Language(SimpleNamespace):
    """The words, for a launch over a grid of these sizes."""

    int32 = numpy.dtype(numpy.int32)
    int64 = numpy.dtype(numpy.int64)
    uint8 = numpy.dtype(numpy.uint8)
    uint16 = numpy.dtype(numpy.uint16)
    uint32 = numpy.dtype(numpy.uint32)
    uint64 = numpy.dtype(numpy.uint64)
    range = range

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.program: tuple[int, ...] = (0, 0, 0)
        self._sizes = sizes

    def program_id(self, axis: int) -> Scalar:
        """Which program this is."""
        return Scalar(self.program[axis])

    def num_programs(self, axis: int) -> int:
        """How many there are."""
        return self._sizes[axis]

    @staticmethod
    def arange(start: int, stop: int) -> Any:
        """Return the numbers from start to stop."""
        return numbers(numpy.arange(start, stop, dtype=numpy.int32))

    @staticmethod
    def where(condition: Any, one: Any, other: Any) -> Any:
        """Choose, lane by lane."""
        return numbers(numpy.where(condition, one, other))

    @staticmethod
    def maximum(one: Any, other: Any) -> Any:
        """Return the larger, lane by lane."""
        if isinstance(one, int) and isinstance(other, int):
            return Scalar(max(one, other))
        return numbers(numpy.maximum(one, other))

    @staticmethod
    def minimum(one: Any, other: Any) -> Any:
        """Return the smaller, lane by lane."""
        if isinstance(one, int) and isinstance(other, int):
            return Scalar(min(one, other))
        return numbers(numpy.minimum(one, other))

    @staticmethod
    def cdiv(one: Any, other: Any) -> Any:
        """Divide, upwards."""
        return (numbers(one) + (other - 1)) // other

    @staticmethod
    def cast(value: Any, kind: Any) -> Any:
        """Return a value as another type."""
        return numbers(value).to(kind)

    @staticmethod
    def multiple_of(value: Any, _: int) -> Any:
        """Return the value: what the compiler may count on is of no account here."""
        return value

    @staticmethod
    def pointer_type(kind: Any) -> PointerTo:
        """Return the type of pointers to a type."""
        return PointerTo(kind)

    @staticmethod
    def load(pointer: Place | Addresses, mask: Any = None, other: Any = 0) -> Any:
        """Return what lies there."""
        if _lets_all(mask, pointer):
            return numbers(pointer.read(None))
        let = numpy.asarray(mask)
        loaded = numpy.full(
            numpy.broadcast_shapes(let.shape, pointer.shape), other, dtype=pointer.kind
        )
        let = numpy.broadcast_to(let, loaded.shape)
        loaded[let] = pointer.read(let)
        return numbers(loaded)

    @staticmethod
    def store(pointer: Place | Addresses, value: Any, mask: Any = None) -> None:
        """Put a value there."""
        values = numpy.asarray(value)
        if _lets_all(mask, pointer):
            pointer.write(values, None)
            return
        let = numpy.asarray(mask)
        let = numpy.broadcast_to(let, numpy.broadcast_shapes(let.shape, pointer.shape))
        pointer.write(_lanes(values, let) if values.ndim else values, let)


def _lets_all(mask: Any, pointer: Place | Addresses) -> bool:
    """Whether a mask lets through every place that a pointer has."""
    if mask is None:
        return True
    let = numpy.asarray(mask)
    return bool(let.all()) and let.shape in ((), pointer.shape)


def _lanes(places: Any, mask: Any) -> Any:
    """Return those of an array that a mask lets through; None lets all through."""
    if mask is None:
        return places if isinstance(places, numpy.ndarray) else int(places)
    array = numpy.asarray(places)
    return (array if array.shape == mask.shape else numpy.broadcast_to(array, mask.shape))[mask]
