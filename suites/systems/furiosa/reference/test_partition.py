"""How Furiosa-LLM's KV memory is split between its pools: the document's statements, and arithmetic
done by hand.

The example has 2 global and 10 sliding layers, blocks of 16 tokens, 4 bytes per token and layer and
a window of 64: a global block weighs 2 * 4 * 16 = 128 bytes, a sliding one 640.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachewitness_reference.furiosa.config import Options, cache_config, layers_of
from cachewitness_reference.furiosa.partition import (
    ConfigError,
    Partition,
    expected_length_from,
    split,
)

EXAMPLE: dict[str, Any] = {
    "block_size": 16,
    "global_layers": 2,
    "sliding_layers": 10,
    "global_bytes_per_token": 4,
    "sliding_bytes_per_token": 4,
    "window": 64,
    "max_model_len": 1024,
}
FULL = {"kind": "full", "block_size": 16, "window": 0, "layers": 2}
SLIDING = {"kind": "sliding", "block_size": 16, "window": 64, "layers": 10}
WEIGHED = [FULL | {"token_bytes": 4}, SLIDING | {"token_bytes": 4}]


def example(kv_bytes: int = 1_000_000, **changed: Any) -> Partition:
    """Split the example's memory."""
    return split(kv_bytes, **(EXAMPLE | changed))


# --- the document ---------------------------------------------------------------------------------


def test_memory_is_split_into_a_global_and_a_sliding_pool() -> None:
    """At 1024 tokens: 64 global and 4 + 1 sliding blocks, 8192 and 3200 bytes, so 64 of 11392
    parts of the blocks.
    """
    shares = example()
    assert (shares.global_blocks_per_seq, shares.sliding_blocks_per_seq) == (64, 5)
    assert shares.global_blocks == 1_000_000 * 64 // 11_392 == 5617
    assert shares.sliding_blocks == (1_000_000 - 5617 * 128) // 640 == 439


def test_two_pools_come_with_a_hybrid_model_without_being_asked_for() -> None:
    """No option is given, and there are two pools."""
    config = cache_config(layers_of(WEIGHED), 1_000_000)
    assert (config.global_blocks, config.sliding_blocks) == (
        example(max_model_len=4096).global_blocks,
        example(max_model_len=4096).sliding_blocks,
    )


def test_layers_of_one_kind_share_a_pool() -> None:
    """Gemma 3 has six sliding groups in vLLM's layout; here they are one pool of all their
    layers.
    """
    five = [SLIDING | {"layers": 2} for _ in range(5)]
    layers = layers_of([*five, FULL])
    assert layers == layers_of([FULL, SLIDING]) and (
        layers.global_layers,
        layers.sliding_layers,
    ) == (2, 10)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([FULL], "no sliding group"),
        ([SLIDING], "no full group"),
        ([FULL, SLIDING, {"kind": "recurrent", "block_size": 16}], r"groups\[2\].kind 'recurrent'"),
        ([FULL, {"kind": "chunked", "block_size": 16}], r"groups\[1\].kind 'chunked'"),
        ([FULL, SLIDING | {"block_size": 32}], "block_size differs"),
        ([FULL, SLIDING, SLIDING | {"window": 32}], "window differs"),
    ],
)
def test_a_model_that_is_not_hybrid_in_this_sense_is_refused(
    groups: list[Any], message: str
) -> None:
    """Only models that mix global and sliding-window attention, and nothing else, have the two
    pools.
    """
    with pytest.raises(ConfigError, match=message) as caught:
        layers_of(groups)
    assert "\n" not in str(caught.value)


def test_global_attention_grows_with_the_sequence_and_the_window_bounds_the_rest() -> None:
    """Twice the length takes twice the global blocks, and no more sliding ones; within the
    window both kinds grow alike.
    """
    short = example(expected_average_seq_length=256)
    long = example(expected_average_seq_length=512)
    assert (short.global_blocks_per_seq, long.global_blocks_per_seq) == (16, 32)
    assert short.sliding_blocks_per_seq == long.sliding_blocks_per_seq == 5
    within = example(expected_average_seq_length=48)
    assert within.global_blocks_per_seq == within.sliding_blocks_per_seq == 3


def test_the_longer_the_prompts_the_more_memory_is_global() -> None:
    """Beyond the window of 64 tokens: half and half of the blocks at 80, 64 to 5 at 1024."""
    shares = [example(expected_average_seq_length=length) for length in (80, 256, 1024)]
    assert [(s.global_blocks_per_seq, s.sliding_blocks_per_seq) for s in shares] == [
        (5, 5),
        (16, 5),
        (64, 5),
    ]
    assert sorted({s.global_blocks for s in shares}) == [s.global_blocks for s in shares]


