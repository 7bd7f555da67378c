"""The kernels that an execution mixes tokens with, by name, so that a device can have others than these.

`dense` and the training use them as they are. A paged execution takes them from here; a seeded fault of a device replaces one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reference_impl.toy_model import attention, causal_conv, gated_delta, mamba2


class Span(Protocol):
    """Tokens [start, stop) of one request."""

    @property
    def start(self) -> int:
        """Return the position of the first token."""

    @property
    def stop(self) -> int:
        """Return the position behind the last token."""


def positions(span: Span) -> Tensor:
    """Return the rotary positions of a chunk's tokens."""
    return torch.arange(span.start, span.stop)


@dataclass
class Kernels:
    """One function for each kernel; arguments and results are those of the functions that stand here."""

    delta_by_token: Callable[..., tuple[Tensor, Tensor]] = gated_delta.recurrent
    delta_by_chunk: Callable[..., tuple[Tensor, Tensor]] = gated_delta.chunked
    mamba2_by_token: Callable[..., tuple[Tensor, Tensor]] = mamba2.recurrent
    mamba2_by_chunk: Callable[..., tuple[Tensor, Tensor]] = mamba2.chunked
    conv: Callable[..., Tensor] = causal_conv.causal_conv
    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = attention.attend
    positions: Callable[[Span], Tensor] = positions


PLAIN = Kernels()
