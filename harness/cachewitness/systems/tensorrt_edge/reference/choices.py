"""What TensorRT-Edge-LLM's policy leaves to an engine: the place of a capture, and which capture
makes room.

Rows are no choice: the batch is dense, and the option `survivors` says how it stays so.
"""

from __future__ import annotations

from typing import Any

from cachewitness.engines.choices import Choices
from cachewitness_reference.tensorrt_edge.system_prompts import (
    PlaceId,
    SavedPrompt,
    SystemPromptKey,
)


def steer(engine: Any, choices: Choices) -> None:
    """Have the free choices of a reference engine made by somebody else; the first group's
    places speak for all.
    """
    prompts = engine.adapter.runtime.prompts
    aside = [group for group in engine.header.groups if group.source_group >= 0]
    if not aside:
        return
    own = prompts.reserve
    pool = aside[0].pool

    def reserve(key: SystemPromptKey) -> SavedPrompt | None:
        if key not in prompts.saved:
            unused = {saved.place: of for of, saved in prompts.saved.items() if not saved.users}
            if prompts._free:
                place = PlaceId(choices.free(pool, prompts._free[::-1]))
                prompts._free.remove(place)
                prompts._free.append(place)
            elif unused and (victim := choices.victim(pool, unused.keys())) is not None:
                prompts.saved.move_to_end(unused[PlaceId(victim)], last=False)
        saved: SavedPrompt | None = own(key)
        return saved

    prompts.reserve = reserve
