"""The encoder's outputs of images, as a worker of vLLM's keeps them: what its scheduler says is
encoded in a step is kept until it says that it may go.

A chunk that computes tokens of an image takes the encoder's output from there. vLLM's runner raises
where it is not kept. Of the runner itself nothing runs: its encoder needs a model.

Sources: vLLM 0.29.0 to 0.33.0, `v1/worker/gpu_model_runner.py`, `_update_states`,
`_gather_mm_embeddings`; `v1/core/encoder_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachewitness.core.engine_failure import EngineFailure


class EncoderOutputs:
    """Which images' outputs a worker keeps, by the images' hashes."""

    def __init__(self) -> None:
        self._images: dict[str, list[Any]] = {}
        """By request: its images, as the scheduler told the worker of them."""
        self._there: set[str] = set()

    def update(self, output: Any, starts: Mapping[str, int]) -> None:
        """Take in what a step tells the worker. `starts`: the position from which each request
        computes.

        Raises EngineFailure for a chunk over an image that was never encoded, or was let go of.
        """
        self._there.difference_update(output.free_encoder_mm_hashes)
        for r in output.finished_req_ids:
            self._images.pop(r, None)
        for new in output.scheduled_new_reqs:
            self._images[new.req_id] = new.mm_features
        for r, numbers in output.scheduled_encoder_inputs.items():
            self._there.update(self._images[r][number].identifier for number in numbers)
        for r, count in output.num_scheduled_tokens.items():
            self._read(r, starts[r], starts[r] + count)

    def _read(self, r: str, start: int, stop: int) -> None:
        for image in self._images.get(r, ()):
            at = image.mm_position.offset
            end = at + image.mm_position.length
            if at < stop and start < end and image.identifier not in self._there:
                raise EngineFailure(
                    "engine-crashed",
                    f"had {r} compute tokens [{start}, {stop}) over an image at {at}, of which its"
                    " worker has no encoder output",
                )


def make_room(scheduler: Any, tokens: int) -> None:
    """Let a scheduler encode, and keep, an image of so many tokens: vLLM asks the model's processor
    for its longest one before it serves.
    """
    scheduler.max_num_encoder_input_tokens = max(scheduler.max_num_encoder_input_tokens, tokens)
    cache = scheduler.encoder_cache_manager
    more = tokens - cache.cache_size
    if more > 0:
        cache.cache_size += more
        cache.num_free_slots += more
        cache.num_freeable_slots += more
