"""Requests as long as the engine declares that it takes, each alone in the smallest pool for which
it declares so.

What an engine accepts at its start it holds: a prompt of `max_prompt` tokens runs to its end, one
that is a token shorter too, and one that is a token longer is refused or runs. How long that is,
and in how small a pool, is the engine's answer, so it is opened for it; the trace that comes out is
data like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from msgspec.structs import replace as changed

from cachewitness._util.errors import UsageError
from cachewitness.core.declared import LENGTH
from cachewitness.core.driving import described
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.scenarios.shape import Script, Shape

NAME = "longest-prompt"
STORY = "prompts as long as the engine declares that it holds, a token shorter and a token longer"
SOURCE = "vLLM's start-up check, v1/core/kv_cache_planning.py; vllm-project/vllm#40384"
UNITS, LEAST = 4, 16
"""The longest request has so many scheduler blocks, or so many tokens if that is more."""
SPARE_STEPS = 10
"""Enough for a request that does not go on to be found, of an engine that declares the usual
`progress_steps`."""


def ceiling(spec: EngineSpec, configuration: Configuration, level: Level) -> Iterator[Trace]:
    """Yield the trace; nothing if the engine refuses the configuration, or declares no limit."""
    shape = configuration.shape(level)
    length = shape.options.get(LENGTH, max(UNITS * shape.unit, LEAST))
    accepts = spec.kind.accepts
    if accepts is not None and not accepts.takes(LENGTH, length):
        return
    shape = replace(shape, options={**shape.options, LENGTH: length})
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
    header = changed(_trace(shape, 1, pages).header, pages=pages)
    try:
        engine = spec.open(header)
        try:
            return described(engine, header).rules.max_prompt
        finally:
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
