"""From the layers of a rank to groups, blocks and what the server's log says of them: vLLM's
arithmetic on plain numbers.

A layer keeps a page for every block: rows for the tokens of the block, or one state. Layers that
keep the same are one group; if there are several kinds, their pages are first made equally large,
then every kind is dealt into groups of about as many layers as the rarest has. All groups take
their blocks from one pool, so a request costs the sum over the groups.

Sources (vLLM 0.33.0): `v1/core/kv_cache_planning.py`, `get_kv_cache_groups`,
`get_kv_cache_configs`, `_check_enough_kv_cache_memory`; `v1/kv_cache_interface.py`,
`max_memory_usage_bytes` of each kind; `v1/core/kv_cache_utils.py`, `update_kv_cache_capacity`;
`config/compilation.py`, the bound of `max_num_seqs`; `distributed/utils.py`, `get_pp_indices`. The
layouts in which a layer's pages lie together are followed (FlashAttention, FlashInfer, Triton), not
those in which a block's pages do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from cachewitness_reference.vllm.options import ConfigError
from cachewitness_reference.vllm.sizing import group_size

Kind = Literal["full", "latent", "sliding", "chunked", "recurrent"]


@dataclass(frozen=True)
class Layer:
    """What one layer keeps on one rank.

    `row_bytes` are those of a token (`tokens_per_row` of them, where vectors are compressed), or of
    a state. `form` is what two layers need alike to share a page's shape, beside its size: heads,
    their size and type. `states` are the blocks that a running request holds in a recurrent layer.
    `page_padded` is the size to which a page is filled up, 0 for none, `stage` the rank of pipeline
    parallelism that has the layer.
    """

    kind: Kind
    block_size: int
    row_bytes: int
    form: tuple[object, ...] = ()
    window: int = 0
    chunk: int = 0
    tokens_per_row: int = 1
    states: int = 0
    page_padded: int = 0
    retained: int = 0
    draft: bool = field(default=False, compare=False)
    stage: int = field(default=0, compare=False)

    @property
    def content_bytes(self) -> int:
        """The bytes of a page without padding."""
        if self.kind == "recurrent":
            return self.row_bytes
        return self.block_size // self.tokens_per_row * self.row_bytes

    @property
    def page_bytes(self) -> int:
        """The bytes of a page. Raises ConfigError if its padding is smaller than its content."""
        if self.page_padded and self.page_padded < self.content_bytes:
            raise ConfigError(f"a page of {self.page_padded} bytes holds no {self.content_bytes}")
        return self.page_padded or self.content_bytes

    def request_blocks(self, bounds: Bounds) -> int:
        """Return the most blocks that a request of `bounds.tokens` holds at once."""
        if self.kind == "recurrent":
            return self.states
        if self.kind in ("full", "latent"):
            return math.ceil(math.ceil(bounds.tokens / bounds.context_ranks) / self.block_size)
        if self.kind == "chunked":
            return math.ceil(min(self.chunk + bounds.in_flight, bounds.tokens) / self.block_size)
        reach = self.window - 1 + self.retained + bounds.in_flight
        return math.ceil(min(reach, bounds.tokens) / self.block_size) + 1


@dataclass(frozen=True)
class Bounds:
    """How long a request is, and how many tokens are scheduled and not settled at most.

    `context_ranks` share the tokens of full attention (decode context parallelism).
    """

    tokens: int
    in_flight: int
    context_ranks: int = 1


@dataclass(frozen=True)
class LayerGroup:
    """Layers with one block table. `padding` layers are added to make it as large as the others."""

    layers: tuple[Layer, ...]
    padding: int = 0

    @property
    def first(self) -> Layer:
        """The layer whose block size and kind are the group's."""
        return self.layers[0]

    @property
    def block_bytes(self) -> int:
        """The bytes of one block over the group's layers."""
        return sum(layer.page_bytes for layer in self.layers)

    def stage_bytes(self, stage: int) -> int:
        """Return the bytes of one block over the group's layers on a stage of a pipeline."""
        return sum(layer.page_bytes for layer in self.layers if layer.stage == stage)

    def request_blocks(self, bounds: Bounds) -> int:
        """Return the most blocks that a request holds at once in this group."""
        return max(layer.request_blocks(bounds) for layer in self.layers)


