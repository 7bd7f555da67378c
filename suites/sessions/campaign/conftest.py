"""What campaigns in the test's own process share."""

from __future__ import annotations

import pytest

from cachewitness.sessions.campaign import driver
from suites.support.campaigns import Remembered


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the driver look at its database without waiting."""
    monkeypatch.setattr(driver, "POLL", 0.0)


@pytest.fixture(scope="module")
def remembered() -> Remembered:
    """Return what carries out the units of a file's tests, each once."""
    return Remembered()
