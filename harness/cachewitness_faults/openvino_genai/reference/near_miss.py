"""Faults in OpenVINO's digests that confuse only what differs in one place or part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.openvino_genai.sequence import Identity

identity_confused = partial(
    mutant, engines=("openvino_genai",), anomaly="cross-identity-hit", checker="identity", group="I"
)


def _scheduler(engine: Driver) -> Any:
    adapter: Any = engine.adapter
    return adapter.scheduler


def _identified(engine: Driver, extra: Callable[[Identity, int, int], tuple[object, ...]]) -> None:
    """Let what enters a digest beside the tokens be other than it is."""

    class Other(Identity):
        def extra(self, start: int, stop: int) -> tuple[object, ...]:
            return extra(self, start, stop)

    def add_request(original: Any, group: Any) -> None:
        for sequence in group.sequences:
            own = sequence.identity
            sequence.identity = Other(own.salt, own.adapter, own.media)
        original(group)

    wrap(_scheduler(engine), "add_request", add_request)


def _marks(extra: tuple[object, ...]) -> list[tuple[object, ...]]:
    """Return what enters a digest beside the tokens; each mark is a kind and what it says."""
    return [mark for mark in extra if isinstance(mark, tuple)]


@identity_confused(
    name="openvino-image-without-its-place", mirrors="vllm-project/vllm#36622, #20261"
)
def image_without_its_place(engine: Driver) -> None:
    """A digest covers which images lie in a block, and not over which of its tokens."""
    own = Identity.extra

    def extra(identity: Identity, start: int, stop: int) -> tuple[object, ...]:
        return tuple(
            mark[:2] if mark[0] == "media" else mark for mark in _marks(own(identity, start, stop))
        )

    _identified(engine, extra)


@identity_confused(name="openvino-salt-joined-to-adapter", mirrors="vllm-project/vllm#44701")
def salt_joined_to_adapter(engine: Driver) -> None:
    """Salt and adapter enter the first digest as one text, without a separator."""
    own = Identity.extra

    def extra(identity: Identity, start: int, stop: int) -> tuple[object, ...]:
        marks = _marks(own(identity, start, stop))
        return tuple(
            ("salt", "".join(map(str, mark[1:]))) if mark[0] == "salt" else mark for mark in marks
        )

    _identified(engine, extra)


MUTANTS = declared(globals())
