"""Decode steps replayed from CUDA graphs: launching some 70 operations takes longer than computing
them.

`flat.forward` runs the same operations over tensors of the same shapes for steps of one `Shape`. A
shape that comes often is captured; from then on its steps copy their numbers and the states that
they go on from to where the captured operations read them, and replay. Reading states and claiming
pages stand before the graph, since they differ from step to step.

Only operations of torch can be replayed: a kernel that somebody replaced by a function of Python,
as seeded faults do, would run once and never again, so that nothing is captured then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachewitness_reference.toy_model.attention import Weights
from cachewitness_reference.toy_model.flat_plan import Batch, FlatPlan, Shape, batch
from cachewitness_reference.toy_model.kernels import FlatKernels
from cachewitness_reference.toy_model.paged_pools import Pools, sent

OFTEN = 8
"""So many steps of a shape run as they are before it is captured, which takes as long as some
twenty of them."""
CAPTURED_MOST = 64

States = dict[int, list[Tensor]]
"""By recurrent group conv and memory [layers, requests, ...] that requests go on from."""
Begin = Callable[[Batch], States]
"""Reads the states of a step whose numbers lie in a batch, and claims its pages."""
Forward = Callable[[Batch, States], Tensor]


@dataclass
class Captured:
    """The steps of one shape. `numbers` and `states` are where the graph reads, `logits` where
    it writes.
    """

    numbers: Tensor
    there: Batch
    states: States
    graph: Any
    logits: Tensor

    def replay(self, planned: FlatPlan, begin: Begin) -> Tensor:
        """Run a step and return its logits, padding's last."""
        self.numbers.copy_(planned.numbers.pin_memory(), non_blocking=True)
        for g, fresh in begin(self.there).items():
            for kept, state in zip(self.states[g], fresh, strict=True):
                kept.copy_(state)
        self.graph.replay()
        return self.logits.clone()


class Graphs:
    """The captured shapes of one model over one space of pages. `replayed` counts the steps that
    a graph ran.
    """

    def __init__(self, pools: Pools, weights: Weights) -> None:
        self._pools = pools
        self._pages = pools.pages
        self._weights = weights
        self._memory: Any = None
        self._seen: Counter[Shape] = Counter()
        self._captured: dict[Shape, Captured] = {}
        self.replayed = 0

    def fits(self, pools: Pools, weights: Weights) -> bool:
        """Whether these are the tensors that were captured: pools that grow lie elsewhere
        afterwards.
        """
        return pools is self._pools and pools.pages == self._pages and weights is self._weights

    def run(self, planned: FlatPlan, begin: Begin, forward: Forward) -> Tensor:
        """Run a step, by its shape's graph if there is one, and return its logits, padding's
        last.
        """
        shape = planned.shape
        if shape in self._captured:
            self.replayed += 1
            return self._captured[shape].replay(planned, begin)
        self._seen[shape] += 1
        numbers = sent(planned.numbers, self._pools.device)
        there = batch(shape, numbers)
        states = begin(there)
        logits = forward(there, states)
        if self._seen[shape] >= OFTEN and len(self._captured) < CAPTURED_MOST:
            self._captured[shape] = self._capture(numbers, there, states, forward)
        return logits

    def _capture(self, numbers: Tensor, there: Batch, states: States, forward: Forward) -> Captured:
        """Capture what has just run, so that all that it needs is compiled; capturing computes
        nothing.
        """
        graph: Any = torch.cuda.CUDAGraph()
        self._memory = self._memory or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._memory):
            logits = forward(there, states)
        return Captured(numbers, there, states, graph, logits)


def can_capture(kernels: FlatKernels, pools: Pools, shape: Shape) -> bool:
    """Whether a step of this shape may be replayed: a decode step on a GPU, with no kernel but
    operations of torch.
    """
    kinds = (
        value
        for name, value in vars(kernels).items()
        if name not in ("positions", "known", "graphs")
    )
    return (
        pools.device.type == "cuda"
        and shape.longest == 1
        and all(isinstance(k, torch._ops.OpOverloadPacket) for k in kinds)
    )
