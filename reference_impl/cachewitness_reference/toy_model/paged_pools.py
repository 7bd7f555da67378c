"""The memory of a paged execution: one space of pages, which every cache group sees in its own
shape.

In a page an attention group's layers keep the keys and values of a block of tokens, a recurrent
group's layers one state. Groups alias the pages, as they do in vLLM: a page's content belongs to
the group whose layers wrote it and is noise to every other. Here noise is NaN, so that whoever
reads it is found out at once: a page that was never written, was given back or was last written for
another group reads as NaN, and so does the part of a block that nobody has filled.

Invariant: of a page, every group's view but the owner's is NaN; of a zeroed page, every view is
zero where nobody has written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachewitness_reference.toy_model import recurrent
from cachewitness_reference.toy_model.config import LayerType, ModelError, ToyConfig

NOBODY, EVERYBODY = -1, -2
"""Owners of a page without content and of one that holds zeros."""

Image = tuple[int, list[list[Tensor]]]
"""The owner of a page and, for each group, its tensors of the page; none for a group to which the
page is noise."""


@dataclass(frozen=True)
class PagedGroup:
    """Layers of one type that share a block table, `block_size` tokens a column.

    A recurrent group keeps its state at the end of a chunk; with `every_block`, at each block
    boundary inside it as well.
    """

    layers: tuple[int, ...]
    block_size: int
    every_block: bool = False


def sent(whole: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device without waiting for it."""
    return (
        whole.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else whole.to(device)
    )


class Pools:
    """The tensors of all groups over `pages` pages; those in `null` are never written.

    `views[g]` of an attention group is [kv], kv [layers, pages, block, 2, KV, D]; of a recurrent
    one [conv, memory], conv [layers, pages, K - 1, channels] and memory [layers, pages, H, ...].
    Memories are kept in `state_dtype` if it is given.
    """

    def __init__(
        self,
        groups: Sequence[PagedGroup],
        pages: int,
        config: ToyConfig,
        *,
        dtype: torch.dtype = torch.float32,
        state_dtype: torch.dtype | None = None,
        device: str = "cpu",
        null: Iterable[int] = (0,),
    ) -> None:
        self.groups = tuple(groups)
        self.pages = pages
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        self.null = frozenset(null)
        self.kinds = [_kind(group, config) for group in self.groups]
        self.place = _places(self.groups, config)
        self.owner = [NOBODY] * pages
        like = torch.empty((), dtype=dtype, device=self.device)
        self.views = [self._view(g, like, state_dtype) for g in range(len(self.groups))]

    def _view(self, g: int, like: Tensor, state_dtype: torch.dtype | None) -> list[Tensor]:
        config = self.config
        group = self.groups[g]
        kind = self.kinds[g]
        if recurrent.is_recurrent(kind):
            conv, memory = recurrent.empty_state(kind, 1, config, like)
            parts = [conv[0], memory[0].to(state_dtype or memory.dtype)]
        else:
            parts = [
                like.new_empty(group.block_size, 2, config.num_key_value_heads, config.head_dim)
            ]
        return [
            part.new_full((len(group.layers), self.pages, *part.shape), float("nan"))
            for part in parts
        ]

    def grow(self, pages: int) -> None:
        """Add so many pages behind the others; nobody has written them."""
        self.pages += pages
        self.owner += [NOBODY] * pages
        for view in self.views:
            for index, tensor in enumerate(view):
                more = tensor.new_full((tensor.shape[0], pages, *tensor.shape[2:]), float("nan"))
                view[index] = torch.cat([tensor, more], dim=1)

    def writable(self, page: int) -> bool:
        """Whether a page exists and is no null page."""
        return 0 <= page < self.pages and page not in self.null

    # --- moves ------------------------------------------------------------------------------------

    def poison(self, pages: Iterable[int]) -> None:
        """Forget what the pages hold."""
        by_owner: dict[int, list[int]] = defaultdict(list)
        for page in pages:
            by_owner[self.owner[page]].append(page)
            self.owner[page] = NOBODY
        for owner, gone in by_owner.items():
            self._fill(owner, gone, float("nan"))

    def zero(self, pages: Sequence[int]) -> None:
        """Overwrite the pages with zeros, in every group's view."""
        for page in pages:
            self.owner[page] = EVERYBODY
        self._fill(EVERYBODY, pages, 0.0)

    def claim(self, g: int, pages: Iterable[int]) -> None:
        """Make the pages a group's, which is about to write them; to all others they are noise
        from now on.
        """
        foreign: dict[int, list[int]] = defaultdict(list)
        for page in pages:
            owner = self.owner[page]
            if owner != g:
                self.owner[page] = g
                if owner != NOBODY:
                    foreign[owner].append(page)
        for owner, taken in foreign.items():
            self._fill(owner, taken, float("nan"), besides=g)

    def image(self, page: int) -> Image:
        """Return a copy of what a page holds."""
        owner = self.owner[page]
        held = [view if owner in (g, EVERYBODY) else [] for g, view in enumerate(self.views)]
        return owner, [[tensor[:, page].clone() for tensor in view] for view in held]

    def put(self, page: int, image: Image) -> None:
        """Overwrite a page by an image."""
        self.poison([page])
        self.owner[page], parts = image
        for view, part in zip(self.views, parts, strict=False):
            for tensor, content in zip(view, part, strict=False):
                tensor[:, page] = content.to(tensor.device, non_blocking=True)

    def _fill(self, owner: int, pages: Sequence[int], value: float, besides: int = NOBODY) -> None:
        if owner == NOBODY or not pages:
            return
        index = sent(torch.tensor(pages), self.device)
        for g, view in enumerate(self.views):
            if owner in (g, EVERYBODY) and g != besides:
                for tensor in view:
                    tensor.index_fill_(1, index, value)


