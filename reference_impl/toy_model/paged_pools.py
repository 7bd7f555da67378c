"""The memory of a paged execution: one space of slots, which every cache group sees in its own shape.

In a slot an attention group's layers keep the keys and values of a block of tokens, a recurrent group's layers one state.
Groups alias the slots, as they do in vLLM: a slot's content belongs to the group whose layers wrote it and is noise to every
other. Here noise is NaN, so that whoever reads it is found out at once: a slot that was never written, was given back or was
last written for another group reads as NaN, and so does the part of a block that nobody has filled.

Invariant: of a slot, every group's view but the owner's is NaN; of a zeroed slot, every view is zero where nobody has written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl.toy_model import recurrent
from reference_impl.toy_model.config import LayerType, ModelError, ToyConfig

NOBODY, EVERYBODY = -1, -2
"""Owners of a slot without content and of one that holds zeros."""

Image = tuple[int, list[list[Tensor]]]
"""The owner of a slot and, for each group, its tensors of the slot; none for a group to which the slot is noise."""


@dataclass(frozen=True)
class PagedGroup:
    """Layers of one type that share a block table, `block_size` tokens a column.

    A recurrent group keeps its state at the end of a chunk; with `every_block`, at each block boundary inside it as well.
    """

    layers: tuple[int, ...]
    block_size: int
    every_block: bool = False


def sent(whole: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device without waiting for it."""
    return whole.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else whole


class Pools:
    """The tensors of all groups over `slots` slots; those in `null` are never written.

    `views[g]` of an attention group is [kv], kv [layers, slots, block, 2, KV, D]; of a recurrent one [conv, memory], conv
    [layers, slots, K - 1, channels] and memory [layers, slots, H, ...]. Memories are kept in `state_dtype` if it is given.
    """

    def __init__(
        self,
        groups: Sequence[PagedGroup],
        slots: int,
        config: ToyConfig,
        *,
        dtype: torch.dtype = torch.float32,
        state_dtype: torch.dtype | None = None,
        device: str = "cpu",
        null: Iterable[int] = (0,),
    ) -> None:
        self.groups, self.slots, self.config = tuple(groups), slots, config
        self.dtype, self.device, self.null = dtype, torch.device(device), frozenset(null)
        self.kinds = [_kind(group, config) for group in self.groups]
        self.place = _places(self.groups, config)
        self.owner = [NOBODY] * slots
        like = torch.empty((), dtype=dtype, device=self.device)
        self.views = [self._view(g, like, state_dtype) for g in range(len(self.groups))]

    def _view(self, g: int, like: Tensor, state_dtype: torch.dtype | None) -> list[Tensor]:
        config, group, kind = self.config, self.groups[g], self.kinds[g]
        if recurrent.is_recurrent(kind):
            conv, memory = recurrent.empty_state(kind, 1, config, like)
            pages = [conv[0], memory[0].to(state_dtype or memory.dtype)]
        else:
            pages = [like.new_empty(group.block_size, 2, config.num_key_value_heads, config.head_dim)]
        return [page.new_full((len(group.layers), self.slots, *page.shape), float("nan")) for page in pages]

    def writable(self, slot: int) -> bool:
        """Whether a slot exists and is no null slot."""
        return 0 <= slot < self.slots and slot not in self.null

    # --- moves --------------------------------------------------------------------------------------------------------

    def poison(self, slots: Iterable[int]) -> None:
        """Forget what the slots hold."""
        by_owner: dict[int, list[int]] = defaultdict(list)
        for slot in slots:
            by_owner[self.owner[slot]].append(slot)
            self.owner[slot] = NOBODY
        for owner, gone in by_owner.items():
            self._fill(owner, gone, float("nan"))

    def zero(self, slots: Sequence[int]) -> None:
        """Overwrite the slots with zeros, in every group's view."""
        for slot in slots:
            self.owner[slot] = EVERYBODY
        self._fill(EVERYBODY, slots, 0.0)

    def claim(self, g: int, slots: Iterable[int]) -> None:
        """Make the slots a group's, which is about to write them; to all others they are noise from now on."""
        foreign: dict[int, list[int]] = defaultdict(list)
        for slot in slots:
            owner = self.owner[slot]
            if owner != g:
                self.owner[slot] = g
                if owner != NOBODY:
                    foreign[owner].append(slot)
        for owner, taken in foreign.items():
            self._fill(owner, taken, float("nan"), besides=g)

    def image(self, slot: int) -> Image:
        """Return a copy of what a slot holds."""
        owner = self.owner[slot]
        held = [view if owner in (g, EVERYBODY) else [] for g, view in enumerate(self.views)]
        return owner, [[tensor[:, slot].clone() for tensor in view] for view in held]

    def put(self, slot: int, image: Image) -> None:
        """Overwrite a slot by an image."""
        self.poison([slot])
        self.owner[slot], pages = image
        for view, page in zip(self.views, pages, strict=False):
            for tensor, content in zip(view, page, strict=False):
                tensor[:, slot] = content.to(tensor.device, non_blocking=True)

    def _fill(self, owner: int, slots: Sequence[int], value: float, besides: int = NOBODY) -> None:
        if owner == NOBODY or not slots:
            return
        index = sent(torch.tensor(slots), self.device)
        for g, view in enumerate(self.views):
            if owner in (g, EVERYBODY) and g != besides:
                for tensor in view:
                    tensor.index_fill_(1, index, value)


class Shelf:
    """A tier of `slots` slots beside the pools: pages are kept one by one in host memory, only those that hold something."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._images: dict[int, Image] = {}

    def poison(self, slots: Iterable[int]) -> None:
        """Forget what the slots hold."""
        for slot in slots:
            self._images.pop(slot, None)

    def image(self, slot: int) -> Image:
        """Return a copy of what a slot holds."""
        return self._images.get(slot, (NOBODY, []))

    def put(self, slot: int, image: Image) -> None:
        """Overwrite a slot by an image."""
        owner, pages = image
        self._images[slot] = owner, [[page.cpu() for page in view] for view in pages]


def move(moves: Iterable[tuple[Pools | Shelf, int, Pools | Shelf, int]]) -> None:
    """Copy pages (source, slot, destination, slot) as one simultaneous permutation, between pools and tiers of equal groups."""
    images = [(destination, dst, source.image(src)) for source, src, destination, dst in moves]
    for destination, dst, image in images:
        destination.put(dst, image)


def _places(groups: Sequence[PagedGroup], config: ToyConfig) -> list[tuple[int, int]]:
    """Return for each layer its group and its index there."""
    places = {layer: (g, index) for g, group in enumerate(groups) for index, layer in enumerate(group.layers)}
    layers = sorted(layer for group in groups for layer in group.layers)
    if layers != list(range(len(config.layer_types))):
        raise ModelError(f"the groups hold layers {layers}; each of 0 ... {len(config.layer_types) - 1} belongs to just one")
    return [places[layer] for layer in layers]


def _kind(group: PagedGroup, config: ToyConfig) -> LayerType:
    kinds = {config.layer_types[layer] for layer in group.layers}
    if len(kinds) != 1:
        raise ModelError(f"layers {list(group.layers)} share a block table; they must be of one type, not {sorted(kinds)}")
    return kinds.pop()
