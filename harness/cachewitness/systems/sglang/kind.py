"""The engine `sglang`: the installed SGLang's own unified radix cache, on CPU, under the
harness's scheduling and worker.
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
from cachewitness.core.events import Event
from cachewitness.core.trace_format import Op
from cachewitness.engines.answering import chosen
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.engines.version_check import Drift, drift
from cachewitness.systems.sglang.build import build
from cachewitness.systems.sglang.cache import SALTED, SglangCache
from cachewitness.systems.sglang.configurations import configurations
from cachewitness.systems.sglang.declared import describe, groups_of
from cachewitness.systems.sglang.options import read
from cachewitness.systems.sglang.source import KNOWN, PATCHES, load
from cachewitness.systems.sglang.stubs import StandInCalled


class SglangEngine(Driver):
    """SGLang's own classes, driven."""

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation; see `Driver.apply`. Raises Drift if this SGLang needs what
        the adapter has not.
        """
        try:
            return super().apply(op)
        except StandInCalled as error:
            raise Drift(
                f"SGLang {self.header.engine_version}: {error}, which stands in for a part that is"
                " not there"
            ) from None
        except (AttributeError, TypeError) as error:
            raise (
                drift(error, "SGLang", self.header.engine_version, f"SGLang {KNOWN}") or error
            ) from None


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build SGLang's cache for a trace. Option `source`: a folder that holds `sglang`.

    Raises EngineMissing if SGLang cannot be imported, UsageError for anything that this release
    cannot do.
    """
    if unknown := sorted(set(options) - set(ENGINE.options)):
        raise UsageError(
            f"--engine: sglang has no option {unknown[0]!r}; known are {', '.join(ENGINE.options)}"
        )
    PATCHES.undo()
    caching = chosen("sglang", options, "caching", ("on", "off")) == "on"
    salted = chosen("sglang", options, "salt", SALTED)
    source = load(options.get("source", ""))
    asked = read(header)
    groups = groups_of(asked)
    described = describe(header, asked, groups, source.release, caching=caching)
    return SglangEngine(
        described, SglangCache(source, build(source, asked, caching=caching), groups, salted)
    )


ENGINE = EngineKind(
    name="sglang",
    summary="the installed SGLang's own unified radix cache and its allocators, on CPU",
    levels=("manager",),
    open=open_engine,
    configurations=OwnConfigurations(lambda options: configurations(), alone=True),
    policies=None,
    replays=False,
    process=OwnProcess(),
    written_for=WrittenFor("SGLang", "sglang", KNOWN, KNOWN),
    known=KnownFindings(by_release({"0.5": "sglang-0.5.txt"})),
    options={
        "source": "a folder that holds `sglang`: a wheel unpacked",
        "caching": (
            "on (default), or off: nothing is kept, as with SGLang's `--disable-radix-cache`"
        ),
        "salt": "in which field of a request a salt is: cache_salt (default) or extra_key",
        "mutant": "a seeded fault patched into it (see `ls mutants`)",
    },
)