class Shelf:
    """A tier of `pages` pages beside the pools: pages are kept one by one in host memory, only
    those that hold something.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._images: dict[int, Image] = {}

    def poison(self, pages: Iterable[int]) -> None:
        """Forget what the pages hold."""
        for page in pages:
            self._images.pop(page, None)

    def image(self, page: int) -> Image:
        """Return a copy of what a page holds."""
        return self._images.get(page, (NOBODY, []))

    def put(self, page: int, image: Image) -> None:
        """Overwrite a page by an image."""
        owner, parts = image
        self._images[page] = owner, [[part.cpu() for part in view] for view in parts]


def move(moves: Iterable[tuple[Pools | Shelf, int, Pools | Shelf, int]]) -> None:
    """Copy pages (source, page, destination, page) as one simultaneous permutation, between
    pools and tiers of equal groups.
    """
    images = [(destination, dst, source.image(src)) for source, src, destination, dst in moves]
    for destination, dst, image in images:
        destination.put(dst, image)


def _places(groups: Sequence[PagedGroup], config: ToyConfig) -> list[tuple[int, int]]:
    """Return for each layer its group and its index there."""
    places = {
        layer: (g, index)
        for g, group in enumerate(groups)
        for index, layer in enumerate(group.layers)
    }
    layers = sorted(layer for group in groups for layer in group.layers)
    if layers != list(range(len(config.layer_types))):
        raise ModelError(
            f"the groups hold layers {layers}; each of 0 ... {len(config.layer_types) - 1} belongs"
            " to just one"
        )
    return [places[layer] for layer in layers]


def _kind(group: PagedGroup, config: ToyConfig) -> LayerType:
    kinds = {config.layer_types[layer] for layer in group.layers}
    if len(kinds) != 1:
        raise ModelError(
            f"layers {list(group.layers)} share a block table; they must be of one type, not"
            f" {sorted(kinds)}"
        )
    return kinds.pop()
