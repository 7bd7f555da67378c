"""Which traces a run has: of which suites on which configurations, and which of them come first.

A suite has a stream of traces for each configuration. What the user's options leave out of it, what
a short run samples, and what enters a change first is decided here; nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.change.entered_map import Configured
from cachewitness.sessions.change.measured import Measured
from cachewitness.sessions.run import choice as choices
from cachewitness.sessions.run.ceiling import ceiling
from cachewitness.sessions.run.choice import Choice, Chosen
from cachewitness.sessions.run.progress import RunProgress
from cachewitness.sessions.run.selection import Sample, controls, random_traces
from cachewitness.sessions.run.suites import Stream, Suite, first_number
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

TRACES_BESIDE = 12
"""So many traces of a suite are run on the engine with further options that enter a change."""


@dataclass(kw_only=True)
class Streams:
    """The traces of a run; the fields are those of `Runner`. `skip` is told what is left out, and
    why.
    """

    engine: EngineSpec
    configurations: list[Configuration]
    seed: int
    policy: str
    full: bool
    chosen_configurations: bool
    exact_configurations: bool
    choice: Choice
    change: Measured | None
    skip: Callable[[str, str], None]

    def planned(self, suites: list[Suite], seconds: float) -> RunProgress:
        """Return what is to be done; nobody can tell of what compares tensors, or runs beside
        controls, or is a sample.
        """
        timed = {suite.name for suite in suites if suite.endless and seconds}
        planned: dict[str, int | None] = {suite.name: None for suite in suites}
        for suite in suites:
            if suite.name not in timed and not (
                suite.tensors or self._short or self._has_controls(suite) or self.choice.narrows
            ):
                fitting = [one for one in self.configurations if one.runs_at(suite.level)]
                # Counted by drawing the traces: how many a configuration has depends on what the
                # suite leaves out of it.
                planned[suite.name] = sum(
                    (
                        self.most
                        if suite.endless
                        else sum(1 for _ in suite.traces(one, suite.level, self.seed))
                        + 2 * suite.ceiling
                        + sum(1 for _ in self.large_traces(suite, one, place, len(fitting)))
                    )
                    for place, one in enumerate(fitting)
                ) + TRACES_BESIDE * len(self._named_beside(suite))
        return RunProgress(planned, timed, seconds / max(len(timed), 1))

    @property
    def most(self) -> int:
        """How many random traces each configuration gets when the user gives no time."""
        return random_traces(self.engine, short=self._short)

    @property
    def _short(self) -> bool:
        return self.engine.kind.computes and not self.full and not self.chosen_configurations

    def of(self, suite: Suite, deadline: float | None) -> tuple[list[Stream], list[Stream]]:
        """Return the traces of a suite, those that come first apart from the others; of an endless
        one only so many for each configuration, if it has no deadline.
        """
        streams = self._whole_streams(suite)
        first = list(self._beside(suite))
        taken = Sample(suite.sampled, partial(self._leave_out, suite))
        for index, stream in enumerate(streams):
            chosen = self._chosen(suite, stream, deadline)
            entering = self._enters_the_change(suite, stream)
            if chosen.first or entering:
                most = (self.most if suite.endless else None) if entering else 0
                earlier = replace(stream, traces=chain(chosen.first, islice(chosen.rest, most)))
                earlier.reuse = stream.reuse
                first.append(earlier)
            stream.traces = chosen.rest
            if self._short and not self.choice.narrows:
                stream.traces = taken.of(stream.traces, index)
        return first, streams

    def _enters_the_change(self, suite: Suite, stream: Stream) -> bool:
        return self.change is not None and any(
            (one.suite, one.name) == (suite.name, stream.name) for one in self.change.first
        )

    def _beside(self, suite: Suite) -> Iterator[Stream]:
        """Yield what enters a change on the engine with further options, unless the user named the
        configurations.
        """
        for one in self._named_beside(suite):
            configuration = Configuration(layouts.load(one.layout), one.options, self.policy)
            stream = Stream(
                configuration,
                self.engine.variant(one.engine),
                suite.traces_of(configuration, self.seed, 0, 1),
                beside=one.beside,
            )
            chosen = self._chosen(suite, stream, None)
            stream.traces = islice(chain(chosen.first, chosen.rest), TRACES_BESIDE)
            yield stream

    def _named_beside(self, suite: Suite) -> list[Configured]:
        if self.change is None or self.chosen_configurations or self.exact_configurations:
            return []
        return [one for one in self.change.first if one.suite == suite.name and one.engine]

    def _chosen(self, suite: Suite, stream: Stream, deadline: float | None) -> Chosen:
        """Return the traces of a stream that are run."""
        prefix = f"{suite.name}:"
        suffix = f"@{stream.name}"
        most = self.most if suite.endless and deadline is None else None
        leave_out = partial(self._skip_unchosen, suite)
        if suite.draw is None or stream.control:
            traces = islice(stream.traces, most)
            return choices.chosen(self.choice, prefix, suffix, traces, leave_out)
        draw = partial(suite.draw, stream.configuration, suite.level)
        start = first_number(stream.configuration, self.seed)
        return choices.drawn(self.choice, prefix, suffix, start, most, draw, leave_out)

    def _skip_unchosen(self, suite: Suite) -> None:
        self.skip(f"{suite.name}: other traces", f"{', '.join(self.choice.words)} leaves them out")

    def _whole_streams(self, suite: Suite) -> list[Stream]:
        configurations = [
            configuration
            for configuration in self.configurations
            if configuration.runs_at(suite.level)
        ]
        if suite.tensors is not None:
            return suite.tensors.streams(
                self.engine,
                (
                    configurations
                    if self.chosen_configurations
                    else policies.get(self.policy).cold_configurations()
                ),
                self.seed,
            )
        if not configurations:
            self.skip(
                f"suite {suite.name}", "what the configurations ask for is the scheduler's alone"
            )
        places = len(configurations)
        streams = [
            Stream(
                configuration,
                self.engine,
                self._traces_of(suite, configuration, place, places),
            )
            for place, configuration in enumerate(configurations)
        ]
        return streams + (
            controls(suite, self.engine, configurations, self.seed)
            if self._has_controls(suite)
            else []
        )

    def _traces_of(
        self, suite: Suite, configuration: Configuration, place: int, places: int
    ) -> Iterator[Trace]:
        yield from suite.traces_of(configuration, self.seed, place, places)
        if suite.ceiling:
            seed = first_number(configuration, self.seed)
            leave_out = partial(self._leaves_out_longest, suite)
            yield from ceiling(self.engine, configuration, suite.level, seed, leave_out)
        for trace in self.large_traces(suite, configuration, place, places):
            yield self._without_refused_options(trace, configuration)

    def large_traces(
        self, suite: Suite, configuration: Configuration, place: int, places: int
    ) -> Iterator[Trace]:
        """Yield the large scenarios of a configuration; none where each would take minutes."""
        if not suite.large or (self.engine.kind.computes and not self.full):
            return iter(())
        return suite.large_traces(configuration, place, places, full=self.full)

    def _without_refused_options(self, trace: Trace, configuration: Configuration) -> Trace:
        """Return a large trace without the options that it adds, such as a bound of its requests'
        length, if the engine has no such options.
        """
        if trace.header.options.keys() <= configuration.options.keys():
            return trace
        try:
            self.engine.open(trace.header).close()
        except UsageError:
            options = dict(configuration.options)
            return Trace(msgspec.structs.replace(trace.header, options=options), trace.ops)
        except Exception:
            pass  # the run of the trace reports it
        return trace

    def _leaves_out_longest(self, suite: Suite, most: int) -> bool:
        """Return whether prompts of so many tokens are not asked."""
        if not self.full:
            self.skip(
                f"{suite.name}: the longest prompts",
                f"the engine takes {most:,} tokens; --full asks as many, with a long --deadline",
            )
        return not self.full

    def _has_controls(self, suite: Suite) -> bool:
        declared = self.engine.kind.controls
        return declared is not None and suite.level in declared.levels and not suite.paired

    def _leave_out(self, suite: Suite) -> None:
        why = (
            f"a short run takes one in {suite.sampled} of each configuration, and each at least"
            " once; --full takes all"
        )
        self.skip(f"{suite.name}: other traces", why)
