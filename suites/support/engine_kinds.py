"""Kinds of engines that are registered for a test, in place of all others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness._util import plugins
from harness.engines import registry
from harness.engines.kind import EngineKind


def only(monkeypatch: pytest.MonkeyPatch, *kinds: EngineKind) -> None:
    """Let these kinds be all that is registered; they count as this package's own, so they are not probed in a process."""
    plain = plugins.registered
    entries = {kind.name: SimpleNamespace(name=kind.name, value="harness.test", load=lambda kind=kind: kind) for kind in kinds}
    monkeypatch.setattr(plugins, "registered", lambda group: entries if group == registry.GROUP else plain(group))
