"""The engine `vllm`: the installed vLLM's own cache manager, on CPU, under the harness's scheduler and worker.

`vllm:source=PATH` takes the vLLM in that folder (a checkout, or a wheel unpacked without its compiled parts). Everything
that decides what is cached, hit, kept and evicted, and where a chunk ends, is vLLM's code; what is ours is the order of
calls around it.

Time spent inside vLLM is kept apart from our own: `engine_seconds`, beside `startup_seconds` for importing and building.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import msgspec

from harness._util.errors import UsageError
from harness.engines import policy as policies
from harness.engines.drift import drift, takes
from harness.engines.driver import Driver
from harness.engines.kind import Answer, EngineKind
from harness.engines.manager_adapter import ManagerAdapter, NewRequest
from harness.engines.mutant import Mutant
from harness.engines.observe import ObservedManager
from harness.engines.protocol import Engine
from harness.engines.real_vllm.build import (
    block_sizes,
    cache_config,
    default_interval,
    has_retention_field,
    manager,
    request_maker,
)
from harness.engines.real_vllm.patch import ACTIVE
from harness.engines.real_vllm.source import KNOWN, Source, load
from harness.engines.real_vllm.split import chunk_split
from harness.engines.registry import EngineSpec
from harness.engines.vllm_header import describe, retention
from harness.history.events import Event, Header, Rules
from harness.trace.format import Op, Submit, TraceHeader
from reference_impl.vllm.config import ConfigError
from reference_impl.vllm.options import RETENTION_VARIABLE
from reference_impl.vllm.spec import NEWEST, RELEASES
from reference_impl.vllm_extended.config import Options

PROGRESS_STEPS = 4
"""A request waits one step for a state of the same step; the rest is margin."""

EXTENSION_ENDED = (0, 32)
"""Up to then, where hits may end inside a block, the tail of a prompt was kept at the prompt's own end."""

TIMED = (
    "allocate_slots",
    "cache_blocks",
    "free",
    "get_computed_blocks",
    "new_step_starts",
    "reset_prefix_cache",
    "take_kv_cache_block_copies",
    "take_new_block_ids",
)


IN_STEP = ("0.26",)
"""The older releases that the reference was run beside: equal blocks of full attention and sliding windows decide alike."""


