"""Which releases of a system an adapter was written for."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class WrittenFor:
    """The releases of a system that an adapter was written for, `first` to `last`, and the
    distribution that pip installs.

    `reads` are variables of the environment that name files of the engine, where no option does.
    """

    system: str
    distribution: str
    first: str
    last: str
    reads: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.system} {self.first}" + (
            f" to {self.last}" if self.last != self.first else ""
        )

    def fits(self, version: str) -> bool:
        """Whether a version is one of these releases, or a later fix of one."""
        numbers = [
            tuple(map(int, re.findall(r"\d+", text)[: self.first.count(".") + 1]))
            for text in (self.first, version, self.last)
        ]
        return numbers[0] <= numbers[1] <= numbers[2]
