"""Faults in the names of LMCache's objects that confuse only what differs in one place or part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness.systems.lmcache.reference.planting import (
    connector_of,
    name_objects,
    where_there_is_a_store,
)

fault = partial(mutant, engines=("lmcache",), level="scheduler", group="I")
SIXTEEN_BITS = 0xFFFF
MEDIA_IDS = 1 << 62


@fault(
    name="lmcache-image-ids-of-16-bits",
    mirrors="LMCache/LMCache#4086",
    anomaly="cross-identity-hit",
    checker="identity",
)
@where_there_is_a_store
def image_ids_of_16_bits(engine: Any) -> None:
    """An image's name is cut to 16 bits, and the one id is repeated over all of its
    placeholders.
    """

    def on_new_request(
        original: Any, request_id: str, prompt: Sequence[int], *, media: Any = (), **identity: str
    ) -> None:
        ids = list(prompt)
        for item in media:
            digest = sha256(item.identifier.encode()).digest()
            name = int.from_bytes(digest[:2], "big")
            for at in range(item.offset, min(item.offset + item.length, len(ids))):
                ids[at] = MEDIA_IDS | name
        original(request_id, ids, **identity)

    wrap(connector_of(engine), "on_new_request", on_new_request)


@fault(
    name="lmcache-adapter-joined-to-salt",
    mirrors="vllm-project/vllm#44701, #54342",
    anomaly="cross-identity-hit",
    checker="identity",
)
@where_there_is_a_store
def adapter_joined_to_salt(engine: Any) -> None:
    """A key's one field for a name has the salt and the adapter behind one another, without a
    separator.
    """
    name_objects(engine, lambda salt, adapter, kernels: (salt + adapter, "", kernels))


@fault(
    name="lmcache-tokens-of-two-bytes",
    mirrors="LMCache/LMCache#4086 (16 bits of what is hashed)",
    anomaly="stale-hit",
    checker="safety-law",
)
@where_there_is_a_store
def tokens_of_two_bytes(engine: Any) -> None:
    """Tokens are packed into two bytes each before chunks are hashed; ids of images are not."""

    def extend(original: Any, hashes: Any, tokens: Sequence[int], adapter: str = "") -> None:
        original(
            hashes,
            [token if token >= MEDIA_IDS else token & SIXTEEN_BITS for token in tokens],
            adapter,
        )

    wrap(connector_of(engine).server.hasher, "extend", extend)


@fault(
    name="lmcache-kernel-block-left-out-of-objects",
    mirrors="LMCache/LMCache#4247 (pages of a kernel block that nothing names), #4467",
    anomaly="cross-identity-hit",
    checker="identity",
)
@where_there_is_a_store
def kernel_block_left_out_of_objects(engine: Any) -> None:
    """A key names the attention backend and not the size of its kernel's block, by which it lays
    a page out.
    """
    name_objects(engine, lambda salt, adapter, kernels: (salt, adapter, kernels.partition(":")[0]))


MUTANTS = declared(globals())
