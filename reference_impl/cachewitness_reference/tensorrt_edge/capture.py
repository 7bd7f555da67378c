"""What a capture is: copies of one slot, and the position that they belong to.

Upstream returns bare tensors. A recurrent state is the sum of everything before it, so a state
without its position is a number without a unit: paired with another KV length it is silently wrong,
since the tokens in between are applied twice or never. Here a capture carries its position wherever
it goes, and whoever restores it is held to it (`rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar, overload

from cachewitness_reference.primitives import Position
from cachewitness_reference.tensorrt_edge.config import check

T_co = TypeVar("T_co", covariant=True)


class Kind(Enum):
    """What was captured."""

    KV = "KV cache"
    RECURRENT = "recurrent states"
    CONV = "conv states"


@dataclass(frozen=True)
class Captured(Sequence[T_co], Generic[T_co]):
    """One tensor per layer of a sub-manager, in local order, all of one slot after exactly
    `position` tokens.

    A policy without tensors captures `layers` empty places.
    """

    kind: Kind
    position: Position
    layers: tuple[T_co, ...]

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: int | slice) -> T_co | Sequence[T_co]:
        """Return the capture of one layer."""
        return self.layers[index]

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    def __iter__(self) -> Iterator[T_co]:
        """Yield the layers in local order."""
        return iter(self.layers)


def check_captured(name: str, saved: Captured[object], kind: Kind, layers: int) -> None:
    """Raise CacheError, in the name of `name`, unless the capture is of that kind and has so
    many layers.
    """
    check(isinstance(saved, Captured), f"{name}: saved is not a capture; its position is unknown.")
    check(saved.kind is kind, f"{name}: saved holds {saved.kind.value}, not {kind.value}.")
    check(len(saved) == layers, f"{name}: saved has {len(saved)} layers; the cache has {layers}.")
