"""The engine `vllm`: the installed vLLM's own cache manager, or its own scheduler over it, on CPU,
under the harness's worker.

`vllm:source=PATH` takes the vLLM in that folder (a checkout, or a wheel unpacked without its
compiled parts). Everything that decides what is cached, hit, kept and evicted, and where a chunk
ends, is vLLM's code. At manager level what is ours is the order of calls around it; at scheduler
level that is vLLM's too, and ours are the client and the worker.

Time spent inside vLLM is kept apart from our own: `engine_seconds`, beside `startup_seconds` for
importing and building.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import describe_error
from cachewitness.core.events import Event, Header, History, KeyEvents
from cachewitness.core.trace_format import Op, Trace, TraceHeader
from cachewitness.engines import policy as policies
from cachewitness.engines.adapter import Driven
from cachewitness.engines.answering import chosen
from cachewitness.engines.driver import Driver
from cachewitness.engines.export import Exported, Failed
from cachewitness.engines.kind import Answer, EngineKind
from cachewitness.engines.known_findings import KnownFindings
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.own_configurations import OwnConfigurations
from cachewitness.engines.own_process import OwnProcess
from cachewitness.engines.registry import EngineSpec
from cachewitness.engines.second_tier import SecondTier
from cachewitness.engines.source_patch import ACTIVE
from cachewitness.engines.version_check import drift
from cachewitness.engines.written_for import WrittenFor
from cachewitness.systems.lmcache.modules import PATCHES as LMCACHE
from cachewitness.systems.vllm.assemble import manager_engine, scheduler_engine
from cachewitness.systems.vllm.clock import Clock
from cachewitness.systems.vllm.connectors.build import asked_for
from cachewitness.systems.vllm.connectors.scheduler import ConnectedScheduler
from cachewitness.systems.vllm.connectors.tiers import TIERING, spec_named, tiers_named
from cachewitness.systems.vllm.context_parallel import ranks_of
from cachewitness.systems.vllm.declared import read_options, release_name
from cachewitness.systems.vllm.drawing import DRAWING
from cachewitness.systems.vllm.engine_config import RUNNERS
from cachewitness.systems.vllm.hisparse.engine import WAYS, hisparse_engine
from cachewitness.systems.vllm.known import known_lists
from cachewitness.systems.vllm.plugged import (
    allow,
    blamed,
    imported,
    prepared_by,
    settings,
    start,
)
from cachewitness.systems.vllm.ranks import OPTION, RankScheduler, ranks_named
from cachewitness.systems.vllm.scheduler import RealScheduler
from cachewitness.systems.vllm.source import FIRST, KNOWN, LAST, Source, load
from cachewitness.toy.kind import need_torch
from cachewitness.workloads.configurations import Configuration
from cachewitness_reference.vllm.spec import NEWEST

if TYPE_CHECKING:
    from cachewitness.systems.vllm.on_tensors import OnTensors

IN_STEP = ("0.26",)
"""The older releases that the reference was run beside: equal blocks of full attention and sliding
windows decide alike."""


VALUES = {
    "load_failure": ("recompute", "fail"),
    "sync_failures": ("no", "yes"),
    "key_events": ("open", "strict", "full"),
    "withdraw": ("no", "yes"),
    "runner": RUNNERS,
}
"""What an option of the engine's name may be, its default first."""
WITH_CONNECTOR = ("load_failure", "sync_failures")
"""Options about the loads of a connector, which need one."""
PLUGGED = ("scheduler_cls", "observer", "connector", "prepare")
"""Options that may name a class of another package."""
NEEDS = {
    "connector_config": "connector",
    "spec": "connector",
    "secondary_tiers": "connector",
    "observer": "scheduler_cls",
    OPTION: "prepare",
}
"""Options that say more of what another one names."""
ALONE = {
    "hisparse": ("connector", "scheduler_cls", "observer", "prepare", "sized", "tensors"),
    "context_parallel": ("hisparse", "sized", "tensors"),
    OPTION: ("hisparse", "sized", "tensors", "connector", "context_parallel"),
}
"""Options, and those that each does not go with. HiSparse is a connector, it has its own sizing,
and its tensors are not driven. Requests are shared out to ranks of one device each, which load from
nowhere."""


