"""The engine `toy`, at scheduler height: the reference's scheduler and cache manager, and tensors that do what they say.

What requests generate is scripted, as on the engine `reference`, so that runs are alike from one engine to the other; the
logits of every position are compared with those of a cold run, and the comparison is an event, `compare`, that checkers judge.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from harness.engines.manager_height import ManagerHeight
from harness.engines.scheduler_height import SchedulerHeight
from harness.errors import UsageError
from harness.history import Event, StepBegin, Submitted
from harness.toy.model import PRECISIONS, Model, loaded, made_for
from harness.toy.oracle import Oracle
from harness.toy.spelling import Spelling
from harness.toy.tensors import Tensors
from harness.trace import Op, TraceHeader
from reference_impl.vllm.config import KVCacheConfig

CAPABILITY = "compare"


class ToyEngine(SchedulerHeight):
    """Carries out a trace on the reference's scheduler and, step by step, on tensors."""

    def __init__(self, engine: ManagerHeight, config: KVCacheConfig, model: Model, *, pad_rows: int = 1) -> None:
        super().__init__(engine.header, config, engine.manager, engine.new_request, device=self)
        self.header = msgspec.structs.replace(self.header, capabilities=[*self.header.capabilities, CAPABILITY])
        self.tensors = Tensors(self.header, model, every_position=True, pad_rows=pad_rows)
        self.oracle = Oracle(model, self._truth)
        self._spelling = Spelling(model.config.vocab_size)
        self._prompts: dict[str, list[int]] = {}
        self._followed = 0

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events, comparisons among them."""
        self._followed = 0
        events = super().apply(op)
        self._follow()
        return events

    def execute(self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]) -> None:
        """Carry a step out on the tensors, and compare what comes out of it."""
        self._follow()
        spelt = {run.r: self._spelling.spell(run.r, tokens[run.r]) for run in begin.runs if run.r not in withdrawn}
        logits = self.tensors.execute(begin, withdrawn, spelt)
        for run in begin.runs:
            if run.r in logits and not self.tensors.orphaned(begin.step, run.r):
                new, version = spelt[run.r][run.start : run.stop], self.tensors.version
                compared = self.oracle.compare(run.r, run.start, new, logits[run.r], version, begin.step)
                self.manager.events.append(compared)
        self.tensors.settle(begin.step)

    def _follow(self) -> None:
        events = self.manager.events[self._followed :]
        self._followed += len(events)
        for event in events:
            if isinstance(event, Submitted):
                self._spelling.submitted(event)
                self._prompts[event.r] = event.tokens
        self.tensors.follow(events)

    def _truth(self, r: str, count: int) -> list[int]:
        """Return the model's tokens of a request, scripted ones that it has yet to sample included."""
        prompt, text = self._prompts[r], self._scripted.texts[r]
        symbols = [*prompt, *(self._vocabulary.token(text, i) for i in range(count - len(prompt)))]
        return self._spelling.spell(r, symbols)


def build(header: TraceHeader, options: Mapping[str, str]) -> ToyEngine:
    """Build the engine for a trace; see `harness.toy` for the options.

    Raises UsageError for an option that does not fit.
    """
    from harness.engines.reference_vllm import assemble, configure
    from reference_impl.vllm.kv_cache_manager import KVCacheManager

    config = configure(header, options.get("release", ""))
    mutant = options.get("mutant", "")
    engine = assemble(header, config, KVCacheManager(config), "toy" + (f":mutant={mutant}" if mutant else ""))
    toy = ToyEngine(engine, config, _model(engine, options), pad_rows=_number("pad_rows", options, 1))
    if mutant:
        plant_fault(mutant, toy)
    return toy


def plant_fault(mutant: str, engine: SchedulerHeight) -> None:
    """Plant a fault of the policy or of the device. Raises UsageError if there is no such fault, or if it does not fit."""
    from harness.mutants import all_mutants, plant

    known = all_mutants()
    plant(mutant, "toy" if mutant in known and "toy" in known[mutant].engines else "reference", engine, "scheduler")


def _model(engine: ManagerHeight, options: Mapping[str, str]) -> Model:
    precision, device = options.get("dtype", "float64"), options.get("device", "cpu")
    check(precision, device)
    groups = engine.header.local_groups()
    if folder := options.get("checkpoint", ""):
        return loaded(Path(folder), groups, precision=precision, device=device)
    return made_for(groups, seed=_number("seed", options, 0), precision=precision, device=device)


def _number(name: str, options: Mapping[str, str], default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or int(text) < default:
        raise UsageError(f"--engine: {name} {text!r} is not a whole number, at least {default}")
    return int(text)


def check(precision: str, device: str) -> None:
    """Raise UsageError for a precision or a device that there is not."""
    import torch

    if precision not in PRECISIONS:
        raise UsageError(f"--engine: dtype {precision!r} is unknown; known are {', '.join(PRECISIONS)}")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--engine: device {device!r} is unknown; known are cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--engine: device cuda: torch sees no GPU here; use device=cpu")
