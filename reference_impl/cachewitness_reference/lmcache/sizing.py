"""From a model's numbers to the settings that serve it: the document's steps 1 and 2 as arithmetic.

*Step 1.* vLLM gives every cache group of a recurrent model one block size N, in tokens, so large
that a page of attention holds at least as many bytes as a state. Attention kernels want blocks of a
multiple of their own, so N is the least such multiple.

*Step 2.* LMCache's chunk is N or a multiple of it. A state exists only where a step ends, so a step
must advance by a whole block: `max_num_batched_tokens` is at least N. Releases up to 0.5.3 asked
for less than 2N as well, so that no boundary was skipped; later ones store what there is. N
serialises prefill behind decoding, so later recipes prefer 2N - 1.

Sources: the document; vLLM, `platforms/interface.py`, `_align_hybrid_block_size`, and
`mamba_utils.py` (0.33.0); LMCache 0.5.6, `integration/vllm/kv_cache_group_edits.py`, how a state of
vLLM 0.26 or later is stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cachewitness_reference.lmcache.spec import DEFAULT_CHUNK_SIZE, NEWEST, RELEASES

L1_GIB = 100
"""GiB of the first level in the document's command."""
ROW_ALIGNMENTS = (16, 8, 4, 2)
"""Bytes of which the rows of a stored state are multiples, the first that fits."""


class SizingError(ValueError):
    """A number that makes no sense; the message is one line that names the field."""


@dataclass(frozen=True)
class Settings:
    """What a server and an engine are started with. All sizes in tokens.

    `block_size` is N; `budget_least` and `budget_most` bound `max_num_batched_tokens` (None: no
    upper bound), `budget` is the value recommended. `padding` is the share of a state's page that
    holds nothing.
    """

    release: str
    block_size: int
    chunk_size: int
    budget: int
    budget_least: int
    budget_most: int | None
    padding: float
    server_command: str
    engine_command: str


def attention_bytes_per_token(kv_heads: int, head_size: int, element_bytes: int = 2) -> int:
    """Return the bytes of one token's keys and values in one layer of full attention."""
    _positive(kv_heads=kv_heads, head_size=head_size, element_bytes=element_bytes)
    return 2 * kv_heads * head_size * element_bytes


def gated_delta_state_bytes(
    key_heads: int,
    value_heads: int,
    key_size: int,
    value_size: int,
    conv_kernel: int,
    conv_element_bytes: int = 2,
    state_element_bytes: int = 4,
) -> int:
    """Return the bytes of one gated-delta layer's state: its convolution's last inputs and a
    matrix for each value head.
    """
    _positive(
        key_heads=key_heads,
        value_heads=value_heads,
        key_size=key_size,
        value_size=value_size,
        conv_kernel=conv_kernel,
    )
    _positive(conv_element_bytes=conv_element_bytes, state_element_bytes=state_element_bytes)
    channels = 2 * key_heads * key_size + value_heads * value_size
    convolution = (conv_kernel - 1) * channels * conv_element_bytes
    return convolution + value_heads * key_size * value_size * state_element_bytes