class VllmEngine(Driver):
    """vLLM's own classes, driven."""

    startup_seconds = 0.0
    plugged: Sequence[str] = ()
    """What of another package is in it."""
    again: Callable[[], VllmEngine]
    """Builds the same engine anew."""

    def __init__(self, header: Header, adapter: Driven, clock: Clock) -> None:
        super().__init__(header, adapter)
        self._clock = clock

    def close(self) -> None:
        """Let go of what a connector keeps."""
        super().close()
        if isinstance(self.adapter, ConnectedScheduler):
            self.adapter.connector.close()
        elif isinstance(self.adapter, RankScheduler):
            self.adapter.close()

    def rebuild(self) -> None:
        """Become what vLLM builds now: its code was changed where it is built."""
        vars(self).update(vars(self.again()))

    @property
    def engine_seconds(self) -> float:
        """Seconds spent inside vLLM's own code since it was built."""
        return self._clock.seconds

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation; see `Driver.apply`. Raises Drift if this vLLM lacks what the
        adapter asks it for.
        """
        try:
            events = super().apply(op)
        except (AttributeError, TypeError) as error:
            found = drift(error, "vLLM", self.header.engine_version, f"vLLM {KNOWN}")
            if found and self.plugged:
                raise UsageError(
                    f"--engine vllm:{','.join(self.plugged)}: raised {describe_error(error)}; it"
                    f" may be written for another release than vLLM {self.header.engine_version}"
                ) from None
            raise (found or error) from None
        return (
            self.adapter.of_the_rank(events) if isinstance(self.adapter, RankScheduler) else events
        )


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build vLLM's cache manager or scheduler for a trace, as its level says. Option `source`: a
    folder that holds `vllm`.

    Raises EngineMissing if vLLM cannot be imported, UsageError for anything that this release
    cannot do.
    """
    if unknown := sorted(set(options) - set(ENGINE.options)):
        raise UsageError(
            f"--engine: vllm has no option {unknown[0]!r}; known are {', '.join(ENGINE.options)}"
        )
    for name in WITH_CONNECTOR:
        if name in options and not options.get("connector"):
            raise UsageError(
                f"--engine vllm: {name} is for loads of a connector, and the option connector names"
                " none"
            )
    for name, others in ALONE.items():
        other = next((other for other in others if other in options), "")
        if name in options and other:
            raise UsageError(
                f"--engine vllm: {name} is not driven with {other}; leave one of them out"
            )
    for name, needs in NEEDS.items():
        if options.get(name) and not options.get(needs, ""):
            raise UsageError(f"--engine vllm: {name} is for a {needs}, and the options name none")
    settled = {name: chosen("vllm", options, name, known) for name, known in VALUES.items()}
    ACTIVE.undo()
    LMCACHE.undo()
    options = {**options, **settled}
    return _computing(header, options) if "tensors" in options else _built(header, options)


def _computing(header: TraceHeader, options: Mapping[str, str]) -> OnTensors:
    """Build vLLM's scheduler over tensors."""
    need_torch()
    from cachewitness.systems.vllm.on_tensors import OnTensors, check

    check(header, read_options(header, _source(options)), options)
    return OnTensors(
        _built(header, options), options["tensors"], partial(_computing, header, options)
    )


def _source(options: Mapping[str, str]) -> Source:
    """Import the vLLM that the options name, with the plug-ins that they name and no other."""
    plugins = allow(options.get("plugins", ""))
    with blamed(plugins):
        source = load(options.get("source", ""), options.get("package", ""))
    start(plugins)
    return source


def _built(header: TraceHeader, options: Mapping[str, str]) -> VllmEngine:
    begun = perf_counter()
    source = _source(options)
    asked = read_options(header, source)
    full = options["key_events"] == "full"
    sized = options.get("sized", "")
    prepare = prepared_by(options.get("prepare", ""))
    ranks = ranks_of(options.get("context_parallel", ""), header, source)
    if "hisparse" in options:
        eager = chosen("vllm", options, "hisparse", WAYS) == "eager"
        assembled = hisparse_engine(header, asked, source, eager=eager, full=full)
    elif header.level == "scheduler":
        connector = asked_for(
            options.get("connector", ""),
            options["load_failure"],
            source,
            _connector_settings(options, source),
        )
        assembled = scheduler_engine(
            header,
            asked,
            source,
            connector,
            sized,
            full=full,
            scheduler_cls=_scheduler_of(options, source),
            observer=_observer_of(options),
            runner=options["runner"],
            prepare=prepare,
            ranks=ranks,
            shared_out=ranks_named(options.get(OPTION, ""), asked),
        )
    else:
        assembled = manager_engine(
            header, asked, source, sized, full=full, prepare=prepare, ranks=ranks
        )
    engine = VllmEngine(
        _limited(header, assembled.header, options, source), assembled.adapter, assembled.clock
    )
    if options["key_events"] == "strict" and isinstance(assembled.adapter, RealScheduler):
        assembled.adapter.publisher.mixed = True
    if options["sync_failures"] == "yes" and isinstance(assembled.adapter, ConnectedScheduler):
        assembled.adapter.sync_failures = len(header.layout.groups) == 1
    named = {name: options.get(name, "") for name in PLUGGED}
    engine.plugged = [f"{name}={value}" for name, value in named.items() if ":" in value]
    engine.again = partial(_built, header, options)
    engine.startup_seconds = perf_counter() - begun
    return engine


