"""The fault of the sample engine that the documentation shows.

All others are in `cachewitness_faults.sample`.
"""

from __future__ import annotations

from typing import Any

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness.systems.sample.server import Request


@mutant(
    name="snapshot-one-token-early",
    mirrors="vllm-mlx#683",
    anomaly="answer-differs",
    group="A",
    checker="answers",
    engines=("sample",),
    level="answers",
)
def _early(engine: Any) -> None:
    """The state that is kept at the end of a block has not seen its last token."""

    def keep(original: Any, request: Request, before: Any) -> None:
        original(request, before)
        request.states[-1].state = before

    wrap(engine.server, "keep", keep)


MUTANTS = declared(globals())
