"""What a benchmark of long sequences asks of a policy, and the watch that times its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

CHUNK = 2_048
"""Tokens of the prompt in a step."""
DECODES = 256
"""Tokens that are generated after the second look-up."""


class Watch:
    """Adds up CPU seconds by phase; a phase within another is not counted to the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside to a phase."""
        self._inner.append(0.0)
        begun = time.process_time()
        try:
            yield
        finally:
            spent = time.process_time() - begun
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner.pop()
            self._inner[-1] += spent


class Subject(Protocol):
    """A policy that can serve one long sequence, cold and again."""

    def serve(self, tokens: Sequence[int], watch: Watch) -> None:
        """Compute a sequence, end it, look it up again and generate `DECODES` tokens; time each
        phase.

        Asserts that the second request found what it should.
        """
