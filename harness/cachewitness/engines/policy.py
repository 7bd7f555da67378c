"""The cache policies that have a reference, by name: the ones here and those that other packages
register.

A policy is a package in `reference_impl`, in its own system's terms; what the harness needs of it
(how it is built for a trace, on which configurations it is run, its plan, how it answers test
vectors) is said in a `PolicyKind`, which is registered under the entry-point group
`cachewitness.policies`. Those of this package are in `harness/cachewitness/systems`, in one folder
each. Its seeded faults and the questions of its vectors have groups of their own, so that another
distribution can bring them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest
from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Layout, Level, TraceHeader
from cachewitness.engines.choices import Choices
from cachewitness.engines.drawing import Drawing
from cachewitness.engines.environment import Variable
from cachewitness.engines.layout_rules import LayoutRules
from cachewitness.engines.mutant import DEFAULT_POLICY
from cachewitness.engines.on_tensors import OnTensors, Serving, served_plainly
from cachewitness.engines.sizing import Sizing
from cachewitness.workloads.configurations import Configuration

GROUP = "cachewitness.policies"

AXES = {
    "window": "tokens that a sliding window keeps behind a boundary",
    "recurrent": "where a recurrent state can be resumed",
    "last token": "how much of a fully cached prompt is computed again",
    "group miss": "what happens if one group has less than the others",
    "duplicate": "what happens to a second block of the same content",
    "eviction": "what is evicted first when pages are needed",
    "publication": "when a prefix can first be hit",
    "compaction": "whether live content moves",
}
"""In what the systems differ, and what each axis means. Every policy says where it stands on each.
"""


@dataclass(frozen=True)
class Rule:
    """A rule of a system, and whether the reference has it; an option that needs an absent one
    is refused.
    """

    name: str
    summary: str
    implemented: bool = True


@dataclass(frozen=True)
class PolicyKind:
    """A policy: what it is, where its rules come from, and how it is built and run. What only some
    policies have is a part of its own, left out by the others.

    Registering is light: what opening an engine, planning or asking needs is imported when that is
    called.

    `open(header, options)` builds its engine for a trace, at the level that the trace names;
    options are those of the engine `reference` (`mutant`, `release`), and it raises UsageError for
    one that does not fit. `configurations` are those of a run in which the user chose nothing.
    `not_applicable` maps an invariant to why it is not.
    """

    name: str
    summary: str
    source: str
    pinned: str
    releases: tuple[str, ...]
    rules: Sequence[Rule]
    axes: Mapping[str, str]
    open: Callable[[TraceHeader, Mapping[str, str]], Engine]
    configurations: Callable[[], list[Configuration]]
    levels: tuple[Level, ...] = ("manager", "scheduler")
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    plants_as: str = ""
    """What mutants name in `engines` that fit it beside its own: `reference` for caches of vLLM's
    shape; empty: no others."""
    answers: Callable[[], Any] | None = None
    """Who answers test vectors, a `cachewitness.vectors.case.PolicyAnswers`; None: nobody but the
    engine that runs a trace."""
    steer: Callable[[Any, Choices], None] | None = None
    """Has somebody else make the free choices of an engine that `open` returned; None: the
    reference cannot follow any."""
    variables: Sequence[Variable] = ()
    """The environment variables that its system's documents tell a reader to export."""
    layouts: LayoutRules = field(default_factory=LayoutRules)
    """What its system makes of a layout that the user named."""
    drawing: Drawing | None = None
    """How a fuzzer draws its configurations; None: from its own ones."""
    tensors: OnTensors = field(default_factory=OnTensors)
    """How it runs on a model's real tensors."""
    sizing: Sizing | None = None
    """How its system sizes its caches; None: there is no `cachewitness plan` for it."""

    def cold_configurations(self) -> list[Configuration]:
        """Return the configurations on which tensors are compared."""
        return (self.tensors.configurations or self.configurations)()

    def serve(self, layout: Layout, serving: Serving) -> TraceHeader:
        """Return the header under which a model's layout answers prompts. Raises UsageError for
        what the system has not.
        """
        serve = self.tensors.serve
        return serve(layout, serving) if serve else served_plainly(self.name, layout, serving)


def names() -> list[str]:
    """Return the names of all registered policies: the default first, then this package's, then
    those of others.
    """
    return sorted(plugins.registered(GROUP), key=lambda name: name != DEFAULT_POLICY)


def get(name: str) -> PolicyKind:
    """Return a policy by name.

    Raises UsageError, with the nearest name, if there is none, and for a registration that cannot
    be imported, is no PolicyKind or leaves an axis out.
    """
    registered = plugins.registered(GROUP)
    if name not in registered:
        raise UsageError(f"--policy: no policy is called {name!r}{nearest(name, registered)}")
    entry = registered[name]
    try:
        kind = entry.load()
    except Exception as error:
        raise UsageError(
            f"--policy: {name} ({entry.value}) cannot be imported: {type(error).__name__}: {error};"
            " install its package again"
        ) from None
    if not isinstance(kind, PolicyKind):
        raise UsageError(
            f"--policy: {name} ({entry.value}) is a {type(kind).__name__}, not a PolicyKind"
        )
    if missing := sorted(set(AXES) - set(kind.axes)):
        raise UsageError(
            f"--policy: {name} ({entry.value}) does not say where it stands on {', '.join(missing)}"
        )
    return kind


def loadable() -> list[PolicyKind]:
    """Return the registered policies in the order of `names`, but for those that `get` refuses."""
    found = []
    for name in names():
        with suppress(UsageError):
            found.append(get(name))
    return found
