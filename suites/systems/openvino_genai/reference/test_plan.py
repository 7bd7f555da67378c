"""`plan openvino`: the capacities that were measured on release 2026.4.1, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.systems.openvino_genai.reference.plan import Request, plan

# The model whose blocks were measured: 3 gated DeltaNet layers and 1 of attention, everything in
# f32. OpenVINO 2026.4.1 said 835 584 bytes for a state and 8 192 for a KV block of 32 tokens.
TINY = """
name = "tiny"
[model]
checkpoint = "tiny"
config = "made up"
sources = []
unverified = []
max_length = 16384
[[model.caches]]
kind = "recurrent"
layers = 3
family = "gdn"
conv_channels = 1024
conv_kernel = 4
conv_dtype = "float32"
state_shape = [4, 128, 128]
state_dtype = "float32"
[[model.caches]]
kind = "full"
layers = 1
kv_heads = 1
head_dim = 32
dtype = "float32"
[[groups]]
kind = "full"
block_size = 32
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """Return a layout file of the measured model."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def _plan(layout: str, release: str = "2026.4", **config: Any) -> dict[str, Any]:
    answer = plan(Request(config, layout, release))
    return {line.name: line.value for line in answer.lines}


def test_a_layout_gives_the_bytes_that_openvino_reports(tiny: str) -> None:
    """Measured: `gated_delta_state_table` and `conv_state_table` [channels, kernel]; K and V of
    32 tokens.
    """
    results = _plan(tiny, num_kv_blocks=1, enable_prefix_caching=True)
    assert (results["la_block_bytes"], results["kv_block_bytes"]) == (835_584, 8_192)


@pytest.mark.parametrize(("kv", "la"), [(102, 1), (103, 2), (204, 2), (205, 3), (1024, 11)])
def test_an_unset_multiplier_follows_the_bytes(tiny: str, kv: int, la: int) -> None:
    """Measured on 2026.4.1: ceil(835 584 / 8 192) = 102 KV blocks from one checkpoint to the
    next.
    """
    results = _plan(tiny, num_kv_blocks=kv, enable_prefix_caching=True)
    assert (results["multiplier"], results["la_blocks"]) == (102, la)


def test_an_unset_multiplier_is_8_in_2026_2(tiny: str) -> None:
    """The document's default."""
    results = _plan(tiny, "2026.2", num_kv_blocks=64, enable_prefix_caching=True)
    assert (results["multiplier"], results["la_blocks"], results["interval_tokens"]) == (8, 8, 256)


@pytest.mark.parametrize(
    ("multiplier", "la"), [(1, 64), (3, 22), (7, 10), (8, 8), (64, 1), (100, 1)]
)
def test_explicit_kv_blocks_give_ceil_of_their_share(tiny: str, multiplier: int, la: int) -> None:
    """Measured for every one of these multipliers, with 64 KV blocks."""
    results = _plan(
        tiny, num_kv_blocks=64, enable_prefix_caching=True, cache_interval_multiplier=multiplier
    )
    assert (results["kv_blocks"], results["la_blocks"]) == (64, la)


@pytest.mark.parametrize(("batched", "la"), [(256, 5), ("unlimited", 1)])
def test_without_prefix_caching_states_are_of_sequences(
    tiny: str, batched: int | str, la: int
) -> None:
    """Bounded batches: `max_num_seqs`; unlimited: one. Both measured, under a budget and with
    explicit blocks.
    """
    explicit = _plan(tiny, num_kv_blocks=64, max_num_seqs=5, max_num_batched_tokens=batched)
    budget = _plan(tiny, cache_size=1, max_num_seqs=5, max_num_batched_tokens=batched)
    assert explicit["la_blocks"] == budget["la_blocks"] == la
    assert budget["kv_blocks"] == (2**30 - la * 835_584) // 8_192


@pytest.mark.parametrize("multiplier", [1, 8, 100])
def test_a_budget_holds_as_many_tokens_as_fit(tiny: str, multiplier: int) -> None:
    """One token more would take a block that does not fit; the search is done here by hand."""
    results = _plan(
        tiny, cache_size=1, enable_prefix_caching=True, cache_interval_multiplier=multiplier
    )
    kv = results["kv_blocks"]
    la = results["la_blocks"]
    assert kv * 8_192 + la * 835_584 <= 2**30
    more = kv + 1
    assert more * 8_192 + -(-(32 * kv + 1) // (32 * multiplier)) * 835_584 > 2**30
    assert la == -(-kv // multiplier)


def test_the_example_needs_no_layout() -> None:
    """`--kv-blocks 1024 --multiplier 8`: 128 states, 256 tokens apart; bytes are not told, since
    nobody gave any.
    """
    answer = plan(Request({"num_kv_blocks": 1024, "cache_interval_multiplier": 8}))
    assert (
        answer.value("kv_blocks"),
        answer.value("la_blocks"),
        answer.value("interval_tokens"),
    ) == (1024, 128, 256)
    assert not any(line.name.endswith("_bytes") for line in answer.lines)
    assert any("prefix caching is on" in note for note in answer.notes)


def test_a_multiplier_without_prefix_caching_is_not_used_and_said_so() -> None:
    """OpenVINO ignores it as well."""
    answer = plan(
        Request(
            {"num_kv_blocks": 8, "cache_interval_multiplier": 8, "enable_prefix_caching": False}
        )
    )
    assert answer.value("la_blocks") == 256 and any(
        "--multiplier is not used" in note for note in answer.notes
    )


def test_a_manual_number_of_states_is_discarded_under_a_budget_with_prefix_caching(
    tiny: str,
) -> None:
    """Measured, against the document; and said so."""
    config = {
        "cache_size": 1,
        "enable_prefix_caching": True,
        "cache_interval_multiplier": 8,
        "num_linear_attention_blocks": 20,
    }
    answer = plan(Request(config, layout=tiny))
    assert (
        answer.value("la_blocks")
        == _plan(tiny, cache_size=1, cache_interval_multiplier=8)["la_blocks"]
    )
    assert any("--linear-attention-blocks is discarded" in note for note in answer.notes)


def test_the_latency_profile_is_a_pipelines_own(tiny: str) -> None:
    """LLMPipeline: unlimited batches and prefix caching, unless told otherwise."""
    answer = plan(
        Request(
            {"num_kv_blocks": 64, "cache_interval_multiplier": 8, "pipeline": "LLMPipeline"}, tiny
        )
    )
    assert answer.value("prefix_caching") is True
    off = plan(
        Request(
            {"num_kv_blocks": 64, "enable_prefix_caching": False, "pipeline": "LLMPipeline"}, tiny
        )
    )
    assert off.value("la_blocks") == 1


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 32), ("gpu", 16), ("gpu+xattention", 256)])
def test_the_device_gives_the_tokens_of_a_block(tiny: str, device: str, tokens: int) -> None:
    """And so the interval."""
    answer = plan(
        Request({"num_kv_blocks": 64, "cache_interval_multiplier": 8, "device": device}, tiny)
    )
    assert (answer.value("kv_block_tokens"), answer.value("interval_tokens")) == (
        tokens,
        8 * tokens,
    )


