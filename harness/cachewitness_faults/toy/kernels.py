"""Faults of kernels: the pages are right, and what is computed from them is not.

Each replaces one kernel of the device (`cachewitness_reference.toy_model.kernels`), for cold and
for cached runs alike where the real fault did so. Several spoil every chunking in another way, so
that a tolerance measured with the device itself would grow with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cachewitness.core.events import Run, StepBegin
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_faults.toy import flat_kernels

fault = partial(mutant, anomaly="silent-divergence", checker="tensors", engines=("toy",))
CHUNK = 16
"""Tokens of a kernel's chunk in the toy model."""
CTAS = 8
"""Thread blocks that a kernel's rows are dealt out to in turn."""


@fault(name="tail-gate-read-past-the-end", mirrors="tile-ai/tilelang-ascend#855", group="J")
def tail_gate_read_past_the_end(engine: Any) -> None:
    """A scan's last chunk reads its gates past the end of the text.

    Fill the last chunk up with the gate of its last token instead of none, so that the state left
    behind has faded by as many tokens more as the chunk lacks. Whoever cuts a text at other places
    gets another error.
    """
    import torch

    def scan(
        original: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, size: int
    ) -> Any:
        length = v.shape[1]
        lacks = -length % CHUNK

        def filled(x: Any, by: Any) -> Any:
            return torch.cat([x, by.expand(-1, lacks, *x.shape[2:])], dim=1)

        none = [filled(x, torch.zeros_like(x[:, :1])) for x in (q, k, v, beta)]
        out, after = original(*none[:3], filled(g, g[:, -1:]), none[3], state, size)
        return out[:, :length], after

    _replace(engine, {"delta_by_chunk": scan}, {"delta": flat_kernels.tail_gate})


@fault(name="last-gate-left-out-of-the-state", mirrors="tile-ai/tilelang-ascend#918", group="J")
def last_gate_left_out_of_the_state(engine: Any) -> None:
    """A scan keeps a state that its last token has not let fade; its outputs are right."""

    def scan(original: Any, q: Any, k: Any, v: Any, g: Any, *rest: Any) -> Any:
        kept = g.clone()
        kept[:, -1] = 0.0
        return original(q, k, v, g, *rest)[0], original(q, k, v, kept, *rest)[1]

    _replace(engine, {"delta_by_chunk": scan}, {"delta": flat_kernels.last_gate})


@fault(name="value-sum-not-reset", mirrors="flashinfer-ai/flashinfer#5029", group="F")
def value_sum_not_reset(engine: Any) -> None:
    """Attention's sum of values starts from that of the row before it in the same thread block.

    Deal the rows of queries out to a few thread blocks in turn, and never clear a block's
    accumulator. Cold runs are wrong in the same way as cached ones.
    """
    import torch

    def attend(original: Any, query: Any, key: Any, value: Any, visible: Any) -> Any:
        out = original(query, key, value, visible)
        rows = out.reshape(-1, value.shape[-1])
        dealt = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % CTAS)).unflatten(0, (-1, CTAS))
        return dealt.cumsum(0).flatten(0, 1)[: len(rows)].reshape(out.shape)

    _replace(engine, {"attend": attend}, {"attend": flat_kernels.value_sum(CTAS)})


@fault(name="unwritten-values-times-zero", mirrors="vllm-project/vllm#43990", group="E")
def unwritten_values_times_zero(engine: Any) -> None:
    """Attention masks the scores of what was never written, and multiplies its values by zero.

    Leave what memory held, NaN, where a row of a batch is shorter than the longest: a weight of 0
    does not silence it.
    """

    def attend(original: Any, query: Any, key: Any, value: Any, visible: Any) -> Any:
        unseen = ~visible.any(1)
        return original(
            query, key, value.masked_fill(unseen[..., None, None], float("nan")), visible
        )

    _replace(engine, {"attend": attend}, {"attend": flat_kernels.unwritten_values})