def groups_of(layers: Sequence[Layer]) -> list[LayerGroup]:
    """Return the groups of a rank's layers, in the order in which their kinds come.

    Raises ConfigError for no layers, and for pages that cannot be made equally large.
    """
    if not layers:
        raise ConfigError("no layer keeps anything")
    if _mergeable(layers) or _same_tokens(layers):
        return [LayerGroup(tuple(layers))]
    return _dealt(_equal_pages(layers))


def _mergeable(layers: Sequence[Layer]) -> bool:
    return len({_shared(layer) for layer in layers}) == 1


def _shared(layer: Layer) -> Layer:
    """Return a layer without what full attention layers may differ in and still be one group: a
    window that governs reads alone.
    """
    return replace(layer, window=0, chunk=0, draft=False) if layer.kind == "full" else layer


def _same_tokens(layers: Sequence[Layer]) -> bool:
    """Whether all layers need the same number of token slots, whatever a slot weighs."""
    if len({layer.block_size for layer in layers}) > 1:
        return False
    first = layers[0]
    if first.kind in ("full", "latent"):
        return all(layer.kind in ("full", "latent") for layer in layers)
    if any(layer.kind != first.kind for layer in layers):
        return False
    if first.kind == "recurrent":
        return len({(layer.states, layer.page_bytes) for layer in layers}) == 1
    return len({(layer.window, layer.chunk) for layer in layers}) == 1


def _equal_pages(layers: Sequence[Layer]) -> list[Layer]:
    largest = max(layer.page_bytes for layer in layers)
    return [_grown(layer, largest) for layer in layers]