class TimedManager:
    """A manager whose calls are timed; `engine_seconds` is the time spent inside them."""

    def __init__(self, timed: Any) -> None:
        self.timed = timed
        self.engine_seconds = 0.0
        for name in TIMED:
            if hasattr(timed, name):
                setattr(self, name, self.clocked(timed, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.timed, name)

    def new_requests(self, new_request: NewRequest) -> NewRequest:
        """Return the same maker of requests; making one, and adding a token to it, hashes blocks and is vLLM's time."""
        make = SimpleNamespace(request=new_request)
        clocked = self.clocked(make, "request")

        def timed(op: Submit, tokens: list[int]) -> Any:
            request = clocked(op, tokens)
            plain = SimpleNamespace(append=request.append_output_token_ids)
            request.append_output_token_ids = self.clocked(plain, "append")
            return request

        return timed

    def clocked(self, owner: Any, name: str) -> Any:
        """Return the method as a function whose time is counted."""

        def clocked(*args: Any, **kwargs: Any) -> Any:
            begun = perf_counter()
            try:
                return getattr(owner, name)(*args, **kwargs)
            finally:
                self.engine_seconds += perf_counter() - begun

        return clocked


class VllmManager(Driver):
    """vLLM's KVCacheManager at manager height."""

    startup_seconds = 0.0

    def __init__(self, header: Header, adapter: ManagerAdapter, timed: TimedManager) -> None:
        super().__init__(header, adapter)
        self._timed = timed

    @property
    def engine_seconds(self) -> float:
        """Seconds spent inside vLLM's own code since it was built."""
        return self._timed.engine_seconds

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation; see `Driver.apply`. Raises Drift if this vLLM lacks what the adapter asks it for."""
        try:
            return super().apply(op)
        except (AttributeError, TypeError) as error:
            raise drift(error, "vLLM", self.header.engine_version, f"vLLM {KNOWN}") or error from None


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build vLLM's cache manager for a trace. Option `source`: a folder that holds `vllm`.

    Raises EngineMissing if vLLM cannot be imported, UsageError for anything that this release cannot do.
    """
    begun = perf_counter()
    if unknown := sorted(set(options) - set(ENGINE.options)):
        raise UsageError(f"--engine: vllm has no option {unknown[0]!r}; known are {', '.join(ENGINE.options)}")
    source = load(options.get("source", ""))
    ACTIVE.undo()
    engine = _assemble(header, _read_options(header, source), source)
    engine.header = _limited(header, engine.header, options, source)
    engine.startup_seconds = perf_counter() - begun
    return engine


def _limited(trace: TraceHeader, header: Header, options: Mapping[str, str], source: Source) -> Header:
    """Return the header less what this vLLM is not asked to do, with the reasons."""
    capabilities, limits = header.capabilities, dict(header.not_applicable)
    if options.get("withdraw", "no") == "no":
        capabilities = [name for name in capabilities if name != "withdraw"]
        limits["withdraw"] = (
            "vLLM keeps the keys of a withdrawn step (vllm-project/vllm#43569, #57580); vllm:withdraw=yes shows it"
        )
    if why := _out_of_step(trace, _release_name(source)):
        limits["differential"] = f"{why}; this is {source.version!r}"
    return msgspec.structs.replace(header, capabilities=capabilities, not_applicable=limits)


def _out_of_step(trace: TraceHeader, release: str) -> str:
    """Return why the reference of a release is not compared with vLLM on a configuration; empty if it is."""
    if release == NEWEST:
        return ""
    if release not in IN_STEP:
        return f"the reference was compared with vLLM {', '.join((*IN_STEP, NEWEST))} alone"
    groups = trace.layout.groups
    plain = all(group.kind in ("full", "sliding") for group in groups) and len({group.block_size for group in groups}) == 1
    if not plain or trace.options.get("use_eagle"):
        return f"states, unequal blocks and speculation are looked up and cut as vLLM {NEWEST} does"
    return ""


def _assemble(header: TraceHeader, options: Options, source: Source) -> VllmManager:
    interval = _interval(header, options, source)
    config = cache_config(source, header, options, interval)
    sizes = block_sizes(source, header, config, options)
    environment = os.environ.get(RETENTION_VARIABLE)
    try:
        if not has_retention_field(source):
            _set_variable(RETENTION_VARIABLE, None if interval is None else str(interval))
        core = manager(source, config, sizes, options)
    finally:
        _set_variable(RETENTION_VARIABLE, environment)
    partial_hits = bool(getattr(core.coordinator, "enable_partial_hash_hits", False))
    alignment = sizes[1] if partial_hits else sizes[0]
    rules = Rules(
        caching=options.enable_caching,
        alignment=alignment,
        eagle_drop_tokens=alignment if options.use_eagle else 0,
        retention=retention(
            header,
            interval,
            shared_prefix_boundary=_pins_shared_prefix_boundaries(source),
            extension=partial_hits and source.release is not None and source.release < EXTENSION_ENDED,
            lowered=_lowers_boundaries(source),
        ),
        progress_steps=PROGRESS_STEPS,
        reserved_pages=int(options.watermark * header.pages),
        eagle_groups=_eagle_groups(core) if options.eagle_groups else [],
    )
    timed = TimedManager(core)
    adapter = ManagerAdapter(
        ObservedManager(timed, source.utils.get_group_id),
        timed.new_requests(request_maker(source, sizes[1], options)),
        options.max_model_len,
        chunk_split(source, header, options, core, sizes),
        options.scheduler_reserve_full_isl,
    )
    return VllmManager(describe(header, "vllm", source.version, rules, options), adapter, timed)


def _eagle_groups(core: Any) -> list[int]:
    """Return the groups that give tokens back, [] for all."""
    return [index for index, single in enumerate(core.coordinator.single_type_managers) if single.use_eagle]


def _read_options(header: TraceHeader, source: Source) -> Options:
    """Return the trace's options, checked against what this vLLM can do."""
    try:
        options = Options.parse(header.options)
    except ConfigError as error:
        raise UsageError(f"trace {header.name!r}: {error}") from None
    release = _release_name(source)
    if "release" in header.options and release not in ("", options.release):
        raise UsageError(f"trace {header.name!r}: option 'release' is {options.release!r}; this is vLLM {source.version}")
    if options.pages_per_snapshot != 1:
        raise UsageError("option 'pages_per_snapshot': in vLLM a snapshot is always one block; leave it at 1")
    if options.free_list != "lru":
        raise UsageError("option 'free_list': vLLM has one order of its free queue, 'lru'; leave it out")
    behaviour = RELEASES.get(release, RELEASES[NEWEST])
    for name in ("pin_shared_prefix_boundary", "eagle_replay_boundaries"):
        given = getattr(options, name)
        if given not in ("by release", getattr(behaviour, name)):
            raise UsageError(f"option {name!r}: vLLM {source.version} has no such switch; leave it out")
    return options


def _release_name(source: Source) -> str:
    return "{}.{}".format(*source.release) if source.release else ""


def _interval(header: TraceHeader, options: Options, source: Source) -> int | None:
    if options.retention_interval == "by release":
        recurrent = any(group.kind == "recurrent" for group in header.layout.groups)
        return default_interval(source, options, recurrent)
    return options.retention_interval


def _pins_shared_prefix_boundaries(source: Source) -> bool:
    """Whether shared-prefix boundaries are kept: masks take reachable boundaries since 0.26, the prompt's end before."""
    if (known := RELEASES.get(_release_name(source))) is not None:
        return known.pin_shared_prefix_boundary
    mask = source.part("v1.core.single_type_kv_cache_manager", "MambaManager").reachable_block_mask
    return takes(mask, "reachable_boundaries")


def _lowers_boundaries(source: Source) -> bool:
    """Whether EAGLE has replay boundaries of its own: managers are told them since 0.30."""
    if (known := RELEASES.get(_release_name(source))) is not None:
        return known.eagle_replay_boundaries
    cache_blocks = source.part("v1.core.single_type_kv_cache_manager", "SingleTypeKVCacheManager").cache_blocks
    return takes(cache_blocks, "replay_boundaries")


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def answer_vectors(policy: str, options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return how vLLM's own classes answer vectors, by kind of vector."""
    asked = policies.get(policy).questions
    return {} if asked is None else asked().answers_of(EngineSpec(ENGINE, dict(options), ENGINE.name).open)


def _faults() -> Mapping[str, Mutant]:
    from harness.engines.real_vllm.faults import FAULTS

    return FAULTS


ENGINE = EngineKind(
    name="vllm",
    summary="the installed vLLM's own KVCacheManager, on CPU",
    heights=("manager",),
    open=open_engine,
    answers=answer_vectors,
    faults=_faults,
    isolated=True,
    options={
        "source": "a folder that holds `vllm`: a checkout, or a wheel unpacked without its compiled parts",
        "mutant": "a seeded fault patched into it (see `ls mutants`)",
        "withdraw": "`yes`: also run traces that withdraw a request from its step, which vLLM does not survive",
    },
)
