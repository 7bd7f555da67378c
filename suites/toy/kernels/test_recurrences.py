"""The delta rule, the convolution and their states in Triton: what the plain kernels say, in
segments of any length.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model import causal_conv, gated_delta, norms
from cachewitness_reference.toy_model.triton_kernels import convolution, state
from cachewitness_reference.toy_model.triton_kernels import gated_delta as in_triton
from cachewitness_reference.toy_model.triton_kernels import norms as norms_in_triton
from suites.support.flat_requests import NAN, firsts, numbers
from suites.support.toy_models import far, noise

pytestmark = pytest.mark.toy
LENGTHS = (1, 35, 5)
OWNERS = numbers(0, 1, 1, 1, 2)
STOPS = numbers(1, 9, 10, 36, 41)
SAVES = numbers(3, 4, -1, 5, 6)
SEGMENTS = numbers(0, 1, 4, 5)
H, SHARED, K, V = 4, 2, 8, 12


def rows(x: Tensor, lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    return [part[None] for part in x.split(list(lengths))]


def heads(mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = mixed.split([SHARED * K, SHARED * K, H * V], dim=-1)
    return q.unflatten(-1, (SHARED, K)), k.unflatten(-1, (SHARED, K)), v.unflatten(-1, (H, V))


def alike(mixed: Tensor) -> Tensor:
    """Make all keys nearly the same, as a text that repeats itself does: the worst case of the
    triangular system.
    """
    mixed[:, SHARED * K : 2 * SHARED * K] = 1.0 + 0.01 * mixed[:, SHARED * K : 2 * SHARED * K]
    return mixed


@pytest.mark.parametrize(
    ("dtype", "bound", "repeats"),
    [
        (torch.float64, 1e-12, False),
        (torch.float64, 1e-12, True),
        (torch.float32, 1e-5, False),
        (torch.float32, 1e-5, True),
        (torch.bfloat16, 1e-2, False),
    ],
)
def test_delta_rule_over_segments_equals_the_rule_token_by_token(
    dtype: torch.dtype, bound: float, repeats: bool
) -> None:
    """Gates and memories of a bfloat16 model are float32, as in the plain kernels."""
    wide = torch.promote_types(dtype, torch.float32)
    mixed = noise(41, 2 * SHARED * K + H * V, dtype=dtype)
    mixed = alike(mixed) if repeats else mixed
    g = -F.softplus(noise(41, H, seed=2, dtype=wide)) * 0.3
    beta = torch.sigmoid(noise(41, H, seed=3, dtype=wide) + 2 * repeats)
    states = noise(2, 3, H, K, V, seed=4, dtype=wide)
    pages = torch.full((2, 8, H, K, V), NAN, dtype=wide)
    states[0] = NAN
    out = in_triton.gated_delta(
        mixed, g, beta, states, pages, 1, firsts(LENGTHS), SEGMENTS, STOPS, SAVES, max(LENGTHS)
    )
    assert out.dtype == dtype
    begin = 0
    for row, (m, log, strength, ours) in enumerate(
        zip(*map(rows, (mixed, g, beta, out)), strict=True)
    ):
        exact, _ = gated_delta.recurrent(*heads(m), log, strength, states[1, row : row + 1])
        assert far(ours, exact) <= bound
        for segment in range(int(SEGMENTS[row]), int(SEGMENTS[row + 1])):
            n = int(STOPS[segment]) - begin
            _, after = gated_delta.recurrent(
                *heads(m[:, :n]), log[:, :n], strength[:, :n], states[1, row : row + 1]
            )
            assert SAVES[segment] < 0 or far(pages[1, SAVES[segment]], after[0]) <= bound
        begin += m.shape[1]
    assert pages[0].isnan().all() and pages[1, [0, 1, 2, 7]].isnan().all()


@pytest.mark.filterwarnings(
    "ignore:Triton is not supported on current platform"
)  # it takes the interpreter for none
def test_delta_rule_equals_that_of_flash_linear_attention() -> None:
    """A second opinion that shares no line with this repository: its recurrent kernel, in the
    interpreter as ours is.
    """
    theirs = pytest.importorskip(
        "fla.ops.gated_delta_rule", reason="needs flash-linear-attention (fla-core)"
    )
    mixed = noise(41, 2 * SHARED * K + H * V, dtype=torch.float32)
    g = -F.softplus(noise(41, H, seed=2, dtype=torch.float32)) * 0.3
    beta = torch.sigmoid(noise(41, H, seed=3, dtype=torch.float32))
    states = noise(1, 3, H, K, V, seed=4, dtype=torch.float32)
    pages = torch.full((1, 4, H, K, V), NAN)
    last = [numbers(0, 1, 2, 3), numbers(1, 36, 41), numbers(3, 1, 2)]
    ours = in_triton.gated_delta(
        mixed, g, beta, states, pages, 0, firsts(LENGTHS), *last, max(LENGTHS)
    )
    options = {
        "initial_state": states[0],
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }
    begins = torch.tensor([0, 1, 36, 41])
    gates = {"g": g[None], "beta": beta[None]}
    out, after = theirs.fused_recurrent_gated_delta_rule(
        *heads(mixed[None]), **gates, **options, cu_seqlens=begins
    )
    assert far(ours, out[0]) <= 1e-6 and far(pages[0, [3, 1, 2]], after) <= 1e-6


def test_decode_step_equals_the_rule_for_one_token() -> None:
    mixed = noise(3, 2 * SHARED * K + H * V)
    g = -noise(3, H, seed=2).abs()
    beta = torch.sigmoid(noise(3, H, seed=3))
    states = noise(1, 3, H, K, V, seed=4)
    pages = torch.full((1, 6, H, K, V), NAN, dtype=torch.float64)
    out = in_triton.gated_delta(mixed, g, beta, states, pages, 0, firsts((1, 1, 1)), numbers(0, 1, 2, 3), numbers(1, 2, 3),  # noqa: E501
                                numbers(4, -1, 2), 1)  # fmt: skip
    exact, after = gated_delta.recurrent(
        *heads(mixed[:, None]), g[:, None], beta[:, None], states[0]
    )
    assert far(out, exact[:, 0]) <= 1e-13
    assert far(pages[0, 4], after[0]) <= 1e-13 and far(pages[0, 2], after[2]) <= 1e-13
    assert pages[0, [0, 1, 3, 5]].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gates_are_accurate_where_memories_fade_slowly(dtype: torch.dtype) -> None:
    """Relative to the gate: the log decay of a slow memory is 1e-4, and thousands of tokens add
    its error up.
    """
    a = noise(9, H) * 4
    b = noise(9, H, seed=2)
    a_log = noise(H, seed=3)
    bias = noise(H, seed=4) - 9
    g, beta = in_triton.delta_gates(*(x.to(dtype) for x in (a, b, a_log, bias)))
    a, b, a_log, bias = (x.to(dtype).double() for x in (a, b, a_log, bias))
    exact = -a_log.exp() * F.softplus(a + bias)
    assert (
        far(g / exact, 1.0) <= (1e-12 if dtype == torch.float64 else 4e-6)
        and far(beta, torch.sigmoid(b)) <= 1e-6
    )


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.bfloat16, 1e-2)])
def test_convolution_equals_the_plain_one_and_keeps_its_last_inputs(
    dtype: torch.dtype, bound: float
) -> None:
    """In bfloat16 the output is rounded once; the plain kernel, which rounds on its way, is
    asked in float32.
    """
    channels, width = 70, 4
    x = noise(41, channels, dtype=dtype)
    weight = noise(channels, 1, width, seed=2, dtype=dtype) / 4
    states = noise(2, 3, width - 1, channels, seed=3, dtype=dtype)
    states[0] = NAN
    pages = torch.full((2, 8, width - 1, channels), NAN, dtype=dtype)
    out = convolution.causal_conv(x, weight, states, 1, firsts(LENGTHS), max(LENGTHS))
    convolution.keep_inputs(x, states, pages, 1, firsts(LENGTHS), OWNERS, STOPS, SAVES)
    assert out.dtype == dtype
    wide = torch.promote_types(dtype, torch.float32)
    for row, (own, ours) in enumerate(zip(rows(x), rows(out), strict=True)):
        exact = causal_conv.causal_conv(
            *(given.to(wide) for given in (own, weight, states[1, row : row + 1]))
        )
        assert far(ours, exact) <= bound
    for owner, stop, page in zip(OWNERS, STOPS, SAVES, strict=True):
        own = x[None, int(firsts(LENGTHS)[owner]) : int(stop)]
        assert (
            page < 0
            or far(pages[1, page], causal_conv.conv_state_after(own, states[1, owner][None])[0])
            == 0.0
        )
    assert pages[0].isnan().all() and pages[1, [0, 1, 2, 7]].isnan().all()


def test_states_are_gathered_for_all_layers_and_are_zero_before_the_first_token() -> None:
    pool = noise(2, 6, 3, 500)
    pool[:, [0, 1, 3, 5]] = NAN
    found = state.gather_states(pool, numbers(4, -1, 2, 9, 0))
    assert torch.equal(found[:, [0, 2]], pool[:, [4, 2]]) and far(found[:, 1], 0.0) == 0.0
    assert found[:, 3:].isnan().all()


def test_norms_equal_the_plain_ones() -> None:
    stream = noise(40, 48)
    added = noise(40, 48, seed=2)
    weight = noise(48, seed=3)
    total = stream + added
    assert (
        far(
            norms_in_triton.add_and_normalise(stream, added, weight, 1e-6),
            norms.rms_norm(total, weight, 1e-6),
        )
        <= 1e-13
    )
    assert torch.equal(stream, total)
    x = noise(40, 3, 20)
    gate = noise(40, 60, seed=2)
    scale = noise(20, seed=3)
    exact = norms.gated_rms_norm(x, gate.unflatten(-1, (3, 20)), scale, 1e-6)
    assert far(norms_in_triton.normalise_and_gate(x, gate, scale, 1e-6), exact.flatten(1)) <= 1e-13
