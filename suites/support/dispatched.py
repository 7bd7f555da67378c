"""What a computation asks of a device: the operations that torch dispatches, with the shapes of
their arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VIEWS = (
    "split",
    "select",
    "slice",
    "unsqueeze",
    "view",
    "t",
    "transpose",
    "unbind",
    "expand",
    "as_strided",
    "split_with_sizes",
)
"""Operations that only say how memory is looked at: they launch nothing."""


class Dispatched(TorchDispatchMode):
    """Lists every operation in its context: the name, and the shape of each tensor or the value
    of anything else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = [
            (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else x
            for x in tree_leaves((args, kwargs or {}))
        ]
        self.calls.append((func.overloadpacket.__name__, tuple(given)))
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> Counter[str]:
        return Counter(name for name, _ in self.calls)

    @property
    def launches(self) -> int:
        """How many of them do something on a device."""
        return sum(count for name, count in self.names.items() if name not in VIEWS)


class HostReads:
    """Counts how often values of tensors are read on the host: where a GPU would make the host
    wait.

    What is read of a tensor on the meta device, which has no values, is zeros.
    """

    NAMES = (
        "item",
        "tolist",
        "cpu",
        "to",
        "numpy",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "nonzero",
    )

    def __init__(self, device: str = "") -> None:
        self.names: list[str] = []
        self._device = device
        """The only device whose tensors count; empty: any."""

    def __enter__(self) -> HostReads:
        self._original = {name: getattr(Tensor, name) for name in self.NAMES}
        for name, method in self._original.items():
            setattr(Tensor, name, self._counting(name, method))
        return self

    def __exit__(self, *_: object) -> None:
        for name, method in self._original.items():
            setattr(Tensor, name, method)

    def _counting(self, name: str, method: Any) -> Any:
        def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._device in ("", tensor.device.type) and (
                name != "to" or _to_the_host(args, kwargs)
            ):
                self.names.append(name)
                tensor = torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor
            return method(tensor, *args, **kwargs)

        return counting


def _to_the_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of `Tensor.to` names the CPU, or a tensor that lies there."""
    given = [
        other.device if isinstance(other, Tensor) else other for other in (*args, *kwargs.values())
    ]
    return any(
        isinstance(other, str | torch.device) and torch.device(other).type == "cpu"
        for other in given
    )


def meta(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in weights.items()}
