"""A recurrent state as a page: bytes that are moved and never looked into.

A recurrent layer registers two tensors, the convolution's last inputs and the state proper, that
share one padded page per block: `(conv | state | pad)`. LMCache moves pages of attention, with keys
and values, tokens, heads and a head size. So the page is *called* one: its bytes are given a shape
of attention that fills it exactly, and everything inside goes along unseen. What is inside is not
keys and values, so nothing that looks at content (compression, blending) may be applied, and two
engines whose pages are laid out differently must not share a server: nothing in a key tells them
apart.

Source: `integration/vllm/kv_cache_group_edits.py`, rules `mamba-page-view` and `mamba-unified-view`
(0.5.6).
"""

from __future__ import annotations

from dataclasses import dataclass

_ALIGNMENTS = (16, 8, 4, 2)
"""Bytes that a token's row is aligned to, the widest that fits first."""


class PageViewError(ValueError):
    """A page that cannot be viewed as attention; the message is one line."""


@dataclass(frozen=True)
class PageView:
    """A view of all pages: `shape` and `strides` in elements, blocks first. Byte (block, i)
    stays byte (block, i).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def state_page_view(
    num_blocks: int,
    page_size_bytes: int,
    block_size: int,
    element_bytes: int,
    conv_stride_bytes: int,
) -> PageView:
    """Return `[blocks, 2, block_size, 1, head size]` over whole pages, in elements of the
    convolution's type.

    `conv_stride_bytes` is from one block's convolution to the next. Raises PageViewError if that is
    not a page, or if the page's elements do not come out even.
    """
    if conv_stride_bytes != page_size_bytes:
        raise PageViewError(
            f"Mamba conv state per-block stride ({conv_stride_bytes} bytes) does not equal the page"
            f" size ({page_size_bytes} bytes)"
        )
    elements = page_size_bytes // element_bytes
    if elements % (2 * block_size):
        target = f"(2, block_size={block_size}, num_heads=1, head_size)"
        raise PageViewError(f"page ({elements} elems) does not factor into {target}")
    head = elements // (2 * block_size)
    return PageView(
        (num_blocks, 2, block_size, 1, head), (elements, block_size * head, head, head, 1)
    )


def unified_state_view(
    num_blocks: int,
    row: int,
    block_size: int,
    element_bytes: int,
    block_step: int,
    page_size_bytes: int,
) -> PageView:
    """Return `[blocks, block_size, 1, head size]` over a state of `row` elements, blocks
    `block_step` elements apart.

    The head size is the least that covers the row, rounded up to the widest alignment that divides
    the step and keeps within the layer's own page. Raises PageViewError if none does.
    """
    for alignment in _ALIGNMENTS:
        if alignment % element_bytes or block_step * element_bytes % alignment:
            continue
        unit = alignment // element_bytes
        head = unit * -(-row // (block_size * unit))
        if head * block_size * element_bytes <= page_size_bytes:
            return PageView((num_blocks, block_size, 1, head), (block_step, head, head, 1))
    raise PageViewError(
        f"cannot tile a {row}-element state row into {block_size} aligned tokens within the"
        f" {page_size_bytes}-byte page"
    )