def unified_block_size(
    attention_bytes_per_token: int, state_bytes: int, kernel_block: int = 16
) -> int:
    """Return N: the least multiple of `kernel_block` tokens whose attention page holds a state.

    Both byte counts are of one layer. Raises SizingError for a number that is not positive.
    """
    _positive(
        attention_bytes_per_token=attention_bytes_per_token,
        state_bytes=state_bytes,
        kernel_block=kernel_block,
    )
    return kernel_block * -(-state_bytes // (kernel_block * attention_bytes_per_token))


def stored_state_bytes(state_bytes: int, block_size: int, page_bytes: int) -> int:
    """Return what is stored of a state: it is cut into as many rows as its block has tokens, each
    a multiple of 16 bytes, or of 8, 4 or 2 if more than the page does not hold those.

    Raises SizingError for a state that its page does not hold in any of these ways.
    """
    _positive(state_bytes=state_bytes, block_size=block_size, page_bytes=page_bytes)
    row = -(-state_bytes // block_size)
    for alignment in ROW_ALIGNMENTS:
        stored = block_size * (alignment * -(-row // alignment))
        if page_bytes % alignment == 0 and stored <= page_bytes:
            return stored
    raise SizingError(
        f"page_bytes ({page_bytes}) does not hold a state of {state_bytes} in {block_size} rows"
    )


def state_padding(attention_bytes_per_token: int, state_bytes: int, block_size: int) -> float:
    """Return by how much, as a share of itself, a state is padded to fill a page of attention."""
    _positive(
        attention_bytes_per_token=attention_bytes_per_token,
        state_bytes=state_bytes,
        block_size=block_size,
    )
    return attention_bytes_per_token * block_size / state_bytes - 1


def chunk_size(block_sizes: Sequence[int], multiple: int = 0) -> int:
    """Return the chunk for groups of these block sizes: `multiple` of their least common one, or
    the least of 256 and more.
    """
    if not block_sizes:
        raise SizingError("block_sizes is empty; name the block size of at least one group")
    for size in block_sizes:
        _positive(block_size=size)
    if multiple < 0:
        raise SizingError(f"multiple ({multiple}) must not be negative")
    span = math.lcm(*block_sizes)
    return span * (multiple or -(-DEFAULT_CHUNK_SIZE // span))


def batched_tokens(block_size: int, release: str = NEWEST) -> tuple[int, int | None, int]:
    """Return the least and the most that `max_num_batched_tokens` may be with states, and what
    is recommended.
    """
    _positive(block_size=block_size)
    if release not in RELEASES:
        raise SizingError(f"release {release!r} is unknown; known are {', '.join(RELEASES)}")
    if RELEASES[release].step_below_two_blocks:
        return block_size, 2 * block_size - 1, block_size
    return block_size, None, 2 * block_size - 1


def settings(
    attention_bytes_per_token: int,
    state_bytes: int,
    *,
    model: str = "<model>",
    kernel_block: int = 16,
    chunk_multiple: int = 1,
    release: str = NEWEST,
) -> Settings:
    """Return everything that follows from a recurrent model's numbers, and the two commands to
    type.

    Raises SizingError for a number that is not positive, or a release that is unknown.
    """
    _positive(chunk_multiple=chunk_multiple)
    block_size = unified_block_size(attention_bytes_per_token, state_bytes, kernel_block)
    chunk = chunk_size([block_size], chunk_multiple)
    least, most, budget = batched_tokens(block_size, release)
    return Settings(
        release=release,
        block_size=block_size,
        chunk_size=chunk,
        budget=budget,
        budget_least=least,
        budget_most=most,
        padding=state_padding(attention_bytes_per_token, state_bytes, block_size),
        server_command=server_command(chunk, release),
        engine_command=engine_command(model, budget),
    )


def server_command(chunk: int, release: str = NEWEST, l1_gib: float = L1_GIB) -> str:
    """Return how the server is started for a recurrent model, with so many GiB for what it keeps.
    Where steps may pass over boundaries, groups must be separate.
    """
    command = f"lmcache server --chunk-size {chunk} --l1-size-gb {l1_gib:g} --eviction-policy LRU"
    return (
        command
        if RELEASES[release].step_below_two_blocks
        else f"{command} --separate-object-groups"
    )


def engine_command(model: str, budget: int) -> str:
    """Return how vLLM is started with LMCache behind it."""
    transfer = '\'{"kv_connector":"LMCacheMPConnector", "kv_role":"kv_both"}\''
    return (
        f"vllm serve {model} --enable-prefix-caching --mamba-cache-mode align"
        f" --max-num-batched-tokens {budget} --kv-transfer-config {transfer}"
    )


def _positive(**fields: int) -> None:
    for name, value in fields.items():
        if value <= 0:
            raise SizingError(f"{name} ({value}) must be positive")
