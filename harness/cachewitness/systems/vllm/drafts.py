"""What vLLM's worker knows of drafts, and its scheduler does not while steps are in flight.

With async scheduling the scheduler gives places to drafts that it does not know, and counts those
in flight as if all of them stood. The worker guesses when a step has run, verifies in the next, and
runs that as many tokens earlier as drafts fell.

Sources: vLLM 0.29.0 to 0.33.0, `v1/core/sched/async_scheduler.py`; `v1/worker/gpu_model_runner.py`,
`_update_states`, `correct_spec_decode_token_counts`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from cachewitness.engines.cache_state import Tables

NO_TOKEN = 0
"""What stands for a draft that there is none of (vLLM's is -1): the id of no token of any text, so
it is always rejected."""


class Flight:
    """A request in a step in flight: tokens [start, stop) if every draft before them stands, the
    last of them drafts.

    `rows` are the worker's for it. `admitted`: it came, or came back, with this step. `fell`: so
    many drafts of earlier steps in flight did not stand. `in_vain`: the answer of its session was
    over before it ran.
    """

    __slots__ = ("admitted", "drafts", "fell", "in_vain", "rows", "start", "stop")

    def __init__(
        self, chunk: tuple[int, int], drafts: list[int], rows: Tables, *, admitted: bool
    ) -> None:
        (self.start, self.stop) = chunk
        self.drafts = drafts
        self.rows = rows
        self.admitted = admitted
        self.fell = 0
        self.in_vain = False

    @property
    def known(self) -> int:
        """Where its known tokens end, drafts that fell taken off."""
        return self.stop - self.fell - len(self.drafts)


class Flights:
    """The steps in flight, the oldest first, and what the worker guessed of each request when it
    ran last.
    """

    def __init__(self) -> None:
        self._steps: deque[dict[str, Flight]] = deque()
        self._guesses: dict[str, list[int]] = {}

    def begin(self, step: Mapping[str, Flight]) -> None:
        """Take note of a step that was scheduled."""
        self._steps.append(dict(step))

    def run_oldest(self) -> dict[str, Flight]:
        """Return who runs in the step that runs now; the drafts of a request are what was
        guessed when it ran last.
        """
        step = self._steps.popleft()
        for r, flight in step.items():
            if flight.drafts and (guesses := self._guesses.pop(r, None)) and not flight.admitted:
                flight.drafts = guesses[: len(flight.drafts)]
        return step

    def awaited(self, r: str) -> int:
        """Return how many tokens the steps in flight may add to a request."""
        return sum(1 + len(step[r].drafts) for step in self._steps if r in step)

    def leave(self, r: str) -> None:
        """Take note that the answer of a session is over: what steps in flight compute for it is
        dropped.
        """
        for step in self._steps:
            if flight := step.get(r):
                flight.in_vain = True

    def fall(self, r: str, count: int) -> None:
        """Take note that drafts of the step that has run fell: later steps start earlier, until
        it was admitted anew.
        """
        for step in self._steps:
            if flight := step.get(r):
                if flight.admitted:
                    return
                flight.fell += count

    def guess(self, guesses: Mapping[str, list[int]]) -> None:
        """Take note of what the worker guesses for those who sampled."""
        self._guesses.update(guesses)
