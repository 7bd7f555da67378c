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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import click

from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest
from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Layout, Level, TraceHeader
from cachewitness.engines.environment import Variable
from cachewitness.engines.mutant import DEFAULT_POLICY
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.model import Model
from cachewitness.workloads.scenarios.shape import LeastPages
from cachewitness.workloads.source import Source

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
class Serving:
    """How a policy is to be run for answering prompts; sizes as in
    `cachewitness.toy.service.ToyService`.
    """

    caching: bool
    pages: int
    batch: int
    budget: int
    model_len: int
    retention_interval: int | None = None
    drafts: int = 0
    in_flight: int = 0
    tier_pages: int = 0


Serve = Callable[[Layout, Serving], TraceHeader]
Fit = Callable[[Layout, Model | None, Mapping[str, Any], str], tuple[Layout, dict[str, Any]]]
"""Given a layout, its model if it has one, options and a release (empty: the newest): the layout
and the options of a run."""


class Choices(Protocol):
    """Who makes the choices that a policy leaves to an engine. What is offered is lawful; so is
    every answer.
    """

    def free(self, pool: int, pages: Sequence[int]) -> int:
        """Return which of the free pages without a key is handed out next."""

    def victim(self, pool: int, pages: Collection[int]) -> int | None:
        """Return which cached page makes room; None leaves it to the policy. Of an object of
        several pages, its first.
        """

    def duplicate(self, r: str, group: int, pages: Sequence[int]) -> int:
        """Return which of the pages with one key a request hits; in front is the one that was
        keyed first.
        """

    def waits(self, r: str) -> bool:
        """Say whether a request that had a choice among duplicates took one that makes it wait."""

    def renamed(self, r: str, group: int, length: int) -> bool:
        """Say whether the key of the first `length` tokens of a request goes to a second page of
        that content.
        """


class Draw(Protocol):
    """How a fuzzer draws a policy's configurations."""

    def __call__(
        self, source: Source, layout: Layout | None, level: Level, *, historic: bool
    ) -> tuple[Layout, Iterable[dict[str, Any]]]:
        """Return a layout, the given one if there is one, and bundles of options, of which those
        that are refused are left out.

        The bundles are drawn while they are iterated. `historic`: options of older releases may be
        among them.
        """


@dataclass(frozen=True)
class PolicyKind:
    """A policy: what it is, where its rules come from, and how it is built and run.

    Registering is light: what opening an engine, planning or asking needs is imported when that is
    called.

    `open(header, options)` builds its engine for a trace, at the level that the trace names;
    options are those of the engine `reference` (`mutant`, `release`), and it raises UsageError for
    one that does not fit. `configurations` are those of a run in which the user chose nothing,
    `variants(layout)` those of a layout. `not_applicable` maps an invariant to why it is not.
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
    compares: Callable[[], list[Configuration]] | None = None
    """The configurations on which tensors are compared; None: those of a run."""
    serves: Serve | None = None
    """How a model's layout is run for answering prompts; None: without options of its own
    (`served_plainly`)."""
    variants: Callable[[Layout], list[Configuration]] | None = None
    levels: tuple[Level, ...] = ("manager", "scheduler")
    aliases: tuple[str, ...] = ()
    """Other names of the system, as `cachewitness plan` takes them; in lower case, with
    underscores."""
    tiered: bool = False
    """Its prefixes lie in a second tier, behind an engine's own cache: a score that took nothing
    from there checked nothing."""
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str = "toy"
    """The trained model, of those in the fixtures, whose layers the system has caches for."""
    plants_as: str = ""
    """What mutants name in `engines` that fit it beside its own: `reference` for caches of vLLM's
    shape; empty: no others."""
    steer: Callable[[Any, Choices], None] | None = None
    """Has somebody else make the free choices of an engine that `open` returned; None: the
    reference cannot follow any."""
    refuse: Callable[[TraceHeader], object] | None = None
    """Raises UsageError for a configuration that the policy refuses; None: only opening its engine
    tells."""
    answers: Callable[[], Any] | None = None
    """Who answers test vectors, a `cachewitness.vectors.case.PolicyAnswers`; None: nobody but the
    engine that runs a trace."""
    least_pages: LeastPages | None = None
    """The smallest pool, in pages, that it accepts with a trace's options; None: any."""
    variables: Sequence[Variable] = ()
    """The environment variables that its system's documents tell a reader to export."""
    plan: Callable[[], click.Command] | None = None
    """The command that works out its sizes for a model (`cachewitness plan NAME`); None: there is
    none."""
    fit: Fit | None = None
    """What its system makes of a layout that the user named; raises UsageError. None: the groups
    are as the layout says."""
    remarks: Callable[[Layout, Mapping[str, Any], str], list[str]] | None = None
    """What a run on such a layout replaces of the system's own defaults, and by what; None:
    nothing."""
    draw: Draw | None = None
    """How a fuzzer draws its configurations; None: from its own ones."""

    def cold_configurations(self) -> list[Configuration]:
        """Return the configurations on which tensors are compared."""
        return (self.compares or self.configurations)()

    def serve(self, layout: Layout, serving: Serving) -> TraceHeader:
        """Return the header under which a model's layout answers prompts. Raises UsageError for
        what the system has not.
        """
        return (
            self.serves(layout, serving)
            if self.serves
            else served_plainly(self.name, layout, serving)
        )


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


def served_plainly(policy: str, layout: Layout, serving: Serving, **options: Any) -> TraceHeader:
    """Return the header of a policy that has neither drafts, nor steps in flight, nor a second
    tier, for answering prompts.

    Raises UsageError for what it has not; `options` are added to those that every policy takes.
    """
    for what, asked in (
        ("drafts", serving.drafts),
        ("steps in flight", serving.in_flight),
        ("a second tier", serving.tier_pages),
    ):
        if asked:
            raise UsageError(f"--policy {policy}: has no {what.removeprefix('a ')}")
    common = {
        "enable_caching": serving.caching,
        "max_num_seqs": serving.batch,
        "max_num_batched_tokens": serving.budget,
        "max_model_len": serving.model_len,
    }
    return TraceHeader(
        name="service",
        layout=layout,
        pages=serving.pages,
        level="scheduler",
        policy=policy,
        options=common | options,
    )
