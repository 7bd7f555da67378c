"""The suite `cold-vs-cached`, for engines that compute. Nothing here imports torch until a trace is judged."""

from __future__ import annotations

from harness.cold.streams import streams
from harness.engines.protocol import Engine
from harness.engines.registry import EngineSpec
from harness.run.suites import Suite, Tensors, scenario_traces
from harness.trace.format import Trace
from harness.verdict.compared import NAME
from harness.verdict.result import Result


def _judge(trace: Trace, engine: Engine, spec: EngineSpec) -> Result:
    from harness.cold.judge import judged

    return judged(trace, engine, spec, keep=False)


SUITE = Suite(
    NAME,
    "the same requests without a cache and with one, by their tensors",
    "scheduler",
    scenario_traces,
    tensors=Tensors(streams, _judge),
)
