"""At which length a captured system prompt is reused. It is found whole or not at all.

`cached`: the lengths at which this very sequence was captured. `config.system_prompt`: how many of the request's tokens are a
system prompt; `replay_last_token`: everybody computes the last token of its system prompt again.
"""

from __future__ import annotations

from typing import Any

from harness.trace.format import GroupSpec
from harness.vectors.case import Case
from harness.vectors.form import LookupInput

ROW = 256
GROUPS = [GroupSpec("full", ROW), GroupSpec("recurrent", ROW)]
"""A row of the batch is one block, as long as the longest sequence."""


def cases() -> list[Case]:
    """Return every question."""
    return [
        _case("aligned", "a prompt of 40 was captured, the request goes on", "state-position", [40], 40, 50),
        _case("one-more", "a single token behind it", "state-position whole-input", [40], 40, 41),
        _case("whole-input", "the system prompt is all there is, captured at its end alone", "whole-input", [40], 40, 40),
        _case("whole-input-replayed", "and captured one token before", "whole-input state-position", [39, 40], 40, 40),
        _case("shorter-capture", "a shorter one was captured", "partial-hit", [39], 40, 50),
        _case("longer-capture", "a longer one was captured", "partial-hit", [41], 40, 50),
        _case("among-others", "captured among others of the same beginning", "partial-hit", [16, 40, 48], 40, 60),
        _case("nothing-captured", "nothing was captured", "partial-hit", [], 40, 50),
        _case("no-system-prompt", "the request has none", "partial-hit", [40], 0, 50),
        _case("one-token", "a system prompt of one token", "state-position", [1], 1, 5),
        _case("one-token-whole", "and nothing behind it", "whole-input", [1], 1, 1),
        _case("full-row", "a prompt as long as a row", "state-position", [255], 255, ROW),
        _case(
            "replay",
            "with the last token computed again: captured at 39",
            "state-position",
            [39],
            40,
            50,
            replay_last_token=True,
        ),
        _case("replay-not-at-40", "a capture at 40 is then of no use", "state-position", [40], 40, 50, replay_last_token=True),
        _case(
            "replay-one-token",
            "a system prompt of one token leaves nothing to restore",
            "whole-input",
            [1],
            1,
            5,
            replay_last_token=True,
        ),
    ]


def _case(name: str, comment: str, flags: str, captured: list[int], system: int, tokens: int, **config: Any) -> Case:
    asked = LookupInput(GROUPS, tokens, [captured, captured], {"system_prompt": system, **config})
    return Case(f"lookup/{name}", comment, flags.split(), asked)
