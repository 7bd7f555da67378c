"""A session that goes on keeps its tokens: an engine that loses them fails in that operation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Extended
from cachewitness.engines.driver import Client, Driver


def waiting() -> Driver:
    """Return a driver whose one session has three tokens."""
    driver = object.__new__(Driver)
    driver.clients = {"r1": Client("r1", [1, 2, 3])}
    driver.diff = cast(Any, SimpleNamespace(events=[]))
    return driver


def test_all_but_the_last_token_stay() -> None:
    """The last one, which was generated and not computed, may go or stay."""
    for keep in (2, 3):
        driver = waiting()
        driver.extended("r1", keep, [7, 8], 4)
        assert driver.events == [Extended(r="r1", keep=keep, tokens=[7, 8], step=4)]


def test_an_engine_that_loses_them_has_failed() -> None:
    """As vLLM did up to 0.32 with a session that was preempted before more input came."""
    with pytest.raises(EngineFailure, match="kept 0 of the 3 tokens of session 'r1', not"):
        waiting().extended("r1", 0, [7, 8], 4)