@pytest.mark.parametrize(
    ("config", "options", "named"),
    [
        ({"num_kv_blocks": 2**49}, {"release": "2026.2"}, "num_kv_blocks: 562949953421312"),
        (
            {"num_kv_blocks": 8, "cache_interval_multiplier": 2**58},
            {},
            "cache_interval_multiplier: 288230376151711744",
        ),
        (
            {"num_kv_blocks": 8, "cache_interval_multiplier": 2**60},
            {},
            "cache_interval_multiplier is too large",
        ),
        (
            {"num_kv_blocks": 8, "cache_interval_multiplier": 0},
            {},
            "cache_interval_multiplier must be greater than 0",
        ),
        (
            {"num_kv_blocks": 8, "enable_prefix_caching": True},
            {},
            "cache_interval_multiplier: unset",
        ),
        ({"cache_size": 2}, {}, "cache_size is split by the bytes of blocks"),
        ({"num_kv_blocks": 8}, {"memory_gib": 1}, "memory_gib is compared with the bytes"),
        (
            {"num_kv_blocks": 8},
            {"la_block_bytes": 4},
            "la_block_bytes: needs kv_block_bytes beside it",
        ),
        ({"num_kv_blocks": 8}, {"kv_precision": "f16"}, "kv_precision"),
        ({"num_kv_blocks": 8}, {"release": "2025.1"}, "--release: '2025.1'"),
        ({"cache_size": 2**40}, {"kv_block_bytes": 8192}, "cache_size"),
        ({"num_kv_blocks": 8, "use_cache_eviction": True}, {}, "use_cache_eviction"),
        (
            {"cache_size": 1, "max_num_seqs": 20000},
            {"kv_block_bytes": 8192, "la_block_bytes": 835_584},
            "exceeds the configured cache",
        ),
        (
            {"cache_size": 2},
            {"layout": "qwen3.5-0.8b"},
            "256 states of 19759104 bytes against cache_size 2 GiB: lower max_num_seqs",
        ),
        (
            {"num_kv_blocks": 2_000_000},
            {"kv_block_bytes": 8192, "memory_gib": 4},
            "system. num_kv_blocks 2000000 against memory_gib",
        ),
        (
            {"cache_size": 5},
            {"kv_block_bytes": 8192, "memory_gib": 4},
            "system. cache_size 5 GiB against memory_gib",
        ),
        (
            {"num_kv_blocks": 8, "num_linear_attention_blocks": 2},
            {"layout": "gemma-3-27b"},
            "num_linear_attention_blocks",
        ),
        ({"num_kv_blocks": 8}, {"layout": "kimi-linear-48b-a3b"}, "model.caches[1].kind 'latent'"),
        (
            {"num_kv_blocks": 8},
            {"layout": "gemma-3-27b", "kv_block_bytes": 1},
            "kv_block_bytes: layout",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_by_name(
    config: dict[str, Any], options: dict[str, Any], named: str
) -> None:
    """One line with the option or the field."""
    with pytest.raises(UsageError) as caught:
        plan(
            Request(
                config | {name: options.pop(name) for name in set(options) - {"layout", "release"}},
                **options,
            )
        )
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_a_cpu_packs_keys_and_values(tiny: str) -> None:
    """One head of 32 numbers, in blocks of 32 tokens: a scale and a zero point of 4 bytes each for
    every channel of the keys, and for every token of the values.
    """
    packed = {"kv_precision": "u8", "num_kv_blocks": 8}
    assert _plan(tiny, **packed)["kv_block_bytes"] == 2 * 32 * 32 + (32 + 32) * 8
    packed["kv_precision"] = "u4"
    assert _plan(tiny, **packed)["kv_block_bytes"] == 32 * 32 + (32 + 32) * 8
    with pytest.raises(UsageError, match="what a GPU packs into u4 is not worked out here"):
        _plan(tiny, device="gpu", **packed)
