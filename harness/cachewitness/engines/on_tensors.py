"""How a policy is run over a model's real tensors: compared cold and cached, and answering
prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Layout, TraceHeader
from cachewitness.workloads.configurations import Configuration


@dataclass(frozen=True)
class Serving:
    """How a policy is to be run for answering prompts; sizes as in
    `cachewitness.toy.service.ToyService`.
    """

    caching: bool
    pages: int
    batch: int
    budget: int
    model_len: int
    retention_interval: int | None = None
    drafts: int = 0
    in_flight: int = 0
    tier_pages: int = 0


Serve = Callable[[Layout, Serving], TraceHeader]
"""How a model's layout is run for answering prompts; raises UsageError for what the system has not.
"""


@dataclass(frozen=True)
class OnTensors:
    """How a policy runs on tensors. What is left out is what every policy can do.

    `configurations` are those on which tensors are compared; None: those of a run. `serve` is how
    it answers prompts; None: without options of its own (`served_plainly`). `checkpoint` is the
    trained model, of those in the fixtures, whose layers the system has caches for. `tiered`: its
    prefixes lie in a second tier, behind an engine's own cache, so a score that took nothing from
    there checked nothing. `keeps_answers`: a prompt that goes on behind an answer can hit what that
    left.
    """

    configurations: Callable[[], list[Configuration]] | None = None
    serve: Serve | None = None
    checkpoint: str = "toy"
    tiered: bool = False
    keeps_answers: bool = True


def served_plainly(policy: str, layout: Layout, serving: Serving, **options: Any) -> TraceHeader:
    """Return the header of a policy that has neither drafts, nor steps in flight, nor a second
    tier, for answering prompts.

    Raises UsageError for what it has not; `options` are added to those that every policy takes.
    """
    for what, asked in (
        ("drafts", serving.drafts),
        ("steps in flight", serving.in_flight),
        ("a second tier", serving.tier_pages),
    ):
        if asked:
            raise UsageError(f"--policy {policy}: has no {what.removeprefix('a ')}")
    common = {
        "enable_caching": serving.caching,
        "max_num_seqs": serving.batch,
        "max_num_batched_tokens": serving.budget,
        "max_model_len": serving.model_len,
    }
    return TraceHeader(
        name="service",
        layout=layout,
        pages=serving.pages,
        level="scheduler",
        policy=policy,
        options=common | options,
    )
