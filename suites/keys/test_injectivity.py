"""Engines are asked for their keys directly: what differs in one place or part has another key, what is equal the same.

A history shows a collision only if somebody hits it. Here requests are submitted and nobody runs, so thousands of near misses
are compared in seconds, on every engine of this package that shows its keys. Seeded faults show that the probe sees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

from harness.engines.faults import all_mutants
from harness.engines.registry import parse
from harness.trace.format import GroupSpec, Layout, Media, Submit, TraceHeader, Vocabulary
from harness.trace.near_misses import Said, near_miss
from harness.trace.source import Seeded

BLOCK = 8
TEXT = Said("A:16 B[3]:16", "one", "tuned")
SALTED = Said("A:16 B[3]:16", "one")
TENANT = Said("A:16 B[3]:16", "tenant-of-a-name-longer-than-a-field-a")
PICTURES = Said("A:16 B[3]:16", "", "", (Media(1, 2, "cat-2"), Media(4, 2, "dog-2"), Media(9, 3, "owl-3")))
GALLERY = [Said(PICTURES.prompt, media=(Media(2, 4, f"picture-{number}"),)) for number in range(2000)]
FAMILIES = (TEXT, SALTED, TENANT, PICTURES)
FULL = Layout("keys", [GroupSpec("full", BLOCK)])
WINDOWED = Layout("keys", [GroupSpec("full", BLOCK), GroupSpec("sliding", BLOCK, window=2 * BLOCK)])


def _of_vllm(adapter: Any, r: str) -> Hashable:
    return tuple(adapter.placed[r].request.block_hashes)


def _of_lmcache(adapter: Any, r: str) -> Hashable:
    connector = adapter.connector.lmcache
    adapter.connector._admit(adapter.scheduler.requests[r])
    session = connector.server._hashed(r, connector.trackers[r].token_ids)
    return tuple(connector.server._key(session, chunk, 0, 0) for chunk in range(len(session.hashes)))


def _of_openvino(adapter: Any, r: str) -> Hashable:
    (sequence,) = adapter.scheduler.groups[r].sequences
    return tuple(sequence.boundary_hash(blocks) for blocks in range(1, len(sequence.tokens) // BLOCK + 1))


def _of_furiosa(adapter: Any, r: str) -> Hashable:
    request = adapter.scheduler.requests[r]
    return request.identity, tuple(request.symbols)


def _of_edge(adapter: Any, r: str) -> Hashable:
    request = adapter.runtime.requests[r]
    return request.key_at(len(request.tokens))


Reader = Callable[[Any, str], Hashable]
READERS: dict[str, tuple[Reader, TraceHeader]] = {
    "vllm": (_of_vllm, TraceHeader(name="keys", layout=FULL, pages=40, policy="vllm")),
    "lmcache": (
        _of_lmcache,
        TraceHeader(name="keys", layout=FULL, pages=40, height="scheduler", policy="lmcache", options={"tier_pages": 40}),
    ),
    "openvino_genai": (_of_openvino, TraceHeader(name="keys", layout=FULL, pages=40, policy="openvino_genai")),
    "furiosa": (_of_furiosa, TraceHeader(name="keys", layout=WINDOWED, pages=2000, policy="furiosa")),
    "tensorrt_edge": (_of_edge, TraceHeader(name="keys", layout=FULL, pages=40, policy="tensorrt_edge")),
}
SEEN = {
    "vllm": (
        "salt-left-out",
        "image-left-out",
        "adapter-left-out",
        "image-at-the-end-left-out",
        "tokens-hashed-in-16-bits",
        "polynomial-instead-of-a-digest",
        "last-token-of-a-block-unhashed",
        "parts-of-identity-joined",
        "adapter-folded-into-salt",
        "salt-cut-to-a-field",
        "image-without-its-place",
        "first-image-of-a-block-alone",
    ),
    "lmcache": ("lmcache-image-ids-of-16-bits", "lmcache-adapter-joined-to-salt", "lmcache-tokens-of-two-bytes"),
    "openvino_genai": ("openvino-image-without-its-place", "openvino-salt-joined-to-adapter"),
    "furiosa": ("furiosa-root-of-joined-names", "furiosa-image-hash-of-8-bits"),
    "tensorrt_edge": ("edge-weights-folded-into-salt", "edge-image-without-its-place", "edge-last-image-left-out"),
}


def _family(said: Said) -> list[Said]:
    """Return what was said and hundreds of near misses; of a prompt with images, those of the images alone."""
    edges = [] if said.media else [BLOCK, 2 * BLOCK, 3 * BLOCK]
    return list(dict.fromkeys([said, *(near_miss(Seeded(seed), said, edges, f"x{seed}") for seed in range(400))]))


def _collisions(policy: str, engine: str, family: Iterable[Said]) -> tuple[list[tuple[Said, Said]], list[Said]]:
    """Return pairs that differ and share a key, and what has another key when it is said again."""
    read, header = READERS[policy]
    driver: Any = parse(engine).open(header)
    known: dict[Hashable, Said] = {}
    content: dict[Hashable, Said] = {}
    pairs, unequal = [], []
    words = Vocabulary()
    for index, said in enumerate(family):
        same = (tuple(words.tokens(said.prompt)), said.salt, said.adapter, said.media)
        if content.setdefault(same, said) is not said:
            continue
        keys = []
        for r in (f"r{index}", f"s{index}"):
            driver.apply(Submit(r=r, prompt=said.prompt, salt=said.salt, adapter=said.adapter, media=list(said.media)))
            keys.append(read(driver.adapter, r))
        unequal += [said] if keys[0] != keys[1] else []
        if known.setdefault(keys[0], said) is not said:
            pairs.append((known[keys[0]], said))
    return pairs, unequal


@pytest.mark.parametrize("policy", READERS)
def test_near_misses_have_keys_of_their_own_and_equals_the_same(policy: str) -> None:
    """Over three families of near misses, and two thousand images of one length."""
    for family in (*map(_family, FAMILIES), GALLERY):
        assert len(family) > 5
        assert _collisions(policy, "reference", family) == ([], [])


@pytest.mark.parametrize(("policy", "name"), [(p, name) for p, names in SEEN.items() for name in names])
def test_the_probe_sees_seeded_faults(policy: str, name: str) -> None:
    assert name in all_mutants()
    families = [*map(_family, FAMILIES), GALLERY]
    found = [pair for family in families for pair in _collisions(policy, f"reference:mutant={name}", family)[0]]
    assert found
