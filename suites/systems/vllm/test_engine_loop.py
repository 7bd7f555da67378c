"""The engine's loop over vLLM's scheduler, without vLLM: it asks for no step when the scheduler says
that it has no requests.
"""  # noqa: E501

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness.systems.vllm.engine_loop import EngineLoop


def loop(*requests: tuple[str, bool], has: bool, connector: object = None) -> EngineLoop:
    """Return a loop over requests, each with its status and whether it has finished."""
    listed = [
        SimpleNamespace(status=SimpleNamespace(name=status), is_finished=lambda over=over: over)
        for status, over in requests
    ]
    scheduler = SimpleNamespace(
        connector=connector, has_requests=lambda: has, requests=dict(enumerate(listed))
    )
    nothing = SimpleNamespace(make_empty=lambda: "nothing")
    source: Any = SimpleNamespace(part=lambda module, name: nothing)
    return EngineLoop(source, scheduler, scheduler.requests)


def test_who_waits_is_not_served_by_a_loop_that_stands() -> None:
    assert loop(("WAITING", False), has=False).step() == "nothing"
    assert loop(("WAITING", False), has=True).step() is None


@pytest.mark.parametrize(
    "requests",
    [(), (("WAITING_FOR_STREAMING_REQ", False),), (("RUNNING", True),)],
    ids=["nobody", "a session that waits for input", "one that has finished"],
)
def test_a_loop_may_stand_while_nobody_waits(requests: tuple[tuple[str, bool], ...]) -> None:
    assert loop(*requests, has=False).step() is None


def test_copies_go_on_behind_a_connector() -> None:
    assert loop(("WAITING", False), has=False, connector=object()).step() is None
