"""The engine of a unit: how it is opened on whichever machine, and what it was made of where the
campaign was planned.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from cachewitness.engines.deadline import Limits
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.isolation.jsonl import introduced
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.sessions.campaign.build_digest import made_of


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as the file names it. `isolation`: its own process; `within`: its deadlines where
    it has none.

    `made_of` is its digest where the campaign was planned.
    """

    text: str
    isolation: Isolation | None = None
    within: Limits | None = None
    label: str = ""
    made_of: str = ""

    def named(self) -> EngineSpec:
        """Return the engine as it is registered here; a program is not asked. Raises UsageError
        if it is not known.
        """
        spec = replace(parse(self.text), within=self.within)
        return spec if self.isolation is None else spec.isolated(self.isolation)

    def spec(self) -> EngineSpec:
        """Return the engine, ready to be opened. Raises UsageError if it is not known here, or
        does not say what it is.
        """
        spec = self.named()
        if spec.command and spec.isolation:
            spec = replace(spec, kind=introduced(spec.kind, spec.text, spec.isolation))
        return spec


def engine_entry(spec: EngineSpec, policy: str, label: str) -> EngineEntry:
    """Return an engine for units under a policy, with its digest."""
    made = made_of(spec, policy, label)
    return EngineEntry(
        text=spec.text, isolation=spec.isolation, within=spec.within, label=label, made_of=made
    )
