"""Which layers are moved, stored and looked up together; states as opaque pages."""

from __future__ import annotations

import pytest

from cachewitness_reference.lmcache.groups import (
    KVLayerGroups,
    LayerSpec,
    RegistrationError,
    create_engine_group_infos,
    expand_engine_block_ids,
)
from cachewitness_reference.lmcache.opaque import PageViewError, state_page_view, unified_state_view
from cachewitness_reference.primitives import BlockId

FULL = LayerSpec("full", 16)
WINDOW = LayerSpec("sliding", 16, 64)
STATE = LayerSpec("mamba", 16)


def groups(*specs: LayerSpec, chunk: int = 16, apart: bool = True) -> KVLayerGroups:
    """Register one layer of each spec, every one in an engine group of its own."""
    infos = create_engine_group_infos([{index: spec} for index, spec in enumerate(specs)])
    return KVLayerGroups(infos, chunk, separate_object_groups=apart)


def test_groups_are_detected_at_registration() -> None:
    """Document: no flag; each engine group's layers, their window, whether they are states."""
    infos = create_engine_group_infos([{0: STATE, 2: STATE}, {1: WINDOW}, {3: FULL}])
    assert [
        (
            i.engine_group_id,
            i.layer_indices,
            i.tokens_per_block,
            i.sw_size_tokens,
            i.recurrent_state,
        )
        for i in infos
    ] == [(0, (0, 2), 16, 16, True), (1, (1,), 16, 64, False), (2, (3,), 16, -1, False)]


def test_layers_of_one_shape_are_moved_together() -> None:
    """The released example: layer 4 of the first group has another shape, so there are three
    infos for two groups of blocks.
    """
    plain = LayerSpec("full", 16, shape=(2, 8, 64))
    other = LayerSpec("full", 16, shape=(2, 8, 128))
    infos = create_engine_group_infos([{0: plain, 2: plain, 4: other}, {1: plain, 3: plain}])
    assert [(info.engine_group_id, list(info.layer_indices)) for info in infos] == [
        (0, [0, 2]),
        (1, [1, 3]),
        (0, [4]),
    ]
    ids = [[BlockId(10), BlockId(11)], [BlockId(20), BlockId(21)]]
    assert expand_engine_block_ids(infos, ids) == [[10, 11], [20, 21], [10, 11]]


def test_layers_that_share_a_cache_and_scratch_are_left_out() -> None:
    """A layer that no group names has no cache of its own; a scratch group is never cached."""
    infos = create_engine_group_infos([{0: FULL, 2: FULL}, {3: LayerSpec("scratch", 16)}])
    assert [info.layer_indices for info in infos] == [(0, 2)]


def test_layers_of_one_group_agree() -> None:
    with pytest.raises(RegistrationError, match="different sliding window sizes"):
        create_engine_group_infos([{0: WINDOW, 1: LayerSpec("sliding", 16, 32)}])
    with pytest.raises(RegistrationError, match="mix recurrent-state and attention layers"):
        create_engine_group_infos([{0: FULL, 1: STATE}])


@pytest.mark.parametrize(
    ("window", "chunk", "expected"),
    [(64, 16, 4), (65, 16, 5), (63, 16, 4), (64, 64, 1), (32, 64, 1)],
)
def test_windows_are_rounded_up_to_chunks(window: int, chunk: int, expected: int) -> None:
    assert groups(LayerSpec("sliding", 16, window), chunk=chunk).windows == [expected]


def test_a_state_is_a_window_of_one_chunk() -> None:
    """N tokens in chunks of N or of a multiple."""
    assert groups(STATE).windows == groups(STATE, chunk=64).windows == [1]


def test_object_groups_apart_are_those_with_one_window() -> None:
    """Two attention groups together, two windows of as many chunks together, states never with a
    window of one chunk.
    """
    kernel = (
        FULL,
        LayerSpec("sliding", 16, 30),
        STATE,
        LayerSpec("full", 16),
        LayerSpec("sliding", 16, 32),
        LayerSpec("sliding", 16, 16),
    )
    found = groups(*kernel)
    assert [
        (group.kernel_group_indices, group.sw_size_chunks) for group in found.object_groups
    ] == [((0, 3), -1), ((1, 4), 2), ((2,), 1), ((5,), 1)]


def test_object_groups_together_need_every_chunk() -> None:
    """One object of everything, by the rule of full attention."""
    found = groups(FULL, WINDOW, STATE, apart=False)
    assert [
        (group.kernel_group_indices, group.sw_size_chunks) for group in found.object_groups
    ] == [((0, 1, 2), -1)]


