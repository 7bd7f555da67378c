"""The engine `lmdeploy`: the installed lmdeploy's own scheduler and the paging of its PyTorch
engine, on CPU, under the harness's worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from cachewitness import (
    Driver,
    Engine,
    EngineKind,
    OwnConfigurations,
    OwnProcess,
    TraceHeader,
    UsageError,
    WrittenFor,
)
from cachewitness.core.events import Run, StepBegin, StepEnd
from cachewitness.core.trace_format import Step
from cachewitness.engines.adapter import Asked
from cachewitness.engines.answering import chosen
from cachewitness.engines.driver import InFlight
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.lmdeploy.build import build
from cachewitness.systems.lmdeploy.configurations import configurations
from cachewitness.systems.lmdeploy.declared import describe
from cachewitness.systems.lmdeploy.options import read
from cachewitness.systems.lmdeploy.scheduler import LmdeployScheduler
from cachewitness.systems.lmdeploy.source import KNOWN, PATCHES, load


class LmdeployEngine(Driver):
    """lmdeploy's scheduler, driven. It makes a forward while the one before computes, and does not
    know yet what that generates; on the device everything that it does for the new forward comes
    behind the old one, which has run then.
    """

    def _begin(self, op: Step, asked: Asked | None) -> None:
        before = self.in_flight.popleft().scheduled if self.in_flight else None
        if before is not None:
            self.events.append(StepEnd(step=before.step))
        self.diff.step += 1
        scheduled = self.adapter.schedule(asked, op)
        scheduled.step = self.diff.step
        if before is not None:
            self.adapter.complete(before)
        # Who has ended since is computed in vain.
        live = {r: chunk for r, chunk in scheduled.chunks.items() if r in self.clients}
        begin = StepBegin(
            step=scheduled.step,
            runs=[Run(r, start, stop, self.tables(r)) for r, (start, stop) in live.items()],
            copies=scheduled.copies,
            stores=scheduled.stores,
        )
        self.events.append(begin)
        self.in_flight.append(InFlight(scheduled, begin, []))


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build lmdeploy's scheduler for a trace. Option `source`: a folder that holds `lmdeploy`.

    Raises EngineMissing if lmdeploy cannot be imported, UsageError for anything that this release
    cannot do.
    """
    if unknown := sorted(set(options) - set(ENGINE.options)):
        raise UsageError(
            f"--engine: lmdeploy has no option {unknown[0]!r}; known are"
            f" {', '.join(ENGINE.options)}"
        )
    PATCHES.undo()
    caching = chosen("lmdeploy", options, "caching", ("on", "off")) == "on"
    asked = read(header)
    source = load(options.get("source", ""))
    built = build(source, asked, caching=caching)
    described = describe(header, asked, source.release, caching=built.caching)
    return LmdeployEngine(described, LmdeployScheduler(source, built))


ENGINE = EngineKind(
    name="lmdeploy",
    summary="the installed lmdeploy's own scheduler and paging of its PyTorch engine, on CPU",
    levels=("scheduler",),
    open=open_engine,
    configurations=OwnConfigurations(lambda options: configurations(), alone=True),
    policies=None,
    replays=False,
    process=OwnProcess(),
    written_for=WrittenFor("lmdeploy", "lmdeploy", KNOWN, KNOWN),
    known=KnownFindings(by_release({"0.18": "lmdeploy-0.18.txt"})),
    options={
        "source": "a folder that holds `lmdeploy`: a wheel unpacked",
        "caching": ("on (default), or off: nothing is kept, as with `enable_prefix_caching=False`"),
        "mutant": "a seeded fault patched into it (see `ls mutants`)",
    },
)
