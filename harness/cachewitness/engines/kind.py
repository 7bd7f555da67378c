"""What an engine says of itself when it registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Level, TraceHeader
from cachewitness.engines.accepts import Accepts
from cachewitness.engines.answers import Prompts
from cachewitness.engines.answers_level import AnswersLevel, Controls
from cachewitness.engines.export import Exporter
from cachewitness.engines.known_findings import KnownFindings
from cachewitness.engines.own_configurations import OwnConfigurations
from cachewitness.engines.own_drawing import OwnDrawing
from cachewitness.engines.own_process import OwnProcess
from cachewitness.engines.second_tier import SecondTier
from cachewitness.engines.written_for import WrittenFor

Open = Callable[[TraceHeader, Mapping[str, str]], Engine]
Answer = Callable[[Any], Any]
Answers = Callable[[str, Mapping[str, str]], Mapping[str, Answer]]
Derived = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""What an engine makes of a configuration, by name. It raises UsageError for one that is refused,
and `CannotAsk`."""


class CannotAsk(Exception):
    """A question of a vector makes no sense for an engine; the message says why. Whoever answers
    may raise it.
    """


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine: what it is, at which levels it runs, which options its name takes, and how
    one is opened. What only some engines have is a part of its own, None for the others.

    `open(header, options)` builds an engine for one trace; it raises UsageError for options that do
    not fit and EngineMissing if something has to be installed first. `policies` are the names of
    those whose rules it follows; None: of any that has a reference. `replays` says that it follows
    the policy of a reference, which can then be run beside it; `is_reference` that what it decides
    is a reference's own doing, so that without a fault the reference would be compared with itself;
    `computes` that its steps run on tensors, which it compares. `answers(policy, options)` says how
    the engine answers vectors: a function from input to what is expected, by kind of vector
    (`cachewitness.vectors.form`); it raises UsageError for an input that is refused, and kinds that
    it cannot answer are not there.
    """

    name: str
    summary: str
    levels: tuple[Level, ...]
    open: Open
    options: Mapping[str, str] = field(default_factory=dict)
    policies: tuple[str, ...] | None = ("vllm",)
    replays: bool = True
    is_reference: bool = False
    computes: bool = False
    answers: Answers | None = None
    configurations: OwnConfigurations | None = None
    """The configurations that are its own; None: it runs on the policy's."""
    drawing: OwnDrawing | None = None
    """What a fuzzer draws for it alone; None: what it draws for the policy."""
    accepts: Accepts | None = None
    """Which of the policy's configurations it takes, so that only such are tried; None: it says
    nothing, and what it refuses is listed as not run."""
    answers_level: AnswersLevel | None = None
    """How its answers are compared with those of its uncached baseline; None: it has none."""
    controls: Controls | None = None
    """Runs in which nothing may be found; None: there are none."""
    process: OwnProcess | None = None
    """The process of its own that it runs in; None: it is part of this package and runs in the
    harness's."""
    tier: SecondTier | None = None
    """Its second tier; None: it has none."""
    prompts: Prompts | None = None
    """How it is opened to answer the prompts of a score; None: it answers none."""
    export: Exporter | None = None
    """Writes a failed trace as a test that needs the engine alone; None: it cannot be exported."""
    written_for: WrittenFor | None = None
    """The system that it is an adapter of; None: it needs nothing but this package, or does not
    say."""
    known: KnownFindings | None = None
    """The lists of what its releases are known to do against a rule; None: it has none."""

    def follows(self, policy: str) -> bool:
        """Whether it can follow a policy."""
        return self.policies is None or policy in self.policies