@fault(name="state-restored-in-bf16", mirrors="sgl-project/sglang#34820", group="J")
def state_restored_in_bf16(engine: Any) -> None:
    """A recurrent memory comes back from the cache in bfloat16, whatever it was computed in.

    Round the memory with which a request's first chunk after a hit begins; all later chunks are
    computed as they should be.
    """
    import torch

    resumed = _first_chunks_after_hits(engine)

    def scan(
        original: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, *size: int
    ) -> Any:
        restored = state.to(torch.bfloat16).to(state.dtype) if resumed else state
        return original(q, k, v, g, beta, restored, *size)

    _replace(
        engine,
        {"delta_by_chunk": scan, "delta_by_token": scan},
        {"gather": flat_kernels.rounded(resumed)},
    )


@fault(name="rotary-positions-restart-at-a-hit", mirrors="vllm-project/vllm-metal#144", group="J")
def rotary_positions_restart_at_a_hit(engine: Any) -> None:
    """Behind a hit rotary positions are counted from the place where the request resumed, not
    from its first token.
    """
    chunk_of: dict[int, str] = {}
    resume: dict[str, int] = {}

    def chunk(original: Any, run: Run, tokens: Any) -> Any:
        made = original(run, tokens)
        resume.setdefault(run.r, run.start)
        chunk_of[id(made)] = run.r
        return made

    def positions(original: Any, span: Any) -> Any:
        skipped = resume.get(chunk_of.get(id(span), ""), 0)
        return [position - skipped for position in original(span)]

    def execute(original: Any, begin: StepBegin, *args: Any) -> Any:
        chunk_of.clear()
        return original(begin, *args)

    wrap(engine.tensors, "execute", execute)
    wrap(engine.tensors, "_chunk", chunk)
    wrap(engine.tensors.kernels, "positions", positions)


@fault(name="convolution-begins-anew-in-every-chunk", mirrors="kekzl/imp#156", group="J")
def convolution_begins_anew_in_every_chunk(engine: Any) -> None:
    """The convolution of a chunk of several tokens takes zeros for the inputs in front of it."""

    def conv(original: Any, x: Any, weight: Any, state: Any, *bias: Any) -> Any:
        return original(x, weight, state * (x.shape[1] == 1), *bias)

    _replace(engine, {"conv": conv}, {"conv": flat_kernels.conv_anew})


@fault(name="only-the-first-row-goes-on", mirrors="sgl-project/sglang#33450", group="F")
def only_the_first_row_goes_on(engine: Any) -> None:
    """Of a batch only the first row goes on from its memory; the others begin with an empty one."""
    import torch

    def scan(
        original: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, *size: int
    ) -> Any:
        first = torch.arange(len(state), device=state.device).view(-1, 1, 1, 1) == 0
        return original(q, k, v, g, beta, torch.where(first, state, 0), *size)

    _replace(
        engine,
        {"delta_by_chunk": scan, "delta_by_token": scan},
        {"gather": flat_kernels.first_row_only},
    )


def _replace(engine: Any, plain: Mapping[str, Any], flat: Mapping[str, Any]) -> None:
    """Replace kernels by name: those of `plain` on plain kernels, those of `flat` on kernels
    that follow block tables.
    """
    kernels = engine.tensors.kernels
    for name, around in (plain if hasattr(kernels, "delta_by_chunk") else flat).items():
        wrap(kernels, name, around)


def _first_chunks_after_hits(engine: Any) -> set[str]:
    """Return the requests of the step under way that run for the first time and not from their
    first token; kept up to date.
    """
    seen = set[str]()
    resumed = set[str]()

    def execute(original: Any, begin: StepBegin, withdrawn: Any, tokens: Any) -> Any:
        runs = [run for run in begin.runs if run.r not in withdrawn]
        resumed.clear()
        resumed.update(run.r for run in runs if run.start and run.r not in seen)
        seen.update(run.r for run in runs)
        return original(begin, withdrawn, tokens)

    wrap(engine.tensors, "execute", execute)
    return resumed


MUTANTS = declared(globals())
