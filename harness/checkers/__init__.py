"""The checkers, by name."""

from __future__ import annotations

from harness.checkers.answers import AnswersAgree
from harness.checkers.captures import CapturesKept
from harness.checkers.content_floor import ContentFloor
from harness.checkers.eviction import EvictionOrder
from harness.checkers.key_events import KeyEventsTrue
from harness.checkers.ownership import Ownership
from harness.checkers.progress import Progress
from harness.checkers.protocol import Checker
from harness.checkers.resumes import ResumesRight
from harness.checkers.retention import IntervalSparsity, ReplayBoundaryRetained
from harness.checkers.reuse import ReuseFloor
from harness.checkers.safety import CommitOrder, Identity, NoFabricatedSnapshots, SafetyLaw, WindowLiveness
from harness.checkers.statistics import StatisticsTrue
from harness.checkers.tensors import TensorsAgree
from harness.trace.format import Height

OF_PAGES: tuple[type[Checker], ...] = (
    SafetyLaw,
    NoFabricatedSnapshots,
    ReplayBoundaryRetained,
    IntervalSparsity,
    Ownership,
    WindowLiveness,
    Identity,
    CommitOrder,
    ReuseFloor,
    ContentFloor,
    CapturesKept,
    EvictionOrder,
    KeyEventsTrue,
    StatisticsTrue,
    Progress,
    TensorsAgree,
)
ALL: tuple[type[Checker], ...] = (*OF_PAGES, ResumesRight, AnswersAgree)


def fresh(height: Height = "manager") -> list[Checker]:
    """Return a new instance of every checker that a run at a height has use for."""
    return [kind() for kind in (ALL if height == "answers" else OF_PAGES)]
