"""The bugs that LMCache's vectors hunt."""

from __future__ import annotations

from harness.vectors.form import Flag

FLAGS: dict[str, Flag] = {
    "block-size": Flag("the unified block is one kernel block too small for a state, or too large"),
    "step-size": Flag("steps that pass over a block boundary, or never reach one, are accepted"),
    "chunk-size": Flag("a chunk ends where some group has no block end"),
    "group-kinds": Flag("a group that cannot be moved, or has no reusable states, is accepted"),
    "window-chunks": Flag("a window is rounded down in chunks, or a state is taken for more than the last one"),
    "object-groups": Flag("groups that need different chunks are stored and looked up as one object"),
    "not-monotone": Flag("the look-up stops at the first length that is not servable, though a longer one is"),
    "hole": Flag("a missing chunk inside a window is passed over"),
    "group-fold": Flag("a length that one group cannot serve is served", "LMCache/LMCache#2845"),
    "last-token": Flag("a state after the last token is resumed one token earlier", "LMCache/LMCache 0.5.4"),
    "partial-chunk": Flag("a chunk that is not full is stored, or served"),
    "retain": Flag("a hit locks, or copies, less than it reads, or more"),
    "tier": Flag("what comes back is not what was stored", "LMCache/LMCache#4247"),
    "vacuous": Flag("a second run is served by the engine's own cache, and nobody notices"),
    "stale": Flag("content of before a reset, or of other weights, is served"),
    "identity": Flag("content of another salt, adapter or image is served"),
    "lost-work": Flag("a preempted request is loaded to where it was, and not to what is there"),
}
