"""The bugs that TensorRT-Edge-LLM's vectors hunt."""

from __future__ import annotations

from harness.vectors.form import Flag

_READ = "TensorRT-Edge-LLM 0.7.1, read in its sources"

FLAGS: dict[str, Flag] = {
    "overwritten": Flag(
        "a row is overwritten before it was read: rows are copied one by one and not as one permutation", _READ
    ),
    "torn": Flag("KV, lengths and states move apart", _READ),
    "unchecked-mapping": Flag("a mapping that is no permutation of survivors is carried out, in part", _READ),
    "empty-batch": Flag("a batch from which everybody is gone, or nobody, is not handled"),
    "stale-length": Flag("a row that moved keeps the length of who was there before"),
    "routing": Flag("an absolute layer index is used where a local one is meant, or the other way round"),
    "head-dims": Flag("layers of several head dims are run with one of them"),
    "bad-config": Flag("counts of layers, or sizes, that do not agree are accepted"),
    "state-position": Flag("a state of N tokens is paired with a KV length of N − 1: a token is applied twice", _READ),
    "whole-input": Flag("a system prompt that is the whole input leaves nothing to compute"),
    "partial-hit": Flag("a longer or shorter capture is taken for the one that is asked for"),
    "identity": Flag("content of another salt, LoRA or image is restored"),
    "stale": Flag("content of before a reset, or of other weights, is restored"),
    "lost-work": Flag("a preempted request goes on from a row that it no longer has"),
    "rows": Flag("a row is given to two requests, or to none"),
}
