"""The bugs that Furiosa-LLM's vectors hunt."""

from __future__ import annotations

from harness.vectors.form import Flag

FLAGS: dict[str, Flag] = {
    "split": Flag("the two pools are larger than the memory, or one runs out long before the other"),
    "window-straddles": Flag("a window that begins inside a block is given a block too few"),
    "expected-length": Flag("EXPECTED_AVERAGE_SEQ_LENGTH is not read, or read as something else"),
    "bad-config": Flag("a value that is no positive integer is accepted"),
    "overflow": Flag("a number beyond 63 bits wraps around"),
    "token-match": Flag("a match is rounded to blocks, or goes a token too far"),
    "last-token": Flag("a prompt that is stored whole leaves nothing to compute"),
    "window-edge": Flag("the window behind a hit is counted with one token too few, or one block too many"),
    "hole": Flag("a match whose window has a hole is reused, or not reused where it is valid"),
    "released-early": Flag("a sliding block is given back while the next query still reads it"),
    "released-late": Flag("a sliding block that no query reads any more is kept"),
    "shared-write": Flag("a request writes into a block behind which somebody else's tokens lie"),
    "stale": Flag("content of before a reset, or of other weights, is reused"),
    "identity": Flag("content of another salt, adapter or image is reused"),
    "counts": Flag("blocks are lost, or given back twice"),
    "lost-work": Flag("a preempted request goes on from what it no longer holds"),
    "active-evicted": Flag("an entry that somebody's sequence runs through is evicted"),
}
