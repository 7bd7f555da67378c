"""What a hit needs: of each group the chunks that a look-up locks and a retrieve reads; the others may go.

`stop` is the length of the hit in chunks, `config.chunk_size` in tokens; columns are chunks.
"""

from __future__ import annotations

from harness.policies.lmcache.vectors.lookup import CHUNK, FULL, STATE, window
from harness.vectors.case import Case
from harness.vectors.form import RetentionInput


def cases() -> list[Case]:
    """Return every question."""
    asked = [("full", FULL, hit) for hit in (0, 1, 6)] + [("state", STATE, hit) for hit in (0, 1, 6)]
    asked += [(f"window-{w}", window(w), 6) for w in (16, 17, 32, 33, 95, 96, 97)]
    asked += [("window-48", window(48), hit) for hit in (2, 3, 4)]
    return [
        Case(
            f"retention/{name}-{hit}",
            f"a hit of {hit} chunks: what the group {name} needs of it",
            ["retain", "window-chunks"],
            RetentionInput([FULL, group], 1, 0, hit, config={"chunk_size": CHUNK}),
        )
        for name, group, hit in asked
    ]
