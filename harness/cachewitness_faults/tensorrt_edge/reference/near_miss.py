"""Faults in the names of captures that confuse only what differs in one part."""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant

fault = partial(
    mutant, engines=("tensorrt_edge",), anomaly="cross-identity-hit", checker="identity", group="I"
)


def _renamed(engine: Driver, change: Any) -> None:
    """Change what a request says of itself before it is named."""
    adapter: Any = engine.adapter

    def add(original: Any, request: Any) -> None:
        change(request)
        original(request)

    wrap(adapter.runtime, "add", add)


@fault(name="edge-weights-folded-into-salt", mirrors="vllm-project/vllm#44701")
def weights_folded_into_salt(engine: Driver) -> None:
    """LoRA weights and salt name a capture as one text, without a separator."""

    def change(request: Any) -> None:
        request.lora, request.salt = "", request.lora + request.salt

    _renamed(engine, change)


@fault(name="edge-image-without-its-place", mirrors="vllm-project/vllm#36622, #20261")
def image_without_its_place(engine: Driver) -> None:
    """A capture is named by the images in its prompt, in order, and not by where they lie."""

    def change(request: Any) -> None:
        request.media = tuple((0, count, content) for _, count, content in request.media)

    _renamed(engine, change)


@fault(name="edge-last-image-left-out", mirrors="vllm-project/vllm#36622")
def last_image_left_out(engine: Driver) -> None:
    """Of several images the last is not part of a capture's name."""

    def change(request: Any) -> None:
        request.media = request.media[:-1] if len(request.media) > 1 else request.media

    _renamed(engine, change)


MUTANTS = declared(globals())
