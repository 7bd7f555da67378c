"""The kernels that an execution mixes tokens with, by name, so that a device can have others than
these.

`dense` and the training use the plain ones as they are. A paged execution takes plain or flat ones
from here, and does its step accordingly: `paged` gathers pages for plain kernels, `flat` leaves
that to kernels which follow block tables themselves. A seeded fault of a device replaces one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from cachewitness_reference.toy_model import attention, causal_conv, gated_delta, mamba2


class Span(Protocol):
    """Tokens [start, stop) of one request."""

    @property
    def start(self) -> int:
        """Return the position of the first token."""

    @property
    def stop(self) -> int:
        """Return the position behind the last token."""


def positions(span: Span) -> Sequence[int]:
    """Return the rotary positions of a chunk's tokens."""
    return range(span.start, span.stop)


@dataclass
class Kernels:
    """One function for each kernel; arguments and results are those of the functions that stand
    here.
    """

    delta_by_token: Callable[..., tuple[Tensor, Tensor]] = gated_delta.recurrent
    delta_by_chunk: Callable[..., tuple[Tensor, Tensor]] = gated_delta.chunked
    mamba2_by_token: Callable[..., tuple[Tensor, Tensor]] = mamba2.recurrent
    mamba2_by_chunk: Callable[..., tuple[Tensor, Tensor]] = mamba2.chunked
    conv: Callable[..., Tensor] = causal_conv.causal_conv
    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = attention.attend
    positions: Callable[[Span], Sequence[int]] = positions


PLAIN = Kernels()


@dataclass
class FlatKernels:
    """Kernels over the flat tokens of requests of any length and over pages, one function each.

    Arguments and results are those of `triton_kernels`, where each stands under the name in
    brackets.
    """

    gather: Callable[..., Tensor]
    """States out of their pages (`state.gather_states`)."""
    normalise: Callable[..., Tensor]
    """A residual sum and its norm (`norms.add_and_normalise`)."""
    keep: Callable[..., Tensor]
    """Queries, and keys and values into their pages (`attention.keep_keys`)."""
    attend: Callable[..., Tensor]
    """Attention over pages (`attention.paged_attention`)."""
    conv: Callable[..., Tensor]
    """The causal convolution (`convolution.causal_conv`)."""
    keep_inputs: Callable[..., None]
    """What it leaves behind, into pages (`convolution.keep_inputs`)."""
    gates: Callable[..., tuple[Tensor, Tensor]]
    """Decay and write strength of the delta rule (`gated_delta.delta_gates`)."""
    delta: Callable[..., Tensor]
    """The gated delta rule, and memories into pages (`gated_delta.gated_delta`)."""
    gate: Callable[..., Tensor]
    """The norm of its outputs (`norms.normalise_and_gate`)."""
    positions: Callable[[Span], Sequence[int]] = positions
    known: tuple[attention.Weights, attention.Weights] | None = None
    """The weights that were used last, and what `flat.constants` made of them."""
    graphs: Any = None
    """Decode steps that were captured over the pools and weights that were used last
    (`captured.Graphs`); None: none were."""


NAMES = ("torch", "triton")


def named(name: str) -> Kernels | FlatKernels:
    """Return the kernels of a name, one of `NAMES`. Those in Triton need it installed."""
    if name == "torch":
        return Kernels()
    from cachewitness_reference.toy_model.triton_kernels import (
        attention,
        convolution,
        gated_delta,
        norms,
        state,
    )

    return FlatKernels(
        gather=state.gather_states,
        normalise=norms.add_and_normalise,
        keep=attention.keep_keys,
        attend=attention.paged_attention,
        conv=convolution.causal_conv,
        keep_inputs=convolution.keep_inputs,
        gates=gated_delta.delta_gates,
        delta=gated_delta.gated_delta,
        gate=norms.normalise_and_gate,
    )
