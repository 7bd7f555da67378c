"""Marks of near misses are seen in pairs of submits, and in nothing that differs in more."""

from __future__ import annotations

import pytest

from cachewitness.core.events import Submitted
from cachewitness.core.trace_format import Media
from cachewitness.sessions.fuzz import coverage_points
from cachewitness.sessions.fuzz.near_pairs import GALLERY, NearPairs

TOKENS = [*range(10, 22)]


def _submitted(**fields: object) -> Submitted:
    return Submitted(r="r", **{"tokens": TOKENS, **fields})  # type: ignore[arg-type]


def _changed(*places: int) -> list[int]:
    return [99 if at in places else token for at, token in enumerate(TOKENS)]


IMAGES = [Media(2, 2, "cat"), Media(6, 2, "dog")]
PAIRS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "salt like an adapter": ({"adapter": "x"}, {"salt": "x"}),
    "salt and adapter exchanged": ({"adapter": "x", "salt": "y"}, {"adapter": "y", "salt": "x"}),
    "names that join alike": ({"adapter": "x", "salt": "y"}, {"salt": "yx"}),
    "names in one bit": ({"salt": "tenant-a"}, {"salt": "tenant-b"}),
    "one token changed": ({}, {"tokens": _changed(5)}),
    "one token changed at a boundary": ({}, {"tokens": _changed(7)}),
    "two tokens changed": ({}, {"tokens": _changed(5, 6)}),
    "several images": ({}, {"media": [*IMAGES, Media(9, 1, "owl")]}),
    "image moved": ({"media": IMAGES}, {"media": [IMAGES[0], Media(7, 2, "dog")]}),
    "image exchanged": ({"media": IMAGES}, {"media": [IMAGES[0], Media(6, 2, "owl")]}),
}
MORE: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "salt like an adapter": ({"adapter": "x"}, {"salt": "y"}),
    "salt and adapter exchanged": ({"adapter": "x", "salt": "y"}, {"adapter": "y", "salt": "z"}),
    "names that join alike": ({"adapter": "x", "salt": "y"}, {"salt": "xz"}),
    "names in one bit": ({"salt": "tenant-a"}, {"salt": "client-b"}),
    "one token changed": ({}, {"tokens": _changed(5, 9)}),
    "one token changed at a boundary": ({}, {"tokens": _changed(6)}),
    "two tokens changed": ({}, {"tokens": _changed(5, 9)}),
    "several images": ({}, {"media": IMAGES}),
    "image moved": ({"media": IMAGES}, {"media": [IMAGES[0], Media(8, 2, "dog")]}),
    "image exchanged": ({"media": IMAGES}, {"media": [Media(2, 2, "owl"), Media(6, 2, "owl")]}),
}


@pytest.mark.parametrize("mark", PAIRS)
def test_a_pair_reaches_its_mark(mark: str) -> None:
    pairs = NearPairs([4])
    first, second = (list(pairs.marks(_submitted(**fields))) for fields in PAIRS[mark])
    assert mark not in first and mark in second and set(second) <= set(coverage_points.ALL)


@pytest.mark.parametrize("mark", MORE)
def test_a_pair_that_differs_in_more_does_not(mark: str) -> None:
    pairs = NearPairs([4])
    assert mark not in [
        found for fields in MORE[mark] for found in pairs.marks(_submitted(**fields))
    ]


def test_a_gallery_is_told_once() -> None:
    """When so many contents of one length were seen."""
    pairs = NearPairs([4])
    found = [
        list(pairs.marks(_submitted(media=[Media(0, 3, f"image-{n}")]))) for n in range(2 * GALLERY)
    ]
    assert sum("gallery" in one for one in found) == 1 and "gallery" in found[GALLERY - 1]
