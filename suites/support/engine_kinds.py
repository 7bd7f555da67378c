"""Kinds of engines that are registered for a test, in place of all others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cachewitness._util import plugins
from cachewitness.engines import registry
from cachewitness.engines.kind import EngineKind


def only(monkeypatch: pytest.MonkeyPatch, *kinds: EngineKind) -> None:
    """Let these kinds be all that is registered; they count as this package's own, so they are
    not probed in a process.
    """
    plain = plugins.registered
    entries = {
        kind.name: SimpleNamespace(
            name=kind.name, value="cachewitness.test", load=lambda kind=kind: kind
        )
        for kind in kinds
    }
    monkeypatch.setattr(
        plugins, "registered", lambda group: entries if group == registry.GROUP else plain(group)
    )
