"""Damage of OpenVINO GenAI's own cache, for `benchmarks.damage_costs`: the blocks that a request
resumes from are changed in the memory of its process, or the pool keeps them in another type.

A block has 32 tokens, of Gemma 3 270M one head of keys or values, in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import parse
from cachewitness.parity.likelihood.asking import Subject
from cachewitness.parity.likelihood.of_engine import EngineServed
from cachewitness.systems.openvino_genai import pipeline
from cachewitness.systems.openvino_genai.settings import KV_BLOCK
from cachewitness_faults.openvino_genai.block_faults import (
    another_prompts,
    last_ones_stale,
    some_lost,
)
from cachewitness_faults.openvino_genai.blocks import Damage, resumed_from

WINDOW = 512
"""Tokens of a window."""
KEPT_IN = "KV_CACHE_PRECISION"
TYPES = {"keys and values in f16": "f16", "keys and values in u8 (its default)": "u8"}
"""The types of keys and values, each compared with float32."""


def _token(tensor: Any, own: Sequence[int], other: Sequence[int]) -> None:
    bytes_of_one = tensor.shape[1] // KV_BLOCK
    tensor[own[-1], -bytes_of_one:] = 0


def _block(tensor: Any, own: Sequence[int], other: Sequence[int]) -> None:
    another_prompts(tensor, own[-1:], other[-1:])


def _window(tensor: Any, own: Sequence[int], other: Sequence[int]) -> None:
    last = -WINDOW // KV_BLOCK
    another_prompts(tensor, own[last:], other[last:])


DAMAGES: Mapping[str, Damage] = {
    "another prefix": another_prompts,
    "two blocks of the window lost": some_lost,
    "the last two blocks, two blocks stale": last_ones_stale,
    "a block of 32 tokens of another prefix": _block,
    "one token lost": _token,
    "the last 512 tokens of another prefix": _window,
}


class OpenVino:
    """The engine over an exported folder, opened anew for each damage; one at a time is in this
    process, since that is where its blocks are looked for.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._spec = parse(f"openvino-genai:checkpoint={checkpoint}")
        level = self._spec.kind.answers_level
        assert level is not None
        assert level.texts is not None
        self._uncached = level.uncached
        self._configuration = level.texts.configuration
        self._here: EngineServed | None = None
        self._tokens = level.texts.tokens(self._spec.options)

    def cold(self) -> Subject:
        """Return the engine without its cache."""
        spec = self._spec.variant(self._uncached).isolated(Isolation())
        return EngineServed(spec, self._configuration, self._tokens)

    def opened(self, damage: str) -> Subject:
        """Return the engine with one damage, of none if it is none of these."""

        def open_damaged(header: Any, options: Mapping[str, str]) -> Any:
            engine: Any = self._typed(TYPES.get(damage, ""), header, options)
            if damage in DAMAGES:
                resumed_from(engine, DAMAGES[damage])
            return engine

        if self._here is not None:
            self._here.close()
        kind: Any = replace(self._spec.kind, open=open_damaged)
        spec = replace(self._spec, kind=kind)
        self._here = EngineServed(spec, self._configuration, self._tokens)
        return self._here

    def _typed(self, kept_in: str, header: Any, options: Mapping[str, str]) -> Any:
        usual = pipeline.FLOAT32[KEPT_IN]
        pipeline.FLOAT32[KEPT_IN] = kept_in or usual
        try:
            return self._spec.kind.open(header, options)
        finally:
            pipeline.FLOAT32[KEPT_IN] = usual


NAMES: Sequence[str] = ("none", *DAMAGES, *TYPES)
