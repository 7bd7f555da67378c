"""The document's steps 1 and 2 as arithmetic: the unified block size, the chunk, the budget, the
commands.
"""

from __future__ import annotations

import pytest

from cachewitness_reference.lmcache import sizing
from cachewitness_reference.lmcache.sizing import SizingError

QWEN_0_8B = (
    sizing.attention_bytes_per_token(2, 256),
    sizing.gated_delta_state_bytes(16, 16, 128, 128, 4),
)
QWEN_27B = (
    sizing.attention_bytes_per_token(4, 256),
    sizing.gated_delta_state_bytes(16, 48, 128, 128, 4),
)
"""Bytes of a token and of a state, from the published configurations (heads, head sizes,
convolution kernel)."""


def test_the_bytes_that_the_sizes_follow_from() -> None:
    """Two tensors of 2 heads x 256 in bf16; three inputs of 6144 channels in bf16 and 16
    matrices of 128 x 128 in float32.
    """
    assert QWEN_0_8B == (2 * 2 * 256 * 2, 3 * 6144 * 2 + 16 * 128 * 128 * 4) == (2048, 1_085_440)
    assert QWEN_27B == (2 * 4 * 256 * 2, 3 * 10_240 * 2 + 48 * 128 * 128 * 4) == (4096, 3_207_168)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [(QWEN_0_8B, 544), (QWEN_27B, 784)],
    ids=["Qwen3.5-0.8B", "Qwen3.6-27B"],
)
def test_n_of_the_documents_models(numbers: tuple[int, int], expected: int) -> None:
    """The values that vLLM's log prints for these models."""
    assert sizing.unified_block_size(*numbers) == expected


@pytest.mark.parametrize(
    ("token", "state", "kernel"),
    [(2048, 1_085_440, 16), (2048, 1_085_440, 64), (3, 100, 16), (7, 112, 16)],
)
def test_n_is_the_least_block_whose_attention_page_holds_a_state(
    token: int, state: int, kernel: int
) -> None:
    """One kernel block less, and the page is smaller than the state."""
    size = sizing.unified_block_size(token, state, kernel)
    assert size % kernel == 0
    assert size * token >= state > (size - kernel) * token


def test_the_state_is_padded_to_a_page_of_attention() -> None:
    """544 tokens of 2048 bytes are 2.64 % more than a state of Qwen3.5-0.8B, as vLLM's log says;
    576 are 8.68 %.
    """
    assert round(100 * sizing.state_padding(*QWEN_0_8B, 544), 2) == 2.64
    assert round(100 * sizing.state_padding(*QWEN_0_8B, 576), 2) == 8.68


def test_chunk_is_n_or_any_multiple_of_it() -> None:
    assert [sizing.chunk_size([784], multiple) for multiple in (1, 2, 3)] == [784, 1568, 2352]


def test_without_states_the_chunk_is_the_default_where_it_fits() -> None:
    """256 with blocks of 16 and 32; with blocks of 96 the least multiple above it."""
    assert sizing.chunk_size([16, 32]) == 256
    assert sizing.chunk_size([96]) == 288


@pytest.mark.parametrize("release", ["0.4.7", "0.5.0", "0.5.1", "0.5.2", "0.5.3"])
def test_budget_is_in_n_to_2n_up_to_0_5_3(release: str) -> None:
    """The document's rule, and its simple, always valid choice."""
    assert sizing.batched_tokens(784, release) == (784, 1567, 784)


@pytest.mark.parametrize("release", ["0.5.4", "0.5.5", "0.5.6"])
def test_budget_has_no_upper_bound_since_0_5_4(release: str) -> None:
    """Recipes prefer 2N - 1, since N serialises prefill behind decoding."""
    assert sizing.batched_tokens(784, release) == (784, None, 1567)


def test_commands_of_the_document() -> None:
    """In a release of the document's time, both commands are the document's."""
    settings = sizing.settings(*QWEN_27B, model="Qwen/Qwen3.6-27B", release="0.5.3")
    assert (settings.block_size, settings.chunk_size, settings.budget) == (784, 784, 784)
    assert (
        settings.server_command
        == "lmcache server --chunk-size 784 --l1-size-gb 100 --eviction-policy LRU"
    )
    for flag in (
        "--enable-prefix-caching",
        "--mamba-cache-mode align",
        "--max-num-batched-tokens 784",
        "LMCacheMPConnector",
    ):
        assert flag in settings.engine_command
    assert "disable-hybrid-kv-cache-manager" not in settings.engine_command


def test_newer_releases_want_object_groups_apart() -> None:
    settings = sizing.settings(*QWEN_27B)
    assert settings.server_command.endswith("--separate-object-groups")
    assert "--max-num-batched-tokens 1567" in settings.engine_command


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: sizing.unified_block_size(0, 1), "attention_bytes_per_token"),
        (lambda: sizing.unified_block_size(1, -1), "state_bytes"),
        (lambda: sizing.unified_block_size(1, 1, 0), "kernel_block"),
        (lambda: sizing.attention_bytes_per_token(0, 256), "kv_heads"),
        (lambda: sizing.gated_delta_state_bytes(16, 16, 128, 128, 0), "conv_kernel"),
        (lambda: sizing.chunk_size([]), "block_sizes"),
        (lambda: sizing.chunk_size([16], -1), "multiple"),
        (lambda: sizing.batched_tokens(16, "0.9"), "release"),
        (lambda: sizing.settings(1, 1, chunk_multiple=0), "chunk_multiple"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(call: object, field: str) -> None:
    assert callable(call)
    with pytest.raises(SizingError, match=field):
        call()


def test_sizes_of_any_magnitude_come_out_exactly() -> None:
    """No rounding through floating point: 2^60 bytes of state over one byte a token."""
    assert sizing.unified_block_size(1, 2**60 + 1) == 2**60 + 16
