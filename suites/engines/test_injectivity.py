"""Engines are asked for their keys directly: what differs in one place or part has another key,
what is equal the same.

A history shows a collision only if somebody hits it. Here requests are submitted and nobody runs,
so thousands of near misses are compared in seconds, on every engine of this package that shows its
keys. Seeded faults show that the probe sees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest

from cachewitness.core.trace_format import GroupSpec, Layout, Media, Submit, TraceHeader, Vocabulary
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse
from cachewitness.workloads.near_misses import SentPrompt, near_miss
from cachewitness.workloads.source import Seeded
from suites.support.real_vllm import SOURCE, needs_vllm
from suites.support.sampled import fewer

BLOCK = 8
TEXT = SentPrompt("A:16 B[3]:16", "one", "tuned")
SALTED = SentPrompt("A:16 B[3]:16", "one")
TENANT = SentPrompt("A:16 B[3]:16", "tenant-of-a-name-longer-than-a-field-a")
PICTURES = SentPrompt(
    "A:16 B[3]:16", "", "", (Media(1, 2, "cat-2"), Media(4, 2, "dog-2"), Media(9, 3, "owl-3"))
)
GALLERY = [
    SentPrompt(PICTURES.prompt, media=(Media(2, 4, f"picture-{number}"),))
    for number in range(fewer(2000, 1000))
]
FAMILIES = (TEXT, SALTED, TENANT, PICTURES)
FULL = Layout("keys", [GroupSpec("full", BLOCK)])
WINDOWED = Layout("keys", [GroupSpec("full", BLOCK), GroupSpec("sliding", BLOCK, window=2 * BLOCK)])


def _ends(tokens: int) -> range:
    """Return where the blocks of a prompt end, in tokens."""
    return range(BLOCK, tokens + 1, BLOCK)


def _of_vllm(adapter: Any, r: str) -> list[Hashable]:
    return list(adapter.placed[r].request.block_hashes)


def _of_lmcache(adapter: Any, r: str) -> list[Hashable]:
    connector = adapter.connector.lmcache
    adapter.connector._admit(adapter.scheduler.requests[r])
    session = connector.server._hashed(r, connector.trackers[r].token_ids)
    return [connector.server._key(session, chunk, 0, 0) for chunk in range(len(session.hashes))]


def _of_openvino(adapter: Any, r: str) -> list[Hashable]:
    (sequence,) = adapter.scheduler.groups[r].sequences
    return [sequence.boundary_hash(end // BLOCK) for end in _ends(len(sequence.tokens))]


def _of_furiosa(adapter: Any, r: str) -> list[Hashable]:
    request = adapter.scheduler.requests[r]
    return [(request.identity, tuple(request.symbols[:end])) for end in _ends(len(request.symbols))]


def _of_edge(adapter: Any, r: str) -> list[Hashable]:
    request = adapter.runtime.requests[r]
    return [request.key_at(end) for end in _ends(len(request.tokens))]


Reader = Callable[[Any, str], list[Hashable]]
"""Given an adapter and a request: the key of its first block, of its first two, and so on."""
READERS: dict[str, tuple[Reader, TraceHeader]] = {
    "vllm": (_of_vllm, TraceHeader(name="keys", layout=FULL, pages=40, policy="vllm")),
    "lmcache": (
        _of_lmcache,
        TraceHeader(
            name="keys",
            layout=FULL,
            pages=40,
            level="scheduler",
            policy="lmcache",
            options={"tier_pages": 40},
        ),
    ),
    "openvino_genai": (
        _of_openvino,
        TraceHeader(name="keys", layout=FULL, pages=40, policy="openvino_genai"),
    ),
    "furiosa": (
        _of_furiosa,
        TraceHeader(name="keys", layout=WINDOWED, pages=2000, policy="furiosa"),
    ),
    "tensorrt_edge": (
        _of_edge,
        TraceHeader(name="keys", layout=FULL, pages=40, policy="tensorrt_edge"),
    ),
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
    "lmcache": (
        "lmcache-image-ids-of-16-bits",
        "lmcache-adapter-joined-to-salt",
        "lmcache-tokens-of-two-bytes",
    ),
    "openvino_genai": ("openvino-image-without-its-place", "openvino-salt-joined-to-adapter"),
    "furiosa": ("furiosa-root-of-joined-names", "furiosa-image-hash-of-8-bits"),
    "tensorrt_edge": (
        "edge-weights-folded-into-salt",
        "edge-image-without-its-place",
        "edge-last-image-left-out",
    ),
}


def _family(sent: SentPrompt) -> list[SentPrompt]:
    """Return what was said and hundreds of near misses; of a prompt with images, those of the
    images alone.
    """
    edges = [] if sent.media else [BLOCK, 2 * BLOCK, 3 * BLOCK]
    return list(
        dict.fromkeys(
            [
                sent,
                *(
                    near_miss(Seeded(seed), sent, edges, f"x{seed}")
                    for seed in range(fewer(400, 160))
                ),
            ]
        )
    )


def _prefix(sent: SentPrompt, tokens: Sequence[int], end: int) -> Hashable:
    """Return what the first tokens of a prompt are made of; an image belongs to them from its
    first token on.
    """
    return (
        sent.salt,
        sent.adapter,
        tuple(tokens[:end]),
        tuple((item.at, item.hash) for item in sent.media if item.at < end),
    )


def _collisions(
    policy: str, engine: str, family: Iterable[SentPrompt]
) -> tuple[list[tuple[SentPrompt, SentPrompt]], list[SentPrompt]]:
    """Return pairs of which some prefixes differ and share a key, and what has another key when
    it is said again.
    """
    read, header = READERS[policy]
    driver: Any = parse(engine).open(header)
    known: dict[Hashable, tuple[Hashable, SentPrompt]] = {}
    pairs = []
    unequal = []
    words = Vocabulary()
    for index, sent in enumerate(family):
        keys = []
        for r in (f"r{index}", f"s{index}"):
            driver.apply(
                Submit(
                    r=r,
                    prompt=sent.prompt,
                    salt=sent.salt,
                    adapter=sent.adapter,
                    media=list(sent.media),
                )
            )
            keys.append(read(driver.adapter, r))
        unequal += [sent] if keys[0] != keys[1] else []
        tokens = words.tokens(sent.prompt)
        assert len(keys[0]) in (len(tokens) // BLOCK, (len(tokens) - 1) // BLOCK) and keys[0]
        for end, key in zip(_ends(len(tokens)), keys[0], strict=False):
            content = _prefix(sent, tokens, end)
            before, first = known.setdefault(key, (content, sent))
            pairs += [(first, sent)] if before != content else []
    return pairs, unequal


@pytest.mark.parametrize("policy", READERS)
def test_near_misses_have_keys_of_their_own_and_equals_the_same(policy: str) -> None:
    """Over three families of near misses, and two thousand images of one length."""
    for family in (*map(_family, FAMILIES), GALLERY):
        assert len(family) > 5
        assert _collisions(policy, "reference", family) == ([], [])


@needs_vllm
@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_a_real_vllm_has_such_keys_too() -> None:
    """It hashes its own requests; before 0.31 a salt and an adapter of one name make one key of
    the first block.
    """
    _, header = READERS["vllm"]
    engine = f"vllm:source={SOURCE}"
    release = parse(engine).open(header).describe().engine_version
    found = [_collisions("vllm", engine, family) for family in (*map(_family, FAMILIES), GALLERY)]
    pairs = [pair for of_family, _ in found for pair in of_family]
    assert [sent for _, unequal in found for sent in unequal] == []
    assert bool(pairs) == ([int(part) for part in release.split(".")[:2]] < [0, 31])
    assert all({one.salt, one.adapter} == {other.salt, other.adapter} for one, other in pairs)


@pytest.mark.parametrize(
    ("policy", "name"), [(p, name) for p, names in SEEN.items() for name in names]
)
def test_the_probe_sees_seeded_faults(policy: str, name: str) -> None:
    assert name in all_mutants()
    families = [*map(_family, FAMILIES), GALLERY]
    found = [
        pair
        for family in families
        for pair in _collisions(policy, f"reference:mutant={name}", family)[0]
    ]
    assert found
