"""What a campaign consists of: its units in the order in which they are begun, the self-test
first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from msgspec.structs import replace

from cachewitness.engines.faults import fitting
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.report.summary import NotRun
from cachewitness.sessions.campaign.build_digest import package
from cachewitness.sessions.campaign.engine_entry import engine_entry
from cachewitness.sessions.campaign.unit import Chosen, Fuzzed, SuiteUnit, Unit, entered
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.self_test import POLICY
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.run.suites import Suite
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.source import Seeded

FAULTS = (
    *("block-leaked", "lookup-one-unit-short", "reset-keeps-keys"),
    *("shared-block-freed-twice", "stale-table-rows", "tail-published-early"),
)
"""The faults of the self-test: every configuration can express them."""
SELF_TEST_TRACES = 8
"""So many traces are run on the engine with the planted fault; each of the above is found within
five for seeds 0 to 7."""
SELF_TEST_STREAM = "canary"
"""The stream whose traces the self-test runs: the name decides what is drawn."""


@dataclass(frozen=True)
class SelfTest:
    """The planted fault, and how it must be reported."""

    mutant: Mutant

    @property
    def engine(self) -> str:
        """The reference with the fault."""
        return f"reference:mutant={self.mutant.name}"


Key = tuple[str, str, str]
"""What is judged by itself: the text of an engine, its label, and a policy."""


def key_of(unit: Unit) -> Key:
    """Return what a unit judges."""
    return unit.engine.text, unit.engine.label, unit.policy


@dataclass(frozen=True)
class Planned:
    """A campaign: its name, its units, the fault of its self_test. `shrink`: so many findings of
    each class are shrunk.
    """

    name: str
    units: Sequence[Unit]
    self_test: SelfTest
    shrink: int = 3
    asked: Sequence[str] = field(default_factory=tuple)
    """The suites that the file names: each must have run on some engine."""
    left_out: dict[Key, list[NotRun]] = field(default_factory=dict)
    """What the file names and no configuration of an engine can run."""
    share: str = ""
    """Which share of a campaign it is, such as `1/3`; empty for the whole."""
    whole: str = ""
    """What names the campaign that it is a share of."""

    @cached_property
    def entries(self) -> list[tuple[str, bytes]]:
        """The units as they are stored, each with its key."""
        return [entered(unit) for unit in self.units]

    @property
    def id(self) -> str:
        """What names the campaign in its database: the same units under the same name are the
        same campaign.
        """
        return (
            self.whole
            or sha256(
                "\n".join([self.name, *(key for key, _ in self.entries)]).encode()
            ).hexdigest()[:16]
        )


def share_of(planned: Planned, number: int, count: int) -> Planned:
    """Return one share of so many: every so-manyth unit, and the self-test, which each share has.
    Shares are numbered from 1.
    """
    mine = [unit for place, unit in enumerate(planned.units[1:]) if place % count == number - 1]
    return dataclasses.replace(
        planned,
        units=[planned.units[0], *mine],
        share=f"{number}/{count}",
        whole=planned.id,
    )


def self_test(seed: int) -> SelfTest:
    """Return the fault that a seed plants."""
    return SelfTest(fitting(POLICY)[Seeded(f"campaign-canary/{seed}").choice(FAULTS)])


def canary_unit(planted: SelfTest, seed: int) -> Fuzzed:
    """Return the unit in which a planted fault must be found: it goes the way of every other
    unit.
    """
    plan = Plan(POLICY, ("manager", "scheduler"), Restriction(), seed, stream=SELF_TEST_STREAM)
    engine = engine_entry(parse(planted.engine), POLICY, "")
    return Fuzzed(
        package=package(),
        engine=engine,
        plan=plan,
        first=0,
        last=SELF_TEST_TRACES,
        beside=False,
        self_test=True,
    )


def fuzzed(engine: Fuzzed, traces: int, size: int) -> list[Unit]:
    """Return the units of one fuzz stream: ranges of so many traces, the last one perhaps of
    fewer.
    """
    return [
        replace(engine, first=first, last=min(first + size, traces))
        for first in range(0, traces, size)
    ]


def units_of_suite(
    pattern: SuiteUnit, suite: Suite, configurations: Sequence[Configuration], size: int
) -> list[Unit]:
    """Return the units of one suite: so many configurations each; all of them where the suite
    takes them together.
    """
    fitting_it = [one for one in configurations if one.runs_at(suite.level)]
    whole = suite.tensors is not None or suite.level == "answers"
    size = max(len(fitting_it), 1) if whole else size
    chosen = [Chosen(one.layout, one.options, one.policy) for one in fitting_it]
    return [
        replace(pattern, suite=suite.name, first=first, configurations=chosen[first : first + size])
        for first in range(0, len(chosen), size)
    ]