def test_of_a_window_shorter_than_a_chunk_the_last_blocks_are_kept() -> None:
    """The released example: chunk 128, window 64, blocks of 32: the last two of four; of full
    attention all four.
    """
    found = groups(
        LayerSpec("full", 32), LayerSpec("sliding", 32, 64), LayerSpec("mamba", 32), chunk=128
    )
    kept = [[placed.column for placed in found.placed_blocks(group)] for group in range(3)]
    assert kept == [[0, 1, 2, 3], [2, 3], [3]]


@pytest.mark.parametrize(
    ("spec", "chunk", "text"),
    [
        (
            FULL,
            24,
            "group 0: lmcache_tokens_per_chunk 24 must be a multiple of tokens_per_block 16",
        ),
        (
            LayerSpec("full", 16, slots_per_block=5),
            16,
            "group 0: tokens_per_block 16 must be a multiple of slots_per_block 5",
        ),
        (
            LayerSpec("sliding", 16, 24),
            64,
            "group 0: sub-chunk sliding window size 24 must be a multiple of tokens_per_block 16",
        ),
    ],
)
def test_sizes_that_do_not_fit_fail_registration(spec: LayerSpec, chunk: int, text: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        groups(spec, chunk=chunk)
    assert str(caught.value) == text


def test_a_window_longer_than_a_chunk_needs_no_whole_blocks() -> None:
    """The check is for what is cut inside a chunk alone."""
    assert groups(LayerSpec("sliding", 16, 24), chunk=16).windows == [2]


def test_compressed_pages_are_served_not_refused() -> None:
    """Different from the document's "not yet handled": blocks of 256 tokens in 64 pages pass."""
    assert groups(LayerSpec("full", 256, slots_per_block=64), chunk=256).windows == [-1]


# --- opaque pages ---------------------------------------------------------------------------------


def bytes_of(
    shape: tuple[int, ...], strides: tuple[int, ...], block: int, element: int
) -> set[int]:
    """Return which bytes of memory the view shows of one block."""
    offsets = {block * strides[0]}
    for size, stride in zip(shape[1:], strides[1:], strict=True):
        offsets = {offset + index * stride for offset in offsets for index in range(size)}
    return {offset * element + byte for offset in offsets for byte in range(element)}


def test_a_state_is_reinterpreted_as_an_opaque_page() -> None:
    """Every byte of the page (convolution, state, padding) is in the view of its block, and none
    of another's.
    """
    view = state_page_view(
        num_blocks=3, page_size_bytes=512, block_size=16, element_bytes=2, conv_stride_bytes=512
    )
    assert view.shape == (3, 2, 16, 1, 8)
    for block in range(3):
        assert bytes_of(view.shape, view.strides, block, 2) == set(
            range(512 * block, 512 * (block + 1))
        )


def test_a_page_view_needs_whole_pages() -> None:
    with pytest.raises(
        PageViewError, match=r"stride \(500 bytes\) does not equal the page size \(512 bytes\)"
    ):
        state_page_view(3, 512, 16, 2, 500)
    with pytest.raises(
        PageViewError, match=r"page \(250 elems\) does not factor into \(2, block_size=16"
    ):
        state_page_view(3, 500, 16, 2, 500)


def test_a_unified_view_covers_the_state_and_stays_in_its_page() -> None:
    """A row of 100 elements in blocks of 16 tokens: 7 each, rounded up to 16 bytes; the next
    block is a page further.
    """
    view = unified_state_view(
        num_blocks=2, row=100, block_size=16, element_bytes=2, block_step=256, page_size_bytes=512
    )
    assert view.shape == (2, 16, 1, 8)
    for block in range(2):
        seen = bytes_of(view.shape, view.strides, block, 2)
        assert (
            set(range(512 * block, 512 * block + 200))
            <= seen
            < set(range(512 * block, 512 * (block + 1)))
        )


def test_a_unified_view_takes_the_widest_alignment_that_fits() -> None:
    """With 224 bytes a page, 16 rows of 16 bytes do not fit, nor of 8 x 2; 7 elements of 2 bytes
    do.
    """
    assert unified_state_view(2, 100, 16, 2, 112, 224).shape == (2, 16, 1, 7)
    with pytest.raises(
        PageViewError,
        match="cannot tile a 100-element state row into 16 aligned tokens within the 200-byte page",
    ):
        unified_state_view(2, 100, 16, 2, 100, 200)
