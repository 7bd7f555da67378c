"""State machines and allocators under Hypothesis, for tests of users (extra `machines`)."""

from cachewitness.sessions.fuzz.allocator import SETTINGS as ALLOCATOR_SETTINGS
from cachewitness.sessions.fuzz.allocator import Allocator
from cachewitness.sessions.fuzz.allocator_process import AllocatorProcess
from cachewitness.sessions.fuzz.machines import SETTINGS, manager_machine, run, scheduler_machine

__all__ = [
    "ALLOCATOR_SETTINGS",
    "SETTINGS",
    "Allocator",
    "AllocatorProcess",
    "manager_machine",
    "run",
    "scheduler_machine",
]
