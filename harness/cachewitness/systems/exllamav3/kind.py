"""The engine `exllamav3`: the installed exllamav3's own generator, page table and recurrent cache,
on CPU, under the harness's worker.
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
from cachewitness.core.events import Header
from cachewitness.core.trace_format import Step
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.exllamav3.configurations import configurations
from cachewitness.systems.exllamav3.declared import describe
from cachewitness.systems.exllamav3.generator import Exllamav3Generator
from cachewitness.systems.exllamav3.options import read
from cachewitness.systems.exllamav3.source import KNOWN, PATCHES, load


class Exllamav3Engine(Driver):
    """exllamav3's generator, driven: one operation is one iteration of it, which may make several
    forwards, each of them a step.
    """

    def __init__(self, header: Header, adapter: Exllamav3Generator) -> None:
        super().__init__(header, adapter)
        self._generator = adapter

    def _step(self, op: Step) -> None:
        self._generator.iterate()
        if op.cancel:
            self._cancel(op.cancel)

    def close(self) -> None:
        """Let the generator's threads go."""
        self._generator.generator.close()


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build exllamav3's generator for a trace. Option `source`: a folder that holds `exllamav3`.

    Raises EngineMissing if exllamav3 cannot be imported, UsageError for anything that this release
    cannot do.
    """
    if unknown := sorted(set(options) - set(ENGINE.options)):
        raise UsageError(
            f"--engine: exllamav3 has no option {unknown[0]!r}; known are"
            f" {', '.join(ENGINE.options)}"
        )
    PATCHES.undo()
    asked = read(header)
    source = load(options.get("source", ""))
    return Exllamav3Engine(
        describe(header, asked, source.release), Exllamav3Generator(source, asked)
    )


ENGINE = EngineKind(
    name="exllamav3",
    summary="the installed exllamav3's own generator, page table and recurrent cache, on CPU",
    levels=("scheduler",),
    open=open_engine,
    configurations=OwnConfigurations(lambda options: configurations(), alone=True),
    policies=None,
    replays=False,
    process=OwnProcess(),
    written_for=WrittenFor("exllamav3", "exllamav3", KNOWN, KNOWN),
    known=KnownFindings(by_release({"1.6": "exllamav3-1.6.txt"})),
    options={
        "source": "a folder that holds `exllamav3`: a wheel unpacked",
        "mutant": "a seeded fault patched into it (see `ls mutants`)",
    },
)