def _connector_settings(options: Mapping[str, str], source: Source) -> dict[str, Any]:
    """Return what a connector's configuration says beside what the harness sets. Raises UsageError
    for what it cannot.
    """
    read = settings("connector_config", options.get("connector_config", ""))
    if name := options.get("spec", ""):
        read.update(spec_named(name, source))
    if tiers := options.get("secondary_tiers", ""):
        read["secondary_tiers"] = tiers_named(tiers)
        read.setdefault("spec_name", TIERING)
    return read


def _scheduler_of(options: Mapping[str, str], source: Source) -> type | None:
    """Return the class that takes the place of vLLM's Scheduler, None for none. Raises UsageError
    for one that has not what the harness observes.
    """
    if not (name := options.get("scheduler_cls", "")):
        return None
    kind: type = imported("scheduler_cls", name)
    if not issubclass(kind, source.part("v1.core.sched.scheduler", "Scheduler")):
        raise UsageError(
            f"--engine vllm:scheduler_cls={name}: does not derive from vLLM's Scheduler, whose"
            " requests and cache manager are observed"
        )
    return kind


def _observer_of(options: Mapping[str, str]) -> type[ObservedManager]:
    """Return the class that looks at the cache manager. Raises UsageError for one that does not
    derive from the harness's own.
    """
    if not (name := options.get("observer", "")):
        return ObservedManager
    kind: type = imported("observer", name)
    if not issubclass(kind, ObservedManager):
        raise UsageError(
            f"--engine vllm:observer={name}: does not derive from"
            f" {ObservedManager.__module__}:{ObservedManager.__name__}"
        )
    return kind


def _limited(
    trace: TraceHeader, header: Header, options: Mapping[str, str], source: Source
) -> Header:
    """Return the header less what this vLLM is not asked to do, with the reasons."""
    capabilities = header.capabilities
    limits = dict(header.not_applicable)
    if why := _withdraws_not(trace, options):
        capabilities = [name for name in capabilities if name != "withdraw"]
        limits["withdraw"] = why
    if (
        trace.level == "scheduler"
        and trace.options.get("num_speculative_tokens")
        and not trace.options.get("use_eagle")
    ):
        limits["vectors"] = (
            "vLLM sets blocks aside for the drafts of a draft model alone; the reference does so"
            " for all"
        )
    if why := _out_of_step(trace, source, options):
        limits["differential"] = why
    declared = header.rules.key_events
    if declared is not None and (events := options["key_events"]) in ("strict", "full"):
        declared = (
            KeyEvents() if events == "strict" else msgspec.structs.replace(declared, again=True)
        )
        header = msgspec.structs.replace(
            header, rules=msgspec.structs.replace(header.rules, key_events=declared)
        )
    return msgspec.structs.replace(header, capabilities=capabilities, not_applicable=limits)


def _withdraws_not(trace: TraceHeader, options: Mapping[str, str]) -> str:
    """Return why no request is taken back out of a step; empty if some are."""
    if trace.level == "scheduler":
        return "vLLM's scheduler takes a request back by itself or not at all: it cannot be told to"
    if options["withdraw"] == "no":
        return (
            "vLLM keeps the keys of a withdrawn step (vllm-project/vllm#43569, #57580);"
            " vllm:withdraw=yes shows it"
        )
    return ""


def _out_of_step(trace: TraceHeader, source: Source, options: Mapping[str, str]) -> str:
    """Return why the reference is not compared with a vLLM on a configuration, and what judges it
    all the same; empty if it is compared.
    """
    if trace.level == "scheduler":
        return (
            "the reference's scheduler may decide otherwise than that of any vLLM, and both be"
            " right, so that they are not compared; vLLM's own is judged by the rules alone, in the"
            " suites scheduler and scheduler-random"
        )
    if name := options.get("prepare", ""):
        return f"prepare={name} may change what vLLM decides; it is judged by the rules alone"
    if ranks := options.get("context_parallel", ""):
        return (
            f"context_parallel={ranks}: over ranks vLLM also hits inside a block where a state's"
            " block is as long as a key covers, and the reference has no ranks; it is judged by"
            " the rules alone"
        )
    release = release_name(source)
    if release == NEWEST:
        return ""
    differs = _differs(trace, release)
    return (
        f"{differs}; this is {source.version!r}, which is judged by the rules alone"
        if differs
        else ""
    )


def _differs(trace: TraceHeader, release: str) -> str:
    if release not in IN_STEP:
        return f"the reference was compared with vLLM {', '.join((*IN_STEP, NEWEST))} alone"
    groups = trace.layout.groups
    plain = (
        all(group.kind in ("full", "sliding") for group in groups)
        and len({group.block_size for group in groups}) == 1
    )
    if not plain or trace.options.get("use_eagle"):
        return f"states, unequal blocks and speculation are looked up and cut as vLLM {NEWEST} does"
    return ""


