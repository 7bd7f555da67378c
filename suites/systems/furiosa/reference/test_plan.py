"""`plan furiosa`: both pools run out together at the expected length, and the memory is not
exceeded.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.systems.furiosa.reference.plan import Request, plan

TOKEN = 2 * 16 * 128 * 2
"""Gemma-3-27B: keys and values of 16 heads of 128 in bf16."""


def test_the_split_of_gemma_3_at_8192_tokens() -> None:
    """512 global blocks a sequence, and 65 sliding ones: 1 023 tokens touch 64 blocks, 65 if
    they begin inside one.
    """
    answer = plan(Request("gemma-3-27b", "8192", kv_gib=16))
    assert (answer.value("global_blocks_per_seq"), answer.value("sliding_blocks_per_seq")) == (
        512,
        65,
    )
    need = 512 * 10, 65 * 52
    share = Fraction(need[0], sum(need))
    blocks = 16 * 2**30 * share // (16 * 10 * TOKEN)
    assert answer.value("global_blocks") == blocks
    assert answer.value("sliding_blocks") == (16 * 2**30 - blocks * 16 * 10 * TOKEN) // (
        16 * 52 * TOKEN
    )
    assert answer.value("global_share") == pytest.approx(float(share), abs=1e-3)


@pytest.mark.parametrize("length", [1, 16, 1023, 1024, 1025, 8192, 131072])
def test_both_pools_run_out_at_the_same_number_of_sequences(length: int) -> None:
    """Within one sequence, for lengths around the window and beyond; what is left over is less
    than a block of each.
    """
    answer = plan(Request("gemma-3-27b", str(length), kv_gib=64))
    results = {line.name: line.value for line in answer.lines}
    fit = (
        results["global_blocks"] // results["global_blocks_per_seq"],
        results["sliding_blocks"] // results["sliding_blocks_per_seq"],
    )
    assert abs(fit[0] - fit[1]) <= 1
    assert 0 <= 64 * 2**30 - results["global_bytes"] - results["sliding_bytes"] < 16 * 62 * TOKEN


def test_kinds_of_unlike_heads_are_weighed_by_their_own_bytes() -> None:
    """Gemma 4: a full layer's token is half a sliding one's."""
    answer = plan(Request("gemma-4-31b", "8192"))
    assert answer.value("global_block_bytes") == 16 * 10 * 2 * 4 * 512 * 2
    assert answer.value("sliding_block_bytes") == 16 * 50 * 2 * 16 * 256 * 2


def test_without_memory_the_split_is_that_of_one_sequence() -> None:
    """The example of the command has none."""
    answer = plan(Request("gemma-3-27b", "8192"))
    assert answer.value("sequences") == 1
    assert answer.value("global_blocks") == answer.value("global_blocks_per_seq")
    assert answer.value("sliding_blocks") == answer.value("sliding_blocks_per_seq")


def test_unset_the_length_is_the_longest_or_any_within_the_window() -> None:
    """Two readings of the document's default, one of them by name."""
    assert plan(Request("gemma-3-27b")).value("seq_length_tokens") == 131072
    assert (
        plan(Request("gemma-3-27b", default_ratio="per_token")).value("seq_length_tokens") == 1024
    )


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        *[
            (Request("gemma-3-27b", text), "EXPECTED_AVERAGE_SEQ_LENGTH must be a positive integer")
            for text in ("0", "-1", "8k", "8192.0", "", " 8192", "1" * 30)
        ],
        (Request("gemma-3-27b", kv_bytes=1, kv_gib=1), "--kv-bytes and --kv-gib"),
        (Request("gemma-3-27b", kv_bytes=1000), "kv_bytes (1000)"),
        (Request("gemma-3-27b", block_size=2**63), "--block-size: 9223372036854775808"),
        (Request("gemma-3-27b", max_model_len=131073), "--max-model-len"),
        (Request("qwen3.5-0.8b"), "model.caches[0].kind 'recurrent'"),
        (Request("glm-5.2"), "model.caches[0].kind 'latent'"),
    ],
    ids=lambda value: (value.expected or value.layout) if isinstance(value, Request) else "",
)
def test_what_does_not_fit_is_refused_by_name(request_: Request, named: str) -> None:
    """One clear line."""
    with pytest.raises(UsageError) as caught:
        plan(request_)
    assert named in str(caught.value) and "\n" not in str(caught.value)
