"""The engine `toy`, at scheduler level: a policy's reference with its scheduler, and tensors that
do what they say.

What requests generate is scripted, as on the engine `reference`, so that runs are alike from one
engine to the other; the logits of every position are compared with those of a cold run, and the
comparison is an event, `compare`, that checkers judge.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.engine import Stepping
from cachewitness.core.events import Event, Header, StepBegin, Submitted
from cachewitness.core.scripted import Scripted
from cachewitness.core.trace_format import COMPARE, TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.toy.call_recorder import Computed
from cachewitness.toy.model import PRECISIONS, Model, loaded, made_for
from cachewitness.toy.oracle import Oracle
from cachewitness.toy.spelling import Spelling
from cachewitness.toy.tensors import Tensors
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.kernels import NAMES

PAD_ROWS = 4
"""Batches are filled up to a multiple of so many rows, as captured graphs want it."""


class ToyEngine(Computed):
    """Carries out a trace on a policy's scheduler and, step by step, on tensors; compares every
    position with a cold run.
    """

    def __init__(
        self, engine: Stepping, model: Model, *, pad_rows: int = 1, kernels: str = "torch"
    ) -> None:
        assert isinstance(engine.sampler, Scripted)
        super().__init__(
            engine,
            Tensors(engine.header, model, every_position=True, pad_rows=pad_rows, kernels=kernels),
        )
        self.header = msgspec.structs.replace(
            engine.header, capabilities=[*engine.header.capabilities, COMPARE]
        )
        self.oracle = Oracle(model, self._truth)
        self._scripted = engine.sampler
        self._spelling = Spelling(model.config.vocab_size)
        self._prompts: dict[str, list[int]] = {}

    def compute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]
    ) -> None:
        """Run the tensors, and compare what comes out of them."""
        spelt = {
            run.r: self._spelling.spell(run.r, tokens[run.r])
            for run in begin.runs
            if run.r not in withdrawn
        }
        logits = self.tensors.execute(begin, withdrawn, spelt)
        version = self.tensors.version
        runs = [
            run
            for run in begin.runs
            if run.r in logits and not self.tensors.orphaned(begin.step, run.r)
        ]
        self.oracle.prepare([(run.r, run.stop) for run in runs], version)
        for run in runs:
            new = spelt[run.r][run.start : run.stop]
            place = self.tensors.places.get(run.r)
            compared = self.oracle.compare(
                run.r, run.start, new, logits[run.r], version, begin.step, place
            )
            self.engine.events.append(compared)

    def follow(self, events: list[Event]) -> None:
        """Take in what the engine says; of a prompt, how it is spelt in the model's tokens."""
        for event in events:
            if isinstance(event, Submitted):
                self._spelling.submitted(event)
                self._prompts[event.r] = event.tokens
        super().follow(events)

    def _truth(self, r: str, count: int) -> list[int]:
        """Return the model's tokens of a request, scripted ones that it has yet to sample
        included.
        """
        prompt = self._prompts[r]
        symbols = [*prompt, *(self._scripted.token(r, i) for i in range(count - len(prompt)))]
        return self._spelling.spell(r, symbols)


def build(header: TraceHeader, options: Mapping[str, str]) -> ToyEngine:
    """Build the engine for a trace; see `cachewitness.toy` for the options.

    Raises UsageError for an option that does not fit.
    """
    if "batch" in options:
        raise UsageError(
            "--engine: batch is for prompts; how many requests of a trace run at a time is in its"
            " header"
        )
    engine: Any = policies.get(header.policy).open(header, {"release": options.get("release", "")})
    engine.header = msgspec.structs.replace(engine.header, engine="toy")
    model = _model(engine.header, options)
    kernels = options.get("kernels", "torch")
    check_kernels(kernels, model.device, model.config)
    pad_rows = _number("pad_rows", options, PAD_ROWS, 1)
    return ToyEngine(engine, model, pad_rows=pad_rows, kernels=kernels)


def _model(header: Header, options: Mapping[str, str]) -> Model:
    precision = options.get("dtype", "float64")
    device = options.get("device", "cpu")
    check(precision, device)
    groups = header.local_groups()
    if folder := options.get("checkpoint", ""):
        return loaded(Path(folder), groups, precision=precision, device=device)
    return made_for(groups, seed=_number("seed", options, 0, 0), precision=precision, device=device)


def _number(name: str, options: Mapping[str, str], default: int, least: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"--engine: {name} {text!r} is not a whole number, at least {least}")
    return int(text)


def check(precision: str, device: str) -> None:
    """Raise UsageError for a precision or a device that there is not."""
    import torch

    if precision not in PRECISIONS:
        raise UsageError(
            f"--engine: dtype {precision!r} is unknown; known are {', '.join(PRECISIONS)}"
        )
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--engine: device {device!r} is unknown; known are cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--engine: device cuda: torch sees no GPU here; use device=cpu")


def check_kernels(kernels: str, device: str, config: ToyConfig) -> None:
    """Make kernels ready for a device: without a GPU those in Triton run in its interpreter.

    Raises UsageError for kernels that there are not, or that lack a layer of the model,
    EngineMissing without Triton.
    """
    if kernels not in NAMES:
        raise UsageError(f"--engine: kernels {kernels!r} are unknown; known are {', '.join(NAMES)}")
    if kernels == "torch":
        return
    if "mamba2" in config.layer_types:
        raise UsageError(
            "--engine: kernels triton: there are none for layers of type mamba2; use kernels=torch"
        )
    if find_spec("triton") is None:
        raise EngineMissing(
            "--engine: kernels triton: Triton is not installed; pip install 'cachewitness[triton]'"
        )
    if device == "cpu" and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from cachewitness_reference.toy_model.triton_kernels.operation import INTERPRETED

    if (device == "cpu") != INTERPRETED:
        remedy = "set TRITON_INTERPRET=1" if device == "cpu" else "unset TRITON_INTERPRET"
        raise UsageError(
            f"--engine: kernels triton on device {device}: {remedy} in the environment before the"
            " start"
        )