def _grown(layer: Layer, page: int) -> Layer:
    """Return a layer whose page has a size: by more tokens if they fit exactly, by padding if
    not.
    """
    if layer.page_bytes == page:
        return layer
    if layer.kind == "recurrent":
        return replace(layer, page_padded=page)
    if page % layer.page_bytes == 0:
        return replace(layer, block_size=layer.block_size * (page // layer.page_bytes))
    if layer.kind == "latent":
        raise ConfigError(
            f"a page of {layer.page_bytes} bytes of latent vectors cannot be made one of {page}"
        )
    return replace(layer, page_padded=page)


def _dealt(layers: Sequence[Layer]) -> list[LayerGroup]:
    buckets: dict[Layer, list[Layer]] = {}
    for layer in layers:
        buckets.setdefault(_shared(layer), []).append(layer)
    counts = [len(bucket) for bucket in buckets.values()]
    size = group_size(counts)
    groups = []
    for bucket in buckets.values():
        number = math.ceil(len(bucket) / size)
        for index in range(number):
            dealt = tuple(bucket[index::number])
            groups.append(LayerGroup(dealt, size - len(dealt)))
    return groups


def stage_of(layers: int, stages: int) -> list[int]:
    """Return the stage of each layer of a pipeline: as many on each, and what is left over from the
    last but one stage backwards.
    """
    counts = [layers // stages] * stages
    for over in range(layers % stages):
        counts[-2 - over] += 1
    return [stage for stage, count in enumerate(counts) for _ in range(count)]


def padding_layers(groups: Sequence[LayerGroup]) -> list[tuple[int, Fraction]]:
    """Return, for every kind of which vLLM warns, the layers that it adds and the share of that
    kind's memory that they may waste.
    """
    kinds: dict[Layer, list[LayerGroup]] = {}
    for group in groups:
        kinds.setdefault(_shared(group.first), []).append(group)
    warned = []
    for of_kind in kinds.values():
        added = sum(group.padding for group in of_kind)
        if added:
            count = sum(len(group.layers) for group in of_kind)
            warned.append((added, Fraction(added, count)))
    return warned


@dataclass(frozen=True)
class Started:
    """What a server has when it has started, on one rank.

    `check_block` blocks are left out of the check at the start (the null block, from 0.33 on). With
    pipeline parallelism all stages have the same memory and as many blocks; the widest decides how
    many, and the first that does not pass refuses.
    """

    groups: tuple[LayerGroup, ...]
    memory: int
    bounds: Bounds
    longest: int
    blocks_override: int | None = None
    check_block: bool = True

    @property
    def stage_bytes(self) -> list[int]:
        """The bytes of a block of the pool on each stage: those of its largest group."""
        last = max(layer.stage for group in self.groups for layer in group.layers)
        return [max(group.stage_bytes(stage) for group in self.groups) for stage in range(last + 1)]

    @property
    def block_bytes(self) -> int:
        """The bytes of a block of the pool, on the stage where they are the most."""
        return max(self.stage_bytes)

    @property
    def blocks(self) -> int:
        """The blocks of the pool, the null block among them."""
        if self.blocks_override is not None:
            return self.blocks_override
        return self.memory // self.block_bytes

    def needed(self, tokens: int) -> int:
        """Return the blocks that a request of so many tokens holds at most."""
        bounds = replace(self.bounds, tokens=tokens)
        return sum(group.request_blocks(bounds) for group in self.groups)

    @property
    def request_blocks(self) -> int:
        """The same for the longest request that the server takes."""
        return self.needed(self.longest)

    @property
    def concurrency(self) -> Fraction:
        """What vLLM logs as the maximum: the pool's blocks over those of the longest request."""
        return Fraction(self.blocks, self.request_blocks)

    @property
    def size_tokens(self) -> int:
        """What vLLM logs as the size of the cache; it multiplies as floats do."""
        return int(self.blocks / self.request_blocks * self.longest)

    @property
    def size_tokens_by_groups(self) -> int:
        """What releases before 0.22 log as the size: the blocks dealt evenly to the groups, each of
        the smallest block size. It does not agree with their concurrency.
        """
        smallest = min(group.first.block_size for group in self.groups)
        return self.blocks // len(self.groups) * smallest

    @property
    def judged_bytes(self) -> int:
        """The bytes of a block on the stage of which the check speaks: the first that does not
        pass, the widest if all do.
        """
        failing = [each for each in self.stage_bytes if not self._passes(each)]
        return failing[0] if failing else self.block_bytes

    @property
    def checked_bytes(self) -> int:
        """The memory that the check at the start counts with."""
        return self._checked(self.judged_bytes)

    @property
    def needed_bytes(self) -> int:
        """The memory that the longest request needs."""
        return self.request_blocks * self.judged_bytes

    @property
    def starts(self) -> bool:
        """Whether the check at the start lets the server go on."""
        return self._passes(self.judged_bytes)

    def _checked(self, block: int) -> int:
        memory = self.memory
        if self.blocks_override is not None:
            memory = self.blocks_override * block
        return memory - (block if self.check_block else 0)

    def _passes(self, block: int) -> bool:
        return 0 < self._checked(block) >= self.request_blocks * block

    @property
    def longest_that_fits(self) -> int:
        """The longest request that the check lets pass on every stage, up to the server's; 0 if
        not even one token fits.
        """
        return self._longest(self.block_bytes)

    @property
    def estimated(self) -> int:
        """The same on the stage that refuses: what its message estimates."""
        return self._longest(self.judged_bytes)

    def _longest(self, block: int) -> int:
        fitting = self._checked(block) // block
        if self.needed(1) > fitting:
            return 0
        low = 1
        high = self.longest
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed(middle) <= fitting:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def has_states(self) -> bool:
        """Whether a request needs blocks that do not depend on its length, which bounds how many
        can run.
        """
        return any(group.first.kind == "recurrent" for group in self.groups)
