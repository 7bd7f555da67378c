"""`plan tensorrt_edge`: the bytes of every tensor, multiplied out by hand."""

from __future__ import annotations

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.systems.tensorrt_edge.reference.plan import Request, config_of, plan
from cachewitness.workloads import layouts


def test_the_tensors_of_a_hybrid() -> None:
    """Qwen3.5-0.8B, 4 rows of 4 096 tokens, everything in half precision."""
    answer = plan(Request("qwen3.5-0.8b", 4, 4096))
    assert answer.value("kv_bytes") == 6 * 4 * 2 * 2 * 4096 * 256 * 2
    assert answer.value("recurrent_bytes") == 18 * 4 * 16 * 128 * 128 * 2
    assert answer.value("conv_bytes") == 18 * 4 * 6144 * 4 * 2
    assert answer.value("lengths_bytes") == 4 * 4
    parts = [
        answer.value(name)
        for name in ("kv_bytes", "recurrent_bytes", "conv_bytes", "lengths_bytes")
    ]
    assert answer.value("total_bytes") == sum(int(part or 0) for part in parts)


def test_types_change_bytes_and_not_shapes() -> None:
    """FP8 keys and values are half as big, float states twice."""
    half = plan(Request("qwen3.5-0.8b", 4, 4096))
    other = plan(
        Request(
            "qwen3.5-0.8b",
            4,
            4096,
            kv_cache_type="fp8",
            recurrent_state_type="float",
            conv_state_type="float",
        )
    )
    assert 2 * int(other.value("kv_bytes") or 0) == half.value("kv_bytes")
    for name in ("recurrent_bytes", "conv_bytes"):
        assert other.value(name) == 2 * int(half.value(name) or 0)


def test_head_sizes_have_tensors_of_their_own() -> None:
    """Gemma 4: 50 layers of 16 x 256 and 10 of 4 x 512; sliding layers keep every token, and it
    is said.
    """
    answer = plan(Request("gemma-4-31b", 2, 1000))
    assert answer.value("kv_layer_16x256_bytes") == 2 * 2 * 16 * 1000 * 256 * 2
    assert answer.value("kv_layer_4x512_bytes") == 2 * 2 * 4 * 1000 * 512 * 2
    assert (
        answer.value("kv_bytes")
        == 50 * 2 * 2 * 16 * 1000 * 256 * 2 + 10 * 2 * 2 * 4 * 1000 * 512 * 2
    )
    assert any("sliding layers keep every token" in note for note in answer.notes)


@pytest.mark.parametrize(
    "types",
    [{}, {"kv_cache_type": "fp8", "recurrent_state_type": "float", "conv_state_type": "bf16"}],
)
def test_the_manager_allocates_what_is_planned(types: dict[str, str]) -> None:
    """Every tensor of the reference's own manager, weighed: two rows of 48 tokens of
    Qwen3.5-0.8B.
    """
    pytest.importorskip("torch")
    from cachewitness_reference.tensorrt_edge.tensors import HybridCacheManager

    request = Request("qwen3.5-0.8b", 2, 48, **types)
    manager = HybridCacheManager(config_of(layouts.model(request.layout), request))
    states = manager.get_mamba_cache_manager()
    answer = plan(request)
    assert sum(layer.nbytes for layer in manager.get_kv_cache_manager().layers) == answer.value(
        "kv_bytes"
    )
    assert sum(layer.nbytes for layer in states.recurrent) == answer.value("recurrent_bytes")
    assert sum(layer.nbytes for layer in states.conv) == answer.value("conv_bytes")


@pytest.mark.parametrize(("length", "padded"), [(1, 128), (127, 128), (128, 128), (129, 256)])
def test_pages_of_128_tokens_round_the_length_up_from_0_10_on(length: int, padded: int) -> None:
    """And releases before do not."""
    paged = plan(Request("gpt-oss-20b", 3, length, release="0.10"))
    assert paged.value("kv_pages") == 3 * padded // 128
    assert paged.value("kv_bytes") == 24 * 3 * 2 * 8 * padded * 64 * 2
    assert (
        plan(Request("gpt-oss-20b", 3, length, release="0.9")).value("kv_bytes")
        == 24 * 3 * 2 * 8 * length * 64 * 2
    )


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (Request("qwen3.5-0.8b", 0, 4096), "maxBatchSize must be positive"),
        (Request("qwen3.5-0.8b", 4, 0), "maxSequenceLength must be positive"),
        (Request("qwen3.5-0.8b", 2**49, 4096), "--max-batch-size: 562949953421312"),
        (Request("qwen3.5-0.8b", 4, 2**58), "--max-sequence-length: 288230376151711744"),
        (Request("qwen3.5-0.8b", 4, 4096, release="0.6"), "--release: '0.6'"),
        (Request("kimi-linear-48b-a3b", 4, 4096), "model.caches[1].kind 'latent'"),
    ],
    ids=lambda value: "" if isinstance(value, Request) else value,
)
def test_what_does_not_fit_is_refused_by_name(request_: Request, named: str) -> None:
    """One line, upstream's where it has one."""
    with pytest.raises(UsageError) as caught:
        plan(request_)
    assert named in str(caught.value) and "\n" not in str(caught.value)
