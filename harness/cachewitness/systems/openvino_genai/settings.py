"""What a trace asks of OpenVINO GenAI: the options of its header, under the names of
`SchedulerConfig`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Layout, TraceHeader
from cachewitness.engines.answering import chunk_of, takes
from cachewitness.workloads.avoided import CHUNK

NAME = "openvino-genai"
KV_BLOCK = 32
"""Tokens of a KV block on a CPU, which no option changes."""
MODEL = "openvino_model.xml"
"""The file of a folder by which a model is known."""
UNSPLIT = 1 << 16
"""Tokens of a step if a trace does not limit them."""
SEQUENCES = 16
"""Requests of a step if a trace does not limit them."""
SPLIT_FUSE, POOLS = "dynamic_split_fuse", "pools"
MULTIPLIER, STATES, MAX_SEQUENCES = (
    "cache_interval_multiplier",
    "num_linear_attention_blocks",
    "max_num_seqs",
)
OPTIONS = (CHUNK, SPLIT_FUSE, MULTIPLIER, STATES, MAX_SEQUENCES, POOLS)


class PipelineSettings(NamedTuple):
    """How a pipeline is opened. `multiplier` 0: left unset. `states` 0: derived. `kv_blocks` 0:
    both pools grow on demand.
    """

    kv_blocks: int
    chunk: int
    split_fuse: bool
    multiplier: int
    states: int
    sequences: int


def settings_of(header: TraceHeader) -> PipelineSettings:
    """Return how a pipeline is opened for a trace.

    Raises UsageError for an option that is not OpenVINO's, a value that it does not take, and a
    layout that it cannot have.
    """
    takes(NAME, header, OPTIONS)
    multiplier = multiplier_of(header.layout)
    split_fuse = header.options.get(SPLIT_FUSE, True)
    if not isinstance(split_fuse, bool):
        raise UsageError(
            f"--engine {NAME}: the option {SPLIT_FUSE} of a trace is true or false, not"
            f" {split_fuse!r}"
        )
    if not split_fuse and CHUNK in header.options:
        why = f"with {SPLIT_FUSE} false a prompt is computed in one step"
        raise UsageError(f"--engine {NAME}: {why}; leave the option {CHUNK} of the trace out")
    unset = _word(header, MULTIPLIER, ("layout", "unset")) == "unset"
    grow = _word(header, POOLS, ("fixed", "dynamic")) == "dynamic"
    if grow and STATES in header.options:
        raise UsageError(
            f"--engine {NAME}: pools that grow have no number of states; leave {STATES} or"
            f" {POOLS} out"
        )
    return PipelineSettings(
        kv_blocks=0 if grow else header.pages,
        chunk=chunk_of(NAME, header, UNSPLIT),
        split_fuse=split_fuse,
        multiplier=0 if unset else multiplier,
        states=_count(header, STATES, 0),
        sequences=_count(header, MAX_SEQUENCES, SEQUENCES),
    )


def multiplier_of(layout: Layout) -> int:
    """Return how many KV blocks lie between two snapshots. Raises UsageError for a layout that
    OpenVINO GenAI cannot have.
    """
    blocks = {group.kind: group.block_size for group in layout.groups}
    snapshots = blocks.get("recurrent", 0)
    if (
        blocks.get("full") != KV_BLOCK
        or len(layout.groups) != 2
        or not snapshots
        or snapshots % KV_BLOCK
    ):
        needs = f"a full group of {KV_BLOCK} tokens and a recurrent group of a multiple of that"
        raise UsageError(f"--engine {NAME}: layout {layout.name} does not fit: it needs {needs}")
    return snapshots // KV_BLOCK


def _word(header: TraceHeader, name: str, known: tuple[str, str]) -> str:
    """Return the value of an option that is one of two words, by default the first."""
    value = header.options.get(name, known[0])
    if value not in known:
        raise UsageError(
            f"--engine {NAME}: the option {name} of a trace is {known[0]} or {known[1]}, not"
            f" {value!r}"
        )
    return str(value)


def _count(header: TraceHeader, name: str, usual: int) -> int:
    value: Any = header.options.get(name, usual)
    if name in header.options and (
        not isinstance(value, int) or isinstance(value, bool) or value < 1
    ):
        raise UsageError(
            f"--engine {NAME}: the option {name} of a trace is a number of at least 1, not"
            f" {value!r}"
        )
    return int(value)
