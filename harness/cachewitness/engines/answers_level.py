"""What the harness needs to know of an engine that tells nothing but its answers, and the runs that
control what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachewitness.core.trace_format import Level
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.shrink import ATTEMPTS


@dataclass(frozen=True)
class Texts:
    """How real text is asked of an engine's model, for `score --likelihood`.

    `tokens` returns, for the options of the engine's name, what makes a text token ids of the
    model; it raises UsageError if that model has no texts. `configuration` is the one that long
    prompts are computed in.
    """

    tokens: Callable[[Mapping[str, str]], Callable[[str], list[int]]]
    configuration: Configuration


@dataclass(frozen=True)
class AnswersLevel:
    """How the answers of an engine are compared with those of its uncached baseline.

    `uncached` are the options with which the engine's name opens the baseline.
    """

    uncached: Mapping[str, str]
    one_server: bool = False
    """All traces and the baseline are asked of one server that was there before. Its pool is what
    it is, so nothing is learned by asking for another one, and its baseline waits until nobody else
    is under way."""
    exact_batches: bool = True
    """An answer must not depend on who shares the batch. Otherwise what differs without the cache
    too is the batch's doing, and leaves the verdict unknown."""
    shrinking: int = ATTEMPTS
    """The number of traces tried in search of a smaller one that fails; fewer where an engine takes
    long to open."""
    texts: Texts | None = None
    """How real text is asked; None: the engine knows token ids alone."""


@dataclass(frozen=True)
class Controls:
    """Runs in which nothing may be found: `options` of the engine's name by the control's name.

    Some traces of every run at one of `levels` are run again with each of them.
    """

    options: Mapping[str, Mapping[str, str]]
    levels: tuple[Level, ...] = ("answers",)

    def beside(self, named: Mapping[str, str]) -> Mapping[str, Mapping[str, str]]:
        """Return those that fit the options of the engine's name: a checkpoint is its model, so no
        control has another one.
        """
        own = "checkpoint" in named
        return {name: one for name, one in self.options.items() if not (own and "model" in one)}
