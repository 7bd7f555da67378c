"""How many tokens of a prompt a step takes: what is offered, what is left, and what both pools have room for.

`config`: blocks that are free beside those that the request holds for its first `start` tokens (`kv_free`, `la_free`).
"""

from __future__ import annotations

from harness.policies.openvino_genai.vectors.lookup import GROUPS
from harness.vectors.case import Case
from harness.vectors.form import SplitInput


def cases() -> list[Case]:
    """Return every question."""
    return [
        *(
            _case(f"offered-{asked}", f"a prompt of 100, {asked} tokens offered, room for all", 0, asked, 100)
            for asked in (1, 31, 32, 33, 99, 100, 101, 256)
        ),
        *(
            _case(f"kv-{blocks}-blocks", f"{blocks} KV blocks are free: room for {32 * blocks} tokens", 0, 256, 100, kv=blocks)
            for blocks in (0, 1, 3, 4)
        ),
        *(
            _case(
                f"states-{blocks}-blocks",
                f"{blocks} intervals are free: room for {128 * blocks} tokens",
                0,
                512,
                300,
                la=blocks,
            )
            for blocks in (0, 1, 2, 3)
        ),
        _case("rest", "the rest of a prompt, in a block that it holds", 64, 256, 90, kv=1, la=1),
        _case("rest-beyond-kv", "the same with too few KV blocks left", 64, 256, 190, kv=1, la=2),
        _case("inside-a-block", "it stands inside its last block and no other is free", 40, 256, 190, kv=0, la=1),
    ]


def _case(name: str, comment: str, start: int, asked: int, prompt: int, kv: int = 8, la: int = 4) -> Case:
    question = SplitInput(start, asked, prompt, prompt, GROUPS, config={"kv_free": kv, "la_free": la})
    return Case(f"split/{name}", comment, ["room"], question)
