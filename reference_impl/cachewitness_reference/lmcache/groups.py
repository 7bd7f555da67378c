"""Which layers are moved together, and which are stored together.

*Engine group*: one cache group of the engine. Block ids mean something only inside it. *Kernel
group*: the layers of one engine group whose pages have one shape, so that one transfer moves them.
*Object group*: the kernel groups that are stored as one object and looked up as one, since they
need equally many chunks before a hit.

How much a layer needs before a hit is its window in tokens: -1 for all of it, a sliding window's W,
and one block for a recurrent state, of which only the last one counts. In chunks a window is
rounded up, since a chunk is there or not. If it is shorter than a chunk, only the blocks at the
chunk's end are kept of it.

Sources (0.5.6): `integration/vllm/kv_cache_groups.py`; `v1/kv_layer_groups.py`;
`v1/multiprocess/group_view.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cachewitness_reference.lmcache.spec import FULL_ATTENTION_WINDOW_CHUNKS
from cachewitness_reference.primitives import BlockId

LayerKind = Literal["full", "sliding", "mamba", "cross", "scratch"]


class RegistrationError(ValueError):
    """Cache groups that cannot be served; the message is one line."""


@dataclass(frozen=True)
class LayerSpec:
    """How one layer caches. `block_size` and `sliding_window` (the query counted) in tokens;
    `shape` is that of its pages.

    `full` stands for everything that needs all that came before, chunked and latent attention
    included. `slots_per_block` is below `block_size` where a page is compressed, 0 where a slot
    holds a token. `scratch` is never cached.
    """

    kind: LayerKind
    block_size: int
    sliding_window: int = 0
    mamba_cache_mode: str = "align"
    shape: tuple[int, ...] = ()
    slots_per_block: int = 0


@dataclass(frozen=True)
class EngineGroupInfo:
    """The layers of one engine group that have one shape: a kernel group, once its index is known.

    `sw_size_tokens` is -1 where there is no window; `tokens_per_block` is 0 for what is never
    cached.
    """

    engine_group_id: int
    layer_indices: tuple[int, ...]
    tokens_per_block: int
    sw_size_tokens: int = -1
    recurrent_state: bool = False
    slots_per_block: int = 0


@dataclass(frozen=True)
class ObjectGroup:
    """Kernel groups that make up one object. `sw_size_chunks` is -1 where every chunk of a
    prefix is needed.
    """

    kernel_group_indices: tuple[int, ...]
    sw_size_chunks: int = FULL_ATTENTION_WINDOW_CHUNKS


class PlacedBlock(NamedTuple):
    """One block of an object: the kernel group it is of, and its column among the blocks of a
    chunk.
    """

    kernel_group: int
    column: int


def window_tokens(spec: LayerSpec) -> int:
    """Return how many tokens before a hit a layer needs: -1 for all, one block for a state."""
    if spec.kind == "sliding":
        return spec.sliding_window
    return spec.block_size if spec.kind == "mamba" else -1


def create_engine_group_infos(
    engine_groups: Sequence[Mapping[int, LayerSpec]],
) -> list[EngineGroupInfo]:
    """Return the kernel groups of an engine's cache groups, given as layer index to spec, in order
    of their first layers.

    Layers that no group names (they share another layer's cache) are left out, and so is scratch.
    Raises RegistrationError if the layers of one kernel group disagree about their window, or mix
    states with attention.
    """
    by_identity: dict[tuple[object, ...], list[int]] = {}
    for group, layers in enumerate(engine_groups):
        for index, spec in layers.items():
            if spec.kind != "scratch":
                by_identity.setdefault(
                    (group, spec.shape, spec.block_size, spec.slots_per_block), []
                ).append(index)
    infos = [
        _info(int(str(key[0])), sorted(indices), engine_groups)
        for key, indices in by_identity.items()
    ]
    return sorted(infos, key=lambda info: info.layer_indices[0])


def _info(
    group: int, indices: list[int], engine_groups: Sequence[Mapping[int, LayerSpec]]
) -> EngineGroupInfo:
    specs = [engine_groups[group][index] for index in indices]
    recurrent = {spec.kind == "mamba" for spec in specs}
    windows = {window_tokens(spec) for spec in specs}
    if len(recurrent) > 1:
        raise RegistrationError(
            f"Layers with indices {indices} mix recurrent-state and attention layers in one group."
        )
    if len(windows) > 1:
        raise RegistrationError(
            f"Layers with indices {indices} have different sliding window sizes {windows}."
        )
    first = specs[0]
    return EngineGroupInfo(
        group,
        tuple(indices),
        first.block_size,
        windows.pop(),
        recurrent.pop(),
        first.slots_per_block or first.block_size,
    )


def expand_engine_block_ids(
    infos: Sequence[EngineGroupInfo], ids: Sequence[Sequence[BlockId]]
) -> list[Sequence[BlockId]]:
    """Return block ids by kernel group, given them by engine group: kernel groups of one engine
    group have the same.
    """
    return [ids[info.engine_group_id] for info in infos]


class KVLayerGroups:
    """The kernel groups of a model, cut into chunks of so many tokens, and the object groups
    that they form.
    """

    def __init__(
        self, infos: Sequence[EngineGroupInfo], chunk_size: int, *, separate_object_groups: bool
    ) -> None:
        self.kernel_groups = list(infos)
        self.chunk_size = chunk_size
        for index, info in enumerate(self.kernel_groups):
            _validate(index, info, chunk_size)
        self.object_groups = self._detect(separate_object_groups)
        self.windows = [group.sw_size_chunks for group in self.object_groups]

    def _detect(self, separate: bool) -> list[ObjectGroup]:
        """Put kernel groups with one window, in chunks, into one object group; states never
        together with windows.
        """
        if not separate:
            return [ObjectGroup(tuple(range(len(self.kernel_groups))))]
        buckets: dict[tuple[bool, int], list[int]] = {}
        for index, info in enumerate(self.kernel_groups):
            chunks = -1 if info.sw_size_tokens == -1 else -(-info.sw_size_tokens // self.chunk_size)
            buckets.setdefault((info.recurrent_state, chunks), []).append(index)
        return [ObjectGroup(tuple(indices), chunks) for (_, chunks), indices in buckets.items()]

    def blocks_per_chunk(self, kernel_group: int) -> int:
        """Return how many blocks of a kernel group a chunk spans."""
        return self.chunk_size // self.kernel_groups[kernel_group].tokens_per_block

    def kept_blocks(self, kernel_group: int) -> int:
        """Return how many blocks of a chunk are kept, its last ones: all of them unless the
        window is shorter.
        """
        info = self.kernel_groups[kernel_group]
        tokens = (
            self.chunk_size
            if info.sw_size_tokens == -1
            else min(self.chunk_size, info.sw_size_tokens)
        )
        return tokens // info.tokens_per_block

    def placed_blocks(self, object_group: int) -> list[PlacedBlock]:
        """Return the blocks that an object consists of, in order."""
        placed = []
        for index in self.object_groups[object_group].kernel_group_indices:
            last = self.blocks_per_chunk(index)
            placed += [
                PlacedBlock(index, column) for column in range(last - self.kept_blocks(index), last)
            ]
        return placed


def _validate(index: int, info: EngineGroupInfo, chunk: int) -> None:
    slots = info.slots_per_block or info.tokens_per_block
    if info.tokens_per_block % slots:
        raise RegistrationError(
            f"group {index}: tokens_per_block {info.tokens_per_block} must be a multiple of"
            f" slots_per_block {slots}"
        )
    if chunk % info.tokens_per_block:
        raise RegistrationError(
            f"group {index}: lmcache_tokens_per_chunk {chunk} must be a multiple of"
            f" tokens_per_block {info.tokens_per_block}"
        )
    if 0 < info.sw_size_tokens < chunk and info.sw_size_tokens % info.tokens_per_block:
        raise RegistrationError(
            f"group {index}: sub-chunk sliding window size {info.sw_size_tokens} must be a multiple"
            f" of tokens_per_block {info.tokens_per_block}"
        )