def answer_vectors(policy: str, options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return how vLLM's own classes answer vectors, by kind of vector."""
    asked = policies.get(policy).answers
    return (
        {}
        if asked is None
        else asked().of_shape(EngineSpec(ENGINE, dict(options), ENGINE.name).open)
    )


def _as_test(
    trace: Trace, history: History, failed: Failed, options: Mapping[str, str]
) -> Exported:
    from cachewitness.systems.vllm.as_test.write import as_test

    return as_test(trace, history, failed, options)


def _configurations() -> list[Configuration]:
    from cachewitness.systems.vllm.configurations import further_configurations

    return further_configurations()


ENGINE = EngineKind(
    name="vllm",
    summary="the installed vLLM's own KVCacheManager, and its own Scheduler over it, on CPU",
    levels=("manager", "scheduler"),
    open=open_engine,
    answers=answer_vectors,
    configurations=OwnConfigurations(lambda options: _configurations()),
    drawing=DRAWING,
    tier=SecondTier(option="connector"),
    process=OwnProcess(),
    export=_as_test,
    written_for=WrittenFor("vLLM", "vllm", FIRST, LAST),
    known=KnownFindings(known_lists),
    options={
        "source": (
            "a folder that holds `vllm`: a checkout, or a wheel unpacked without its compiled parts"
        ),
        "connector": (
            "at scheduler level: the KV connector that it loads from and stores to"
            " (docs/systems/vllm-notes.md), or `module:Class` of one that derives from one of those"
            " (docs/plug-ins.md)"
        ),
        "package": (
            "`NAME`, or `NAME@RELEASE` with the release of vLLM that it follows: a fork whose"
            " modules lie in a package of its own (docs/plug-ins.md)"
        ),
        "connector_config": "a JSON object: what the connector's configuration says besides",
        "spec": (
            "with `connector=offloading`: its offloading spec, one of vLLM's by name or"
            " `module:Class` (docs/plug-ins.md)"
        ),
        "secondary_tiers": (
            "with `connector=offloading`: a JSON list of tiers behind the CPU's memory, each with a"
            " `type`: `fs`, or `module:Class` (docs/plug-ins.md)"
        ),
        "scheduler_cls": (
            "at scheduler level: `module:Class` in place of vLLM's Scheduler (docs/plug-ins.md)"
        ),
        "observer": (
            "with `scheduler_cls`: `module:Class` of what looks at a cache manager that has keys"
            " and copies of its own (docs/plug-ins.md)"
        ),
        "prepare": (
            "`module:function`, called before the cache manager is built: what a platform's"
            " executor does when it starts (docs/plug-ins.md)"
        ),
        "plugins": (
            "the plug-ins of vLLM that are loaded, `a+b`; left out: none, whatever is installed"
        ),
        "load_failure": (
            "with a connector: `fail` ends a request whose load fails; by default it is computed"
            " (`recompute`)"
        ),
        "sync_failures": (
            "`yes`: with a connector and one group, loads fail too that a step waits for"
            " (docs/systems/vllm-notes.md)"
        ),
        "mutant": "a seeded fault patched into it (see `ls mutants`)",
        "key_events": (
            "events for routers: `strict`, they may leave nothing open, which those of sparse"
            " groups do (`open`, the default); `full`, they tell of hits as well"
            " (`kv_cache_report_mode`)"
        ),
        "tensors": (
            "a precision: its scheduler's steps are computed on a small model's tensors, see the"
            " engine `toy`"
        ),
        "sized": (
            "`pages`, or MiB of memory: the trace's model goes through vLLM's own sizing"
            " (docs/systems/vllm-notes.md)"
        ),
        "hisparse": (
            "`eager` or `lazy`: at scheduler level, sparse attention whose blocks lie on the host,"
            " copies of some on the device (docs/systems/vllm-notes.md); decoded rows go to the"
            " host in their step, or when their block is full"
        ),
        "runner": (
            "at scheduler level: the model runner that follows the scheduler, vLLM's `first` (the"
            " default), its `second` (`v1/worker/gpu`), or the one that it chooses itself (`own`)"
        ),
        "context_parallel": (
            "a number of ranks over which the blocks of full attention lie in parts"
            " (decode_context_parallel_size; docs/systems/vllm-notes.md)"
        ),
        OPTION: (
            "`RANK/RANKS`, with `prepare`: at scheduler level, one rank of a scheduler that shares"
            " requests out to several is observed (docs/plug-ins.md)"
        ),
        "withdraw": (
            "`yes`: also run traces that withdraw a request from its step, which vLLM does not"
            " survive"
        ),
    },
)