def test_one_undivided_pool_would_hold_fewer_long_sequences() -> None:
    """With every layer treated as global, a sequence of 1024 tokens takes 64 * 768 bytes, and 20
    fit instead of 87.
    """
    assert 1_000_000 // (64 * (128 + 640)) == 20
    assert example().sequences == 1_000_000 // 11_392 == 87


def test_the_split_follows_what_either_attention_needs() -> None:
    """More global layers, or a narrower window, move memory to the global pool: it is no fixed
    share.
    """
    base = example()
    more_layers = example(global_layers=4)
    narrower = example(window=16)
    assert (
        more_layers.global_blocks * more_layers.global_block_bytes
        > base.global_blocks * base.global_block_bytes
    )
    assert narrower.global_blocks > base.global_blocks


def test_the_variable_guides_the_split() -> None:
    """The longer the sequences that are expected, the more memory is global; the numbers are
    those of 8192 tokens.
    """
    lengths = [64, 256, 1024, 8192]
    blocks = [
        example(max_model_len=16_384, expected_average_seq_length=n).global_blocks for n in lengths
    ]
    assert blocks == sorted(blocks) and len(set(blocks)) == 4
    assert blocks[-1] == 1_000_000 * 512 // (512 * 128 + 5 * 640) == 7448


def test_unset_the_ratio_is_that_of_the_longest_sequence() -> None:
    """The default takes the longest sequence that the server accepts."""
    assert example() == example(expected_average_seq_length=1024)


def test_unset_the_ratio_can_be_that_of_a_token() -> None:
    """The other default gives both kinds a block for a block, as any length within the window
    does.
    """
    per_token = example(default_ratio="per_token")
    assert per_token.global_blocks == 1_000_000 // (128 + 640) == 1302
    assert per_token == example(expected_average_seq_length=64)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "+8",
        "8.0",
        "1e3",
        "8_192",
        " 8",
        "",
        "eight",
        "٨",
        "9223372036854775808",
        "9" * 5000,
    ],
)
def test_the_variable_must_be_a_positive_integer(text: str) -> None:
    """Anything else is one clear line that names the variable."""
    with pytest.raises(
        ConfigError, match=r"^EXPECTED_AVERAGE_SEQ_LENGTH must be a positive integer, not"
    ) as caught:
        expected_length_from({"EXPECTED_AVERAGE_SEQ_LENGTH": text})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -8, True, 8.0, "8"])
def test_the_variable_must_be_a_positive_integer_as_an_option_too(value: Any) -> None:
    """Through options and through the calculator it is checked alike."""
    with pytest.raises(ConfigError, match="EXPECTED_AVERAGE_SEQ_LENGTH must be a positive integer"):
        Options.parse({"expected_average_seq_length": value})
    with pytest.raises(ConfigError, match="EXPECTED_AVERAGE_SEQ_LENGTH must be a positive integer"):
        example(expected_average_seq_length=value)


def test_the_variable_is_read_as_the_document_exports_it() -> None:
    """`export EXPECTED_AVERAGE_SEQ_LENGTH=8192`; without it nothing is set."""
    assert expected_length_from({"EXPECTED_AVERAGE_SEQ_LENGTH": "8192"}) == 8192
    assert expected_length_from({}) is None


# --- our choices ----------------------------------------------------------------------------------


def test_a_length_beyond_the_longest_sequence_counts_as_that() -> None:
    """No sequence is longer than the server accepts, so none is planned for."""
    assert example(expected_average_seq_length=10**9) == example(expected_average_seq_length=1024)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_bytes": 0}, r"kv_bytes \(0\) must be positive"),
        ({"kv_bytes": 2**63}, r"kv_bytes \(9223372036854775808\) is larger"),
        ({"block_size": -1}, r"block_size \(-1\) must be positive"),
        ({"window": 0}, r"window \(0\) must be positive"),
        ({"global_layers": 2.0}, "global_layers must be an integer"),
        ({"max_model_len": True}, "max_model_len must be an integer"),
        ({"default_ratio": "half"}, "default_ratio 'half' is unknown"),
        ({"kv_bytes": 700}, r"kv_bytes \(700\) holds not even one sequence"),
        ({"kv_bytes": 100}, r"kv_bytes \(100\) holds not even one sequence"),
    ],
)
def test_bad_sizes_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    """One line that names the field."""
    with pytest.raises(ConfigError, match=message) as caught:
        example(**changed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"retention_interval": 0}, "option 'retention_interval' is unknown"),
        ({"window_tail": "W+1"}, "option 'window_tail' cannot be 'W"),
        ({"enable_caching": 1}, "option 'enable_caching' cannot be 1"),
        ({"max_model_len": 0}, "option 'max_model_len'"),
    ],
)
def test_bad_options_are_refused_by_name(given_options: dict[str, Any], message: str) -> None:
    """An option that nobody reads would be believed to act."""
    with pytest.raises(ConfigError, match=message):
        Options.parse(given_options)


