"""What an engine says of itself when it registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cachewitness.core.engine import Engine
from cachewitness.core.events import History
from cachewitness.core.trace_format import Level, Trace, TraceHeader
from cachewitness.engines.answers import Backend, Opening
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.shrink import ATTEMPTS

Open = Callable[[TraceHeader, Mapping[str, str]], Engine]
Answerer = Callable[[Mapping[str, str], Opening], Backend]
Answer = Callable[[Any], Any]
Answers = Callable[[str, Mapping[str, str]], Mapping[str, Answer]]
Derived = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""What an engine makes of a configuration, by name. It raises UsageError for one that is refused,
and `CannotAsk`."""


class CannotAsk(Exception):
    """A question of a vector makes no sense for an engine; the message says why. Whoever answers
    may raise it.
    """


class Failed(NamedTuple):
    """What a test of an engine is to show: the anomaly, the request `r`, the event's number, and
    how many tokens are owed.

    `r` and `seq` are empty and −1 where the finding has none; `owed` is 0 unless a hit is too
    short.
    """

    anomaly: str
    r: str
    seq: int
    owed: int


class Exported(NamedTuple):
    """A test as source, and the folder that has to be on the path of the Python that runs it;
    empty: none.

    `says` is a pattern of what its assertion says if it fails as it should: the test has others, of
    what leads there.
    """

    text: str
    path: str
    says: str


Exporter = Callable[[Trace, History, Failed, Mapping[str, str]], Exported]


class WrittenFor(NamedTuple):
    """The releases of a system that an adapter was written for, `first` to `last`, and the
    distribution that pip installs.
    """

    system: str
    distribution: str
    first: str
    last: str

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


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine: what it is, at which levels it runs, which options its name takes, and how
    one is opened.

    `open(header, options)` builds an engine for one trace; it raises UsageError for options that do
    not fit and EngineMissing if something has to be installed first. `replays` says that it follows
    the policy of a reference, which can then be run beside it. `answerer(options, opening)` opens
    an engine that answers prompts, for one arm of a score; it raises the same errors, and
    UsageError for an opening that the engine does not offer. `computes` says that its steps run on
    tensors, which it compares. `policies` are the names of those whose rules it follows; None: of
    any that has a reference. `answers(policy, options)` says how the engine answers vectors: a
    function from input to what is expected, by kind of vector (`cachewitness.vectors.form`); it
    raises UsageError for an input that is refused, and kinds that it cannot answer are not there.
    """

    name: str
    summary: str
    levels: tuple[Level, ...]
    open: Open
    options: Mapping[str, str] = field(default_factory=dict)
    policies: tuple[str, ...] | None = ("vllm",)
    replays: bool = True
    is_reference: bool = False
    """What it decides is a reference's own doing, so that without a fault the reference would be
    compared with itself."""
    answerer: Answerer | None = None
    bit_exact: Callable[[Mapping[str, str]], bool] | None = None
    """Tells with which options, `dtype` and `device` among them, it declares that its answers do
    not depend on chance, on a batch, or on what was cached, but for near-ties. None: with none."""
    computes: bool = False
    answers: Answers | None = None
    as_test: Exporter | None = None
    """Writes a failed trace, with its history, as the source of a test that needs the engine alone;
    takes the engine's options. It raises UsageError for what cannot be told so."""
    reads: tuple[str, ...] = ()
    """The variables of the environment that name files of the engine, where no option does."""
    command: str = ""
    """The option that names the command of its process; empty: it is opened by `open`."""
    key: str = ""
    """The option that names the environment variable of a key, which a process of its own then
    gets."""
    configurations: Callable[[], list[Configuration]] = list
    """What it runs beside the policy's configurations if the user chose none: options that the
    policy's reference has not."""
    configured: Callable[[Mapping[str, str]], list[Configuration]] | None = None
    """The same where it depends on the options of the engine's name; they may be wrong, which
    `open` says again."""
    own_layouts: bool = False
    """Its configurations are all that it runs on, as those of an engine that only answers always
    are."""
    cold: Mapping[str, str] = field(default_factory=dict)
    """At answers level: the options with which its name opens the uncached baseline, whose answers
    are compared with its own."""
    controls: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By name: options with which some traces are run again in every run, and nothing may be found.
    """
    one_server: bool = False
    """At answers level: all traces and the baseline are asked of one server that was there before.
    Its pool is what it is, so nothing is learned by asking for another one, and its baseline
    waits until nobody else is under way."""
    exact_batches: bool = True
    """At answers level: an answer must not depend on who shares the batch. Otherwise what differs
    without the cache too is the batch's doing, and leaves the verdict unknown."""
    controlled: tuple[Level, ...] = ("answers",)
    """The levels at which its controls run."""
    loads_by: str = ""
    """The option that gives it a second tier: a run with it that loads nothing from there has not
    checked what it should."""
    tier: str = ""
    """The same of one that always has a second tier: what that is."""
    shrinking: int = ATTEMPTS
    """So many traces are tried in search of a smaller one that fails; fewer where an engine takes
    long to open."""
    written_for: WrittenFor | None = None
    """The system that it is an adapter of; None: it needs nothing but this package, or does not
    say."""
    isolated: bool = False
    """It runs in a process of its own unless the user says otherwise, as every engine of another
    package does."""
    kept_by_process: tuple[str, ...] = ()
    """Options of a trace that its process goes by as the first trace has them: a trace with others
    gets another process."""

    imports: tuple[str, ...] = ()
    """Modules that are imported once for all its processes, which are then forked (Linux): what
    takes seconds to import. They must not start threads or compute; if they do, each process
    imports them by itself."""

    def follows(self, policy: str) -> bool:
        """Whether it can follow a policy."""
        return self.policies is None or policy in self.policies
