"""Requests as long as the engine declares that it takes, each alone in the smallest pool for which
it declares so.

What an engine accepts at its start it holds: a prompt of `max_prompt` tokens runs to its end, one
that is a token shorter too, and one that is a token longer is refused or runs. How long that is,
and in how small a pool, is the engine's answer, so it is opened for it; the trace that comes out is
data like any other. At answers level no smaller pool is looked for: there the limit may be of
another kind, such as the length of a context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from msgspec.structs import replace as changed

from cachewitness._util.errors import UsageError
from cachewitness.core.declared import LENGTH
from cachewitness.core.driving import described
from cachewitness.core.trace_format import Level, Trace, TraceHeader
from cachewitness.engines.registry import EngineSpec
from cachewitness.workloads.answer_longest import NAME, in_turn, roomy
from cachewitness.workloads.answer_random import longest_answers
from cachewitness.workloads.avoided import as_configured
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import OPERATIONS, write
from cachewitness.workloads.scenarios.shape import Script, Shape
from cachewitness.workloads.source import Seeded

RANDOM = f"{NAME}-random"
STORY = "prompts as long as the engine declares that it holds, a token shorter and a token longer"
SOURCE = "vLLM's start-up check, v1/core/kv_cache_planning.py; vllm-project/vllm#40384"
UNITS, LEAST = 4, 16
"""The longest request has so many scheduler blocks, or so many tokens if that is more."""
_MORE = (0, 0, 1, 4)
"""The pool of random requests is the smallest one, or larger by so many quarters of it."""
COSTLY = 4096
"""Longer prompts are left out at answers level by default: to compute them takes long, and as long
again without the cache."""
SPARE_STEPS = 10
"""Enough for a request that does not go on to be found, of an engine that declares the usual
`progress_steps`."""


def ceiling(
    spec: EngineSpec,
    configuration: Configuration,
    level: Level,
    seed: int,
    leave_out: Callable[[int], bool] = lambda most: False,
) -> Iterator[Trace]:
    """Yield two traces: requests one after another, and random ones; nothing if the engine refuses
    the configuration, or declares no limit, or `leave_out` says so of a costly one.
    """
    if level == "answers":
        yield from _of_answers(spec, configuration.shape(level), seed, leave_out)
        return
    shape = _limited(spec, configuration.shape(level))
    if shape is None:
        return
    roomy = _trace(shape, 1, 0).header.pages
    most = _declared(spec, shape, roomy)
    if not most:
        return
    pages = roomy
    # An engine that computes takes long to open, and one pool is enough.
    if not spec.kind.computes:
        pages = _smallest(spec, shape, roomy, most)
        most = _declared(spec, shape, pages)
    yield _trace(shape, most, pages)
    source = Seeded(seed)
    if more := source.choice(_MORE):
        pages += pages * more // _MORE[-1]
        most = _declared(spec, shape, pages)
    trace = write(
        shape, source, withdraw=False, operations=OPERATIONS, name=RANDOM, most=max(most, 1)
    )
    yield Trace(changed(trace.header, pages=pages, seed=seed), trace.ops)


def _of_answers(
    spec: EngineSpec, shape: Shape, seed: int, leave_out: Callable[[int], bool]
) -> Iterator[Trace]:
    def asked(pages: int) -> int:
        trace = as_configured(in_turn(shape, 1, pages, seed))
        most = _declared_for(spec, trace.header)
        return 0 if most > COSTLY and leave_out(most) else most

    pages = roomy(shape)
    if most := asked(pages):
        yield as_configured(in_turn(shape, most, pages, seed))
        source = Seeded(seed)
        if more := source.choice(_MORE):
            pages += pages * more // _MORE[-1]
            most = asked(pages)
        if most:
            trace = longest_answers(shape, source, RANDOM, most, pages)
            yield as_configured(Trace(changed(trace.header, seed=seed), trace.ops))


def _limited(spec: EngineSpec, shape: Shape) -> Shape | None:
    """Return a shape with a limit of a few blocks, or with its own; None if the engine takes no
    such limit.
    """
    length = shape.options.get(LENGTH, max(UNITS * shape.unit, LEAST))
    accepts = spec.kind.accepts
    if accepts is not None and not accepts.takes(LENGTH, length):
        return None
    return replace(shape, options={**shape.options, LENGTH: length})


def _smallest(spec: EngineSpec, shape: Shape, roomy: int, wanted: int) -> int:
    """Return the smallest pool for which the engine declares that it takes prompts as long as
    wanted.
    """
    refused = 0
    while refused + 1 < roomy:
        middle = (refused + roomy) // 2
        if _declared(spec, shape, middle) >= wanted:
            roomy = middle
        else:
            refused = middle
    return roomy


def _declared(spec: EngineSpec, shape: Shape, pages: int) -> int:
    """Return the longest prompt that the engine declares for a pool; 0 if it refuses the pool."""
    return _declared_for(spec, changed(_trace(shape, 1, pages).header, pages=pages))


def _declared_for(spec: EngineSpec, header: TraceHeader) -> int:
    """Return the longest prompt that the engine declares for a trace; 0 if it refuses that."""
    try:
        engine = spec.open(header)
        try:
            return described(engine, header).rules.max_prompt
        finally:
            with suppress(Exception):  # running a trace will tell
                engine.close()
    except UsageError:
        return 0


def _trace(shape: Shape, longest: int, pages: int) -> Trace:
    """Return the requests one after another: the longest twice, so that the second is hit."""
    script = Script(shape, NAME, STORY, SOURCE)
    for number, tokens in enumerate((longest, longest - 1, longest + 1, longest)):
        if tokens > 0:
            r = f"r{number}"
            script.submit(r, f"doc{number % 3}:{tokens}")
            script.prefill(r, 2 * shape.unit)
            for _ in range(SPARE_STEPS):
                script.step((r, 2 * shape.unit))
            script.finish(r)
    if not pages:
        length = shape.options[LENGTH]
        return script.trace(2 * shape.pages(length) + 1)
    trace = script.trace(pages)
    return Trace(changed(trace.header, pages=pages), trace.ops)
