"""vLLM's own scheduler over a small hybrid model's real tensors: what its block tables make of
logits.

Each step that the scheduler has told its worker is carried out over the pages that the worker's
rows name; logits of every position are compared with those of a run that shares nothing with it
(`cachewitness.toy`). Tables, copies, zeros and rows of tokens are vLLM's; the model and its kernels
are those of the engine `toy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.engine import Stepping
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.engine_config import most_drafts
from cachewitness.toy.engine import ToyEngine
from cachewitness.toy.model import PRECISIONS, made_for
from cachewitness_reference.vllm_extended.config import Options

NOT_RUN = ("session",)
"""What vLLM's scheduler is driven with, and the tensors are not."""
UNKNOWN = {
    "prefill_checkpoints": "saves no states within a chunk",
    "rswa_window": "reads whole answers",
}
"""Options of layers that the tensors' model has not."""


class OnTensors(ToyEngine):
    """A vLLM whose steps are computed."""

    def __init__(self, engine: Stepping, precision: str, again: Callable[[], OnTensors]) -> None:
        super().__init__(
            engine,
            made_for(engine.header.local_groups(), seed=0, precision=precision, device="cpu"),
        )
        able = [name for name in self.header.capabilities if name not in NOT_RUN]
        self.header = msgspec.structs.replace(self.header, capabilities=able)
        self._again = again

    @property
    def engine_seconds(self) -> float:
        """Seconds spent inside vLLM's own code since it was built."""
        seconds: float = vars(self)["engine"].engine_seconds
        return seconds

    def rebuild(self) -> None:
        """Become what vLLM builds now: its code was changed where it is built."""
        vars(self).update(vars(self._again()))
        self.engine.device = self


def check(trace: TraceHeader, asked: Options, given: Mapping[str, str]) -> None:
    """Raise UsageError for what is not computed on tensors."""
    if given["tensors"] not in PRECISIONS:
        raise UsageError(
            f"--engine: tensors {given['tensors']!r} is unknown; known are {', '.join(PRECISIONS)}"
        )
    if trace.level != "scheduler":
        raise UsageError(
            "--engine: tensors are computed from what vLLM's scheduler tells its worker; run it at"
            " scheduler level"
        )
    if given.get("connector"):
        raise UsageError(
            "--engine: tensors behind a connector are not computed; leave out one of the two"
        )
    for name, what in UNKNOWN.items():
        if trace.options.get(name):
            raise UsageError(
                f"option {name!r}: the tensors' model {what}; leave one of the two out"
            )
    recurrent = any(group.kind == "recurrent" for group in trace.layout.groups)
    if most_drafts(asked) and (asked.async_depth or recurrent):
        raise UsageError(
            "--engine: tensors: drafts are computed without steps in flight and over attention"
            " alone"
        )
