"""Faults in keys that confuse only what differs in one bit, one place or one part."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import REFERENCE, adapter, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.primitives import GENESIS, BlockHash, chain
from cachewitness_reference.vllm.request import Request

fault = partial(mutant, group="I", engines=REFERENCE)
tokens_confused = partial(fault, anomaly="stale-hit", checker="safety-law")
identity_confused = partial(fault, anomaly="cross-identity-hit", checker="identity")

BASE = 31
MODULUS = (1 << 61) - 1
CHAINED_BLOCKS = 3
NAME_FIELD = 24
"""Bytes of a field of fixed width, into which a name is put."""

Link = Callable[[Request, BlockHash, int, int], BlockHash]
"""Given a request, the digest before and tokens [start, stop): the digest of the prefix that ends
there."""


def rehashed(engine: Driver, link: Link) -> None:
    """Let requests be hashed block by block with another link."""

    def new_request(original: Any, *args: Any) -> Any:
        request = original(*args)

        def hash_new_blocks() -> None:
            size = request.hash_block_size
            hashes = request.block_hashes
            while (stop := (len(hashes) + 1) * size) <= request.num_tokens:
                hashes.append(link(request, hashes[-1] if hashes else GENESIS, stop - size, stop))

        request.block_hashes.clear()
        request._hash_new_blocks = hash_new_blocks
        hash_new_blocks()
        return request

    wrap(adapter(engine), "new_request", new_request)


def with_extra_keys(
    engine: Driver, keys: Callable[[Request, int, int], tuple[object, ...] | None]
) -> None:
    """Let what tells equal tokens apart be other than it is."""
    rehashed(
        engine,
        lambda request, parent, start, stop: chain(
            parent, request.all_token_ids[start:stop], keys(request, start, stop)
        ),
    )


@tokens_confused(
    name="tokens-hashed-in-16-bits", mirrors="LMCache/LMCache#4086 (16 bits of what is hashed)"
)
def tokens_hashed_in_16_bits(engine: Driver) -> None:
    """Tokens are packed into 16 bits before they are hashed, although a vocabulary is larger."""

    def link(request: Request, parent: BlockHash, start: int, stop: int) -> BlockHash:
        packed = array(
            "H", (token & 0xFFFF for token in request.all_token_ids[start:stop])
        ).tobytes()
        extra = request.extra_keys(start, stop)
        return BlockHash(sha256(parent + packed + repr(extra).encode()).digest())

    rehashed(engine, link)


@tokens_confused(name="polynomial-instead-of-a-digest", mirrors="NVIDIA/Megatron-LM#4158")
def polynomial_instead_of_a_digest(engine: Driver) -> None:
    """A block is hashed as a polynomial of its tokens, so two tokens that change together leave it
    as it was.

    Sum the tokens times powers of 31: one token more by 31 and the next less by 1 is the same sum.
    """

    def link(request: Request, parent: BlockHash, start: int, stop: int) -> BlockHash:
        total = sum(
            token * BASE**power for power, token in enumerate(request.all_token_ids[start:stop])
        )
        extra = request.extra_keys(start, stop)
        return BlockHash(
            sha256(parent + (total % MODULUS).to_bytes(8, "big") + repr(extra).encode()).digest()
        )

    rehashed(engine, link)


@tokens_confused(
    name="last-token-of-a-block-unhashed",
    mirrors="sgl-project/sglang#34870 (keys one shorter than the tokens)",
)
def last_token_of_a_block_unhashed(engine: Driver) -> None:
    """The last token of each block is not part of its key.

    Hash pairs of a token and the next one, of which a block has one fewer than tokens.
    """

    def link(request: Request, parent: BlockHash, start: int, stop: int) -> BlockHash:
        tokens = (
            request.all_token_ids[start : stop - 1]
            if stop - start > 1
            else request.all_token_ids[start:stop]
        )
        return chain(parent, tokens, request.extra_keys(start, stop))

    rehashed(engine, link)


@tokens_confused(name="chain-begins-anew", mirrors="vllm-project/vllm#12621")
def chain_begins_anew(engine: Driver) -> None:
    """Behind three blocks the hash of a block does not cover the blocks before it.

    Begin the chain of hashes anew after every third block.
    """

    def link(request: Request, parent: BlockHash, start: int, stop: int) -> BlockHash:
        begins = start // request.hash_block_size % CHAINED_BLOCKS == 0
        return chain(
            GENESIS if begins else parent,
            request.all_token_ids[start:stop],
            request.extra_keys(start, stop),
        )

    rehashed(engine, link)


@identity_confused(name="parts-of-identity-joined", mirrors="vllm-project/vllm#44701")
def parts_of_identity_joined(engine: Driver) -> None:
    """Adapter and salt are written behind one another without a separator, so other pairs make
    the same text.
    """

    def keys(request: Request, start: int, stop: int) -> tuple[object, ...] | None:
        images = [
            key
            for key in request.extra_keys(start, stop) or ()
            if isinstance(key, tuple) and key[0] == "mm"
        ]
        name = request.adapter + request.cache_salt
        return (
            ((name, *images) if name or images else None) if start == 0 else tuple(images) or None
        )

    with_extra_keys(engine, keys)


@identity_confused(name="adapter-folded-into-salt", mirrors="vllm-project/vllm#44701")
def adapter_folded_into_salt(engine: Driver) -> None:
    """A request without a salt takes its adapter's name for one, and an adapter beside a salt is
    forgotten.
    """

    def new_request(original: Any, op: Any, tokens: Any) -> Any:
        return original(msgspec.structs.replace(op, salt=op.salt or op.adapter, adapter=""), tokens)

    wrap(adapter(engine), "new_request", new_request)


@identity_confused(
    name="salt-cut-to-a-field", mirrors="vllm-project/vllm#53495 (salts that do not part tenants)"
)
def salt_cut_to_a_field(engine: Driver) -> None:
    """Salts are put into a field of 24 bytes, so tenants whose names begin alike share keys."""

    def new_request(original: Any, op: Any, tokens: Any) -> Any:
        field = op.salt.encode()[:NAME_FIELD].ljust(NAME_FIELD, b" ") if op.salt else b""
        return original(msgspec.structs.replace(op, salt=field.decode(errors="replace")), tokens)

    wrap(adapter(engine), "new_request", new_request)


@identity_confused(name="image-without-its-place", mirrors="vllm-project/vllm#36622, #20261")
def image_without_its_place(engine: Driver) -> None:
    """A block's key names the images in it and not where they lie."""

    def keys(request: Request, start: int, stop: int) -> tuple[object, ...] | None:
        found = request.extra_keys(start, stop) or ()
        return (
            tuple(key[:2] if isinstance(key, tuple) and key[0] == "mm" else key for key in found)
            or None
        )

    with_extra_keys(engine, keys)


@identity_confused(name="first-image-of-a-block-alone", mirrors="vllm-project/vllm#36622")
def first_image_of_a_block_alone(engine: Driver) -> None:
    """Of several images in one block the first alone is part of its key."""

    def keys(request: Request, start: int, stop: int) -> tuple[object, ...] | None:
        found = []
        images = 0
        for key in request.extra_keys(start, stop) or ():
            images += isinstance(key, tuple) and key[0] == "mm"
            if images < 2 or not (isinstance(key, tuple) and key[0] == "mm"):
                found.append(key)
        return tuple(found) or None

    with_extra_keys(engine, keys)


MUTANTS = declared(globals())