def test_pools_too_small_for_one_request_are_refused() -> None:
    """A window of 64 tokens may touch five blocks, and there is one to write."""
    with pytest.raises(ConfigError, match="a request needs 2 and 6"):
        cache_config(layers_of(WEIGHED), 4_000, Options(default_ratio="per_token"))


# --- properties -----------------------------------------------------------------------------------

SIZES = {
    "kv_bytes": st.integers(10**6, 10**12),
    "block_size": st.sampled_from([1, 2, 16, 128]),
    "global_layers": st.integers(1, 40),
    "sliding_layers": st.integers(1, 60),
    "global_bytes_per_token": st.sampled_from([1, 512, 4096]),
    "sliding_bytes_per_token": st.sampled_from([1, 512, 4096]),
    "window": st.integers(1, 5000),
    "max_model_len": st.integers(1, 10**6),
    "expected_average_seq_length": st.none() | st.integers(1, 10**6),
    "default_ratio": st.sampled_from(["max_model_len", "per_token"]),
}


def divided(sizes: dict[str, Any]) -> Partition | None:
    """Split, unless the memory is too small for that."""
    try:
        return split(**sizes)
    except ConfigError:
        return None


@given(st.fixed_dictionaries(SIZES))
def test_no_byte_too_many_and_less_than_a_block_of_each_kind_wasted(sizes: dict[str, Any]) -> None:
    """N_g and N_s together stay within the memory, and another block of either kind would not."""
    shares = divided(sizes)
    if shares is not None:
        waste = sizes["kv_bytes"] - shares.used_bytes
        assert 0 <= waste < shares.sliding_block_bytes
        assert waste < shares.global_block_bytes + shares.sliding_block_bytes


@given(st.fixed_dictionaries(SIZES))
def test_at_the_length_split_for_no_other_split_would_serve_more(sizes: dict[str, Any]) -> None:
    """The number of sequences is that of a memory without walls; both pools run out there,
    within one sequence.
    """
    shares = divided(sizes)
    if shares is not None:
        seq_bytes = (
            shares.global_blocks_per_seq * shares.global_block_bytes
            + shares.sliding_blocks_per_seq * shares.sliding_block_bytes
        )
        assert shares.sequences == sizes["kv_bytes"] // seq_bytes
        by_global = shares.global_blocks // shares.global_blocks_per_seq
        by_sliding = shares.sliding_blocks // shares.sliding_blocks_per_seq
        if shares.global_block_bytes <= shares.sliding_blocks_per_seq * shares.sliding_block_bytes:
            assert 0 <= by_sliding - by_global <= 1


@given(
    st.fixed_dictionaries(SIZES | {"max_model_len": st.just(10**6)}),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
)
def test_the_global_share_is_constant_within_the_window_and_never_falls(
    sizes: dict[str, Any], one: int, other: int
) -> None:
    """Compared in exact fractions of what a sequence takes."""

    def share(length: int) -> Fraction | None:
        shares = divided(sizes | {"expected_average_seq_length": length})
        if shares is None:
            return None
        parts = shares.global_blocks_per_seq * shares.global_block_bytes
        return Fraction(parts, parts + shares.sliding_blocks_per_seq * shares.sliding_block_bytes)

    short = share(min(one, other))
    long = share(max(one, other))
    if short is not None and long is not None:
        assert short <= long
        if max(one, other) <= sizes["window"]:
            assert short == long


@given(st.fixed_dictionaries(SIZES))
def test_a_length_of_the_window_gives_the_ratio_of_a_token(sizes: dict[str, Any]) -> None:
    """Whatever the window and the block."""
    at_window = divided(sizes | {"expected_average_seq_length": sizes["window"]})
    per_token = divided(sizes | {"expected_average_seq_length": None, "default_ratio": "per_token"})
    assert at_window == per_token
