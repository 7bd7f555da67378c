"""The checkers, by name."""

from __future__ import annotations

from cachewitness.core.checkers.answers import AnswersAgree
from cachewitness.core.checkers.captures import CapturesKept
from cachewitness.core.checkers.checkpoints import CheckpointsTaken
from cachewitness.core.checkers.content_floor import ContentFloor
from cachewitness.core.checkers.eviction import EvictionOrder
from cachewitness.core.checkers.key_events import KeyEventsTrue
from cachewitness.core.checkers.key_floor import KeysOwed
from cachewitness.core.checkers.ownership import Ownership
from cachewitness.core.checkers.progress import Progress
from cachewitness.core.checkers.protocol import Checker
from cachewitness.core.checkers.resumes import ResumesRight
from cachewitness.core.checkers.retention import IntervalSparsity, ReplayBoundaryRetained
from cachewitness.core.checkers.reuse import ReuseFloor
from cachewitness.core.checkers.safety import (
    CommitOrder,
    Identity,
    NoFabricatedSnapshots,
    SafetyLaw,
    WindowLiveness,
)
from cachewitness.core.checkers.speculative import SpeculativeDrop
from cachewitness.core.checkers.statistics import StatisticsTrue
from cachewitness.core.checkers.stores import StoresOwed
from cachewitness.core.checkers.tensors import TensorsAgree
from cachewitness.core.checkers.timely_release import TimelyRelease
from cachewitness.core.trace_format import Level

OF_PAGES: tuple[type[Checker], ...] = (
    SafetyLaw,
    NoFabricatedSnapshots,
    ReplayBoundaryRetained,
    IntervalSparsity,
    CheckpointsTaken,
    Ownership,
    WindowLiveness,
    TimelyRelease,
    Identity,
    CommitOrder,
    ReuseFloor,
    SpeculativeDrop,
    ContentFloor,
    KeysOwed,
    StoresOwed,
    CapturesKept,
    EvictionOrder,
    KeyEventsTrue,
    StatisticsTrue,
    Progress,
    TensorsAgree,
)
ALL: tuple[type[Checker], ...] = (*OF_PAGES, ResumesRight, AnswersAgree)


def fresh(level: Level = "manager") -> list[Checker]:
    """Return a new instance of every checker that a run at a level has use for."""
    return [kind() for kind in (ALL if level == "answers" else OF_PAGES)]
