"""Attention over pages in Triton: what the plain kernel and torch's own say, whatever the
lengths; nothing else is read.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model import attention
from cachewitness_reference.toy_model.triton_kernels.attention import (
    _splits,
    keep_keys,
    paged_attention,
)
from suites.support.flat_requests import LENGTHS, NAN, STARTS, Keys, firsts, numbers, paged_keys
from suites.support.toy_models import far, model, noise, strong_weights

pytestmark = pytest.mark.toy
BOUND = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def attended(
    query: Tensor,
    projected: Tensor,
    keys: Keys,
    starts: tuple[int, ...],
    lengths: tuple[int, ...],
    window: int,
) -> Tensor:
    first = firsts(lengths)
    table = keys.table.flatten()
    return paged_attention(
        query, projected, keys.kept, 1, table, first, numbers(*starts), max(lengths), window
    )


def gated(out: Tensor, projected: Tensor, dim: int) -> Tensor:
    gate = projected.unflatten(-1, (-1, 2 * dim))[..., dim:].flatten(-2)
    return out * torch.sigmoid(gate)


@pytest.mark.parametrize(
    ("heads", "kv", "dim", "window", "dtype"),
    [
        (4, 4, 16, 0, torch.float64),
        (6, 2, 24, 0, torch.float32),
        (6, 2, 24, 9, torch.float64),
        (8, 1, 8, 33, torch.float32),
        (4, 2, 16, 9, torch.bfloat16),
    ],
)
def test_any_lengths_together_equal_the_plain_kernel(
    heads: int, kv: int, dim: int, window: int, dtype: torch.dtype
) -> None:
    keys = paged_keys(STARTS, LENGTHS, kv=kv, dim=dim, window=window, dtype=dtype)
    query = noise(sum(LENGTHS), heads, dim, dtype=dtype)
    projected = noise(sum(LENGTHS), heads * 2 * dim, seed=2, dtype=dtype)
    ours = attended(query, projected, keys, STARTS, LENGTHS, window)
    first = firsts(LENGTHS).tolist()
    for row, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
        visible = attention.sees(
            torch.arange(start, start + length), torch.arange(start + length), window
        )[None]
        part = slice(first[row], first[row] + length)
        theirs = attention.attend(query[None, part], *keys.own[row], visible)[0]
        assert far(ours[part], gated(theirs, projected[part], dim)) <= BOUND[dtype]


@pytest.mark.parametrize("window", [0, 9])
def test_decode_equals_torchs_own_attention(window: int) -> None:
    starts = (0, 8, 63, 40)
    lengths = (1, 1, 1, 1)
    keys = paged_keys(starts, lengths, kv=2, dim=16, window=window, dtype=torch.float32)
    query = noise(4, 6, 16, dtype=torch.float32)
    projected = noise(4, 6 * 32, seed=2, dtype=torch.float32)
    ours = attended(query, projected, keys, starts, lengths, window)
    for row, start in enumerate(starts):
        oldest = max(0, start - window + 1) if window else 0
        key, value = (part[:, oldest:].transpose(1, 2) for part in keys.own[row])
        theirs = F.scaled_dot_product_attention(
            query[None, row, :, None], key, value, enable_gqa=True
        )
        assert far(ours[row], gated(theirs.flatten(), projected[row], 16)) <= 1e-6


SPLIT = {"starts": (5, 299, 400), "lengths": (1, 1, 1)}
"""A decode step whose longer requests have keys for several programs."""


@pytest.mark.parametrize(
    ("window", "dtype"), [(0, torch.float32), (0, torch.bfloat16), (300, torch.float64)]
)
def test_keys_split_between_programs_equal_torchs_own_attention(
    window: int, dtype: torch.dtype
) -> None:
    keys = paged_keys(
        SPLIT["starts"], SPLIT["lengths"], kv=2, dim=16, window=window, dtype=dtype, columns=64
    )
    query = noise(3, 6, 16, dtype=dtype)
    projected = noise(3, 6 * 32, seed=2, dtype=dtype)
    ours = attended(query, projected, keys, SPLIT["starts"], SPLIT["lengths"], window)
    for row, start in enumerate(SPLIT["starts"]):
        oldest = max(0, start - window + 1) if window else 0
        key, value = (part[:, oldest:].double().transpose(1, 2) for part in keys.own[row])
        theirs = F.scaled_dot_product_attention(
            query[None, row, :, None].double(), key, value, enable_gqa=True
        )
        assert (
            far(ours[row].double(), gated(theirs.flatten(), projected[row].double(), 16))
            <= BOUND[dtype]
        )


def test_keys_are_split_by_shape_alone() -> None:
    """As a captured graph needs it. Few requests of much text are split most, and none that has
    too little.
    """
    assert [_splits(programs, 64) for programs in (1, 8, 64, 128, 512, 9999)] == [
        32,
        32,
        8,
        4,
        1,
        1,
    ]
    assert [_splits(1, tiles) for tiles in (0, 1, 2, 4, 10**6)] == [1, 1, 1, 2, 64]


@pytest.mark.parametrize("position", [0, 130, 299])
def test_poison_in_any_split_makes_its_request_nan_and_no_other(position: int) -> None:
    starts = (299, 299)
    keys = paged_keys(starts, (1, 1), kv=1, dim=16, columns=64)
    block = keys.kept.shape[2]
    keys.kept[1, keys.table[1, position // block], position % block] = NAN
    ours = attended(noise(2, 2, 16), noise(2, 64, seed=2), keys, starts, (1, 1), 0)
    assert not ours[0].isnan().any() and ours[1].isnan().all()


@pytest.mark.filterwarnings("ignore")  # it is slow without torch.compile, and says so
def test_prefill_equals_flex_attention() -> None:
    flex = pytest.importorskip(
        "torch.nn.attention.flex_attention", reason="this torch has no FlexAttention"
    )
    start, length, window = 13, 20, 9
    keys = paged_keys((start,), (length,), kv=2, dim=16, window=window, dtype=torch.float32)
    query = noise(length, 4, 16, dtype=torch.float32)
    projected = noise(length, 4 * 32, seed=2, dtype=torch.float32)
    ours = attended(query, projected, keys, (start,), (length,), window)

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q + start) & (q + start - k < window)

    mask = flex.create_block_mask(seen, None, None, length, start + length, device="cpu")
    key, value = (part.transpose(1, 2) for part in keys.own[0])
    theirs = flex.flex_attention(
        query[None].transpose(1, 2), key, value, block_mask=mask, enable_gqa=True
    )
    assert far(ours, gated(theirs[0].transpose(0, 1).flatten(1), projected, 16)) <= 1e-6


def test_poison_that_a_query_sees_makes_its_request_nan_and_no_other() -> None:
    keys = paged_keys((20, 20), (1, 1), kv=1, dim=16)
    query = noise(2, 2, 16)
    projected = noise(2, 64, seed=2)
    keys.kept[1, keys.table[1, 1], 3] = NAN
    ours = attended(query, projected, keys, (20, 20), (1, 1), 0)
    assert not ours[0].isnan().any() and ours[1].isnan().all()


@pytest.mark.parametrize("missing", [0, -5, 1000])
def test_columns_and_pages_that_there_are_not_are_poison(missing: int) -> None:
    keys = paged_keys((20,), (1,), kv=1, dim=16)
    keys.table[0, 1] = missing
    assert attended(noise(1, 2, 16), noise(1, 64, seed=2), keys, (20,), (1,), 0).isnan().all()
    assert not attended(noise(1, 2, 16), noise(1, 64, seed=2), keys, (20,), (1,), 5).isnan().any()


@pytest.mark.parametrize("turned", [0.5, 1.0])
def test_keys_are_normalised_rotated_and_kept_where_they_belong(turned: float) -> None:
    config = model("full_attention", partial_rotary_factor=turned)
    w = strong_weights(config)
    name = "model.layers.0.self_attn"
    x = noise(5, config.hidden_size)
    positions = torch.tensor([7, 0, 1, 30, 31])
    places = numbers(9, 40, -1, 8, 17)
    query, key, value, _ = attention.project(x, positions, w, name, config)
    cos, sin = (
        part[:, : config.rotary_dim // 2].contiguous()
        for part in attention.rotary(positions, config, x.dtype)
    )
    projected, keys, values = (x @ w[f"{name}.{part}_proj.weight"].T for part in "qkv")
    kept = torch.full((2, 6, 8, 2, config.num_key_value_heads, config.head_dim), NAN, dtype=x.dtype)
    scales = (w[f"{name}.q_norm.weight"], w[f"{name}.k_norm.weight"])
    ours = keep_keys(
        projected, keys, values, *scales, cos, sin, places, kept, 1, config.rms_norm_eps
    )
    assert far(ours, query) <= 1e-13
    flat = kept[1].flatten(0, 1)
    for token in (0, 1, 3, 4):
        assert far(flat[places[token]], torch.stack([key[token], value[token]])) <= 1e-13
    written = ~kept[1].flatten(0, 1).isnan().flatten(1).all(1)
    assert written.nonzero().flatten().tolist() == [8, 9, 17, 40] and kept[0].isnan().all()
