"""Which outputs of an encoder a worker keeps, without vLLM: a chunk over an image needs its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.systems.vllm.encoder import EncoderOutputs, make_room


def image(at: int, length: int, name: str) -> SimpleNamespace:
    where = SimpleNamespace(offset=at, length=length)
    return SimpleNamespace(mm_position=where, identifier=name)


def step(
    counts: dict[str, int],
    new: dict[str, list[SimpleNamespace]] | None = None,
    encode: dict[str, list[int]] | None = None,
    gone: tuple[str, ...] = (),
    over: tuple[str, ...] = (),
) -> Any:
    """Return what a scheduler tells its worker."""
    came = [SimpleNamespace(req_id=r, mm_features=images) for r, images in (new or {}).items()]
    return SimpleNamespace(
        free_encoder_mm_hashes=gone,
        finished_req_ids=over,
        scheduled_new_reqs=came,
        scheduled_encoder_inputs=encode or {},
        num_scheduled_tokens=counts,
    )


def test_an_image_is_read_as_long_as_it_is_kept() -> None:
    outputs = EncoderOutputs()
    images = [image(4, 8, "cat"), image(20, 4, "dog")]
    outputs.update(step({"a": 6}, {"a": images}, {"a": [0]}), {"a": 0})
    outputs.update(step({"a": 14}), {"a": 6})  # up to the second image
    outputs.update(step({"a": 8}, gone=("cat",), encode={"a": [1]}), {"a": 20})


def test_another_request_reads_the_same_image_without_an_encoding_of_its_own() -> None:
    outputs = EncoderOutputs()
    outputs.update(step({"a": 12}, {"a": [image(4, 8, "cat")]}, {"a": [0]}), {"a": 0})
    outputs.update(step({"b": 12}, {"b": [image(0, 8, "cat")]}, over=("a",)), {"b": 0})


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (11, 12), (5, 6)])
def test_a_chunk_over_an_image_that_is_not_kept_is_a_crash(start: int, stop: int) -> None:
    outputs = EncoderOutputs()
    with pytest.raises(EngineFailure, match=r"over an image at 4, of which its worker has no"):
        outputs.update(step({"a": stop - start}, {"a": [image(4, 8, "cat")]}), {"a": start})


def test_an_image_that_was_let_go_of_too_early_is_missed() -> None:
    outputs = EncoderOutputs()
    outputs.update(step({"a": 6}, {"a": [image(4, 8, "cat")]}, {"a": [0]}), {"a": 0})
    with pytest.raises(EngineFailure):
        outputs.update(step({"a": 6}, gone=("cat",)), {"a": 6})


def test_the_longest_image_has_room_and_a_shorter_one_takes_none_away() -> None:
    cache = SimpleNamespace(cache_size=8, num_free_slots=3, num_freeable_slots=5)
    scheduler = SimpleNamespace(max_num_encoder_input_tokens=8, encoder_cache_manager=cache)
    make_room(scheduler, 4)
    assert scheduler.max_num_encoder_input_tokens == cache.cache_size == 8
    make_room(scheduler, 10)
    assert scheduler.max_num_encoder_input_tokens == cache.cache_size == 10
    assert (cache.num_free_slots, cache.num_freeable_slots) == (5, 7)
