"""Reads the user's choice of engine, policy, configurations and suites. Raises UsageError with
the nearest known name.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cachewitness._util import output
from cachewitness._util.errors import UsageError
from cachewitness._util.lines import one_line, printable
from cachewitness.cli import completion
from cachewitness.cli.json_option import print_json

if TYPE_CHECKING:
    from cachewitness.core.trace_format import Layout
    from cachewitness.engines.answers import Prompts
    from cachewitness.engines.deadline import Limits
    from cachewitness.engines.environment import Exported
    from cachewitness.engines.registry import EngineSpec
    from cachewitness.report.expected import Expectations, KnownOf
    from cachewitness.sessions.run.suites import Suite
    from cachewitness.workloads.configurations import Configuration

_MEASURES = (
    "retention_interval",
    "pages_per_snapshot",
    "num_speculative_tokens",
    "tier_pages",
    "tier_delay",
    "engines",
)
"""Options that traces are measured by, so they are checked before an engine sees them."""

_NAMES = ("release", "mamba_cache_mode")
"""Options whose values are names, although `0.29` reads as a number and `none` as nothing."""


class Finite(click.FloatRange):
    """A number within a range that is neither infinite nor no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what no comparison holds for."""
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


engine_option: Callable[[Any], Any] = click.option(
    "--engine",
    shell_complete=completion.engine,
    default="reference",
    show_default=True,
    metavar="NAME[:KEY=VALUE,…]",
    help="The engine to test; `ls engines` lists every engine with its options.",
)

policy_option: Callable[[Any], Any] = click.option(
    "--policy",
    shell_complete=completion.of("policies"),
    default="vllm",
    show_default=True,
    metavar="NAME",
    help="The policy whose rules the engine follows (`ls policies`).",
)


release_option: Callable[[Any], Any] = click.option(
    "--release",
    metavar="NAME",
    help=(
        "The release of the policy's system whose rules apply (`ls policies`); short for"
        " NAME:release=…."
    ),
)


def gather(**parts: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Have a command take some of its options together: `chosen=Selection` are the options that are
    called as the fields of the dataclass `Selection`.
    """

    def gathered(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def with_parts(**values: Any) -> int:
            made = {
                name: kind(**{one.name: values.pop(one.name) for one in fields(kind)})
                for name, kind in parts.items()
            }
            return command(**made, **values)

        return with_parts

    return gathered


@dataclass(frozen=True)
class Selection:
    """What is run, as the user named it: an engine, a policy and its release, layouts by name or
    path, and options of the policy as `KEY=VALUE`.
    """

    engine: str
    isolate: Isolate
    policy: str
    release: str | None
    layouts: tuple[str, ...]
    options: tuple[str, ...]

    def spec(self, device: str | None = None) -> EngineSpec:
        """Return the engine, able to follow the policy. Raises UsageError for what does not fit."""
        return engine_of(self.engine, self.policy, device, self.isolate, self.release)

    def exported(self) -> list[Exported]:
        """Return the variables of the environment that say what no option does."""
        return exported_of(self.policy, self.options)

    def also(self, settings: Sequence[str]) -> Selection:
        """Return the selection with further options."""
        return replace(self, options=(*self.options, *settings))

    def configurations(self, spec: EngineSpec) -> Chosen:
        """Return the configurations to run the engine on."""
        return configurations_of(self.policy, self.layouts, self.options, self.release, spec)


def selection_options(
    *, layouts: str, options: str
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the options of a `Selection`, which a command takes as `chosen`; with the help of
    `--layout` and `--option`.
    """
    given = [
        engine_option,
        isolation_options,
        policy_option,
        release_option,
        click.option(
            "--layout",
            "layouts",
            multiple=True,
            shell_complete=completion.of("layouts"),
            metavar="NAME|PATH",
            help=layouts,
        ),
        click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help=options),
    ]

    def with_selection(command: Callable[..., int]) -> Callable[..., int]:
        command = gather(chosen=Selection)(command)
        for option in reversed(given):
            command = option(command)
        return command

    return with_selection


@dataclass(frozen=True)
class ExpectedFailures:
    """The file of expected failures, if the user named one, and whether a stale entry fails."""

    expected: Path | None
    strict_expected: bool
    no_known: bool

    def load(self, spec: EngineSpec) -> Expectations:
        """Return what the file lists, beside what the engine's release is known for unless that is
        left out. Raises UsageError if the file cannot be read, or there is none to be strict about.
        """
        find_known = None if self.no_known else partial(self.known, spec)
        return expectations_of(self.expected, self.strict_expected, find_known)

    def known(self, spec: EngineSpec, version: str) -> KnownOf | None:
        """Return what a release of an engine is known for; None if it has no such lists, or they
        are left out.
        """
        from cachewitness.report.expected import shipped

        files = None if self.no_known else spec.known_lists(version)
        system = spec.kind.written_for.system if spec.kind.written_for else spec.kind.name
        return None if files is None else shipped(f"{system} {version}", files)


known_option: Callable[[Any], Any] = click.option(
    "--no-known",
    is_flag=True,
    help=(
        "Leave out the list of what the engine's release is known to do against a rule, which comes"
        " with this package."
    ),
)


def expected_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--expected` and `--strict-expected`, which `ExpectedFailures` gathers."""
    strict = (
        "Fail if an entry of --expected is stale: nothing failed as it says, or it fits nothing"
        " that ran."
    )
    what = "A file of expected failures, one `PATTERN ANOMALY # REASON` per line."
    command = click.option("--strict-expected", is_flag=True, help=strict)(command)
    return click.option("--expected", type=click.Path(path_type=Path), metavar="FILE", help=what)(
        command
    )


HELD_AT_ONCE = 4
"""So many processes of an engine are held at once if the user says nothing: each takes the memory
of an installation."""
ANSWERING_AT_ONCE = 2
"""The same of an engine that only answers: with each goes its uncached baseline and its controls,
and it may use several cores."""


def jobs_option(command: Callable[..., int]) -> Callable[..., int]:
    """Add the option that says how many traces are run at a time."""
    return click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=None,
        help=(
            "How many traces to run at a time, each in a process of its own; the outcome is the"
            " same, unless the engine keeps something from one trace to the next. Left out: one for"
            " each core on Linux, at most 4 for an installed engine and 2 for one that only"
            " answers; 1 for one that computes, is not this package's, or whose answers may depend"
            " on what it computes beside them; elsewhere always 1."
        ),
    )(command)


def jobs_of(spec: EngineSpec, wanted: int | None) -> int:
    """Return how many traces to run at a time.

    Raises UsageError if the user wants several and the engine takes one after another.
    """
    from cachewitness._util.workers import cores

    why = spec.one_at_a_time
    if why and wanted is not None and wanted > 1:
        raise UsageError(
            f"--jobs {wanted}: traces on {spec.kind.name} are run one after another: {why}; leave"
            " --jobs out"
        )
    if wanted is not None or why or spec.others:
        return wanted or 1
    held = ANSWERING_AT_ONCE if spec.only_answers else HELD_AT_ONCE
    return cores() if spec.isolation is None else min(cores(), held)


def died(line: str) -> None:
    """Say that a process of a run died and was replaced."""
    click.echo(f"cachewitness: {line}", err=True)


def expectations_of(
    expected: Path | None,
    strict: bool,
    find_known: Callable[[str], KnownOf | None] | None = None,
) -> Expectations:
    """Return the list of expected failures that the user named, an empty one without a file;
    `find_known` returns what stands beside it, by the version of the engine.
    """
    from cachewitness.report.expected import Expectations, load

    if strict and expected is None:
        raise UsageError("--strict-expected: belongs to --expected FILE")
    return Expectations(load(expected) if expected else (), strict=strict, find_known=find_known)


EXIT_INCOMPLETE = 4
"""The code of a pass of which something that was asked for could not be written."""
OPENING, OPENING_MIN = 10, 60.0
"""To open, an engine has so many times the deadline of an operation, and so many seconds at least.
"""


class Isolate(NamedTuple):
    """What the user said of the process of an engine: `asked` is yes, no or nothing; the others
    are None if left out.
    """

    asked: str | None = None
    deadline: float | None = None
    memory_gib: float | None = None
    engines: str = ""


def deadline_option(
    default: float | None, what: str
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return `--deadline`, in seconds; `what` is its help."""
    kind = Finite(min=0, min_open=True, max=86_400)
    return click.option(
        "--deadline",
        type=kind,
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=what,
    )


engines_option: Callable[[Callable[..., int]], Callable[..., int]] = click.option(
    "--engines",
    default="",
    metavar="FILE",
    help=(
        "With which Python each engine is started; default: CACHEWITNESS_ENGINES, else engines.toml"
        " if it is there."
    ),
)


def isolation_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of an engine's own process, which it takes as `isolate`."""

    @click.option(
        "--isolate",
        "asked",
        type=click.Choice(["yes", "no"]),
        help=(
            "Run the engine in a process of its own; default: yes, unless it is part of this"
            " package or computes tensors. With no, a hang in native code ends the run with exit"
            " code 1 and one line, without a report."
        ),
    )
    @deadline_option(
        None,
        "How long an engine in a process of its own, or with --isolate no, may take for an"
        " operation (60), and in proportion longer once a prompt has more than 4,096 tokens; to"
        " open, ten times that. With --isolate no an engine that computes has no deadline unless"
        " this names one.",
    )
    @click.option(
        "--memory-gib",
        type=Finite(min=0, min_open=True, max=1 << 20),
        metavar="GIB",
        help="How much memory its process may allocate; default: any amount. Linux only.",
    )
    @engines_option
    @wraps(command)
    def with_options(
        *,
        asked: str | None,
        deadline: float | None,
        memory_gib: float | None,
        engines: str,
        **others: Any,
    ) -> int:
        return command(isolate=Isolate(asked, deadline, memory_gib, engines), **others)

    return with_options


def engine_of(
    text: str,
    policy: str = "",
    device: str | None = None,
    isolate: Isolate | None = None,
    release: str | None = None,
) -> EngineSpec:
    """Return the engine that the user named, able to follow a policy, with the device and the
    release named beside it.

    It runs in a process of its own if the user says so in `isolate`, or says nothing there and it
    is not this package's.
    """
    from cachewitness._util.names import nearest
    from cachewitness.engines import policy as policy_registry
    from cachewitness.engines.faults import misfit
    from cachewitness.engines.mutant import DEFAULT_POLICY
    from cachewitness.engines.registry import GROUP, MUTANT, parse

    beside = ",".join(
        f"{key}={value}"
        for key, value in (("device", device), ("release", release))
        if value is not None
    )
    try:
        spec = parse(text)
        if release is not None:
            _check_release(release, spec, policy)
        spec = parse(f"{text}{',' if ':' in text else ':'}{beside}") if beside else spec
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--engine: a registered engine cannot be imported ({error}); see entry points of"
            f" {GROUP}"
        ) from None
    policies = policy_registry.names()
    if policy and policy not in policies:
        raise UsageError(f"--policy: no policy is called {policy!r}{nearest(policy, policies)}")
    # A name that does not exist comes first: what an engine follows is no help against a typing
    # error.
    if policy and not spec.kind.follows(policy):
        raise UsageError(
            f"--policy: engine {spec.kind.name} follows {', '.join(spec.kind.policies or ())}, not"
            f" {policy}"
        )
    if fault := spec.options.get(MUTANT):
        why = misfit(fault, spec.kind, policy or DEFAULT_POLICY)
        if policy and why:
            raise UsageError(f"--engine: {why}")
    return _isolated(spec, isolate or Isolate())


def _check_release(release: str, spec: EngineSpec, policy: str) -> None:
    from cachewitness.engines import policy as policies
    from cachewitness.engines.registry import kinds

    if "release" not in spec.kind.options:
        able = ", ".join(
            sorted(name for name, kind in kinds().items() if "release" in kind.options)
        )
        raise UsageError(
            f"--release: engine {spec.kind.name} has the release that is installed; those with a"
            f" choice: {able}"
        )
    known = policies.get(policy).releases if policy in policies.names() else (release,)
    if release not in known:
        raise UsageError(f"--release: {release!r} is unknown; known are {', '.join(known)}")


def answerer_of(text: str, policy: str, release: str | None = None) -> tuple[EngineSpec, Prompts]:
    """Return the engine that the user named, and how it is opened to answer prompts under a
    policy.
    """
    from cachewitness.engines.registry import kinds

    spec = engine_of(text, policy, release=release)
    if spec.kind.prompts is None:
        able = ", ".join(sorted(name for name, kind in kinds().items() if kind.prompts)) or "none"
        raise UsageError(
            f"--engine: {spec.kind.name} answers no prompts; those that do: {able}; `score` also"
            " takes --base-url"
        )
    return spec, spec.kind.prompts


def interpreter_of(spec: EngineSpec, engines: str = "") -> str:
    """Return the Python that a file names for an engine; empty if none does. `engines` is the
    file that the user named.
    """
    from cachewitness._util import plugins
    from cachewitness.engines.interpreters import file_of, interpreters
    from cachewitness.engines.registry import GROUP

    file = file_of(engines)
    found = interpreters(file, plugins.registered(GROUP)).get(spec.kind.name, "") if file else ""
    if found and spec.command:
        raise UsageError(
            f"{file}: [{spec.kind.name}] is started by its command; name the Python there"
        )
    return found


def _isolated(spec: EngineSpec, isolate: Isolate) -> EngineSpec:
    from sys import platform

    from cachewitness.engines.isolation.engine import Isolation

    python = interpreter_of(spec, isolate.engines)
    if python and isolate.asked == "no":
        raise UsageError(
            f"--isolate no: {spec.kind.name} has a Python of its own, {python}; leave one of"
            " them out"
        )
    apart = spec.held_apart or bool(python) if isolate.asked is None else isolate.asked == "yes"
    if not apart and spec.command:
        raise UsageError(
            f"--isolate no: {spec.kind.name} is a program, which has a process of its own; leave"
            " it out"
        )
    # Without a process of its own nothing can enforce these limits, and an option without effect is
    # refused rather than ignored.
    if not apart:
        if isolate.memory_gib is not None:
            raise UsageError(
                f"--memory-gib: engine {spec.kind.name} runs in the harness's own process; add"
                " --isolate yes"
            )
        if isolate.deadline is not None and isolate.asked is None:
            raise UsageError(
                f"--deadline: engine {spec.kind.name} runs in the harness's own process; add"
                " --isolate yes or no"
            )
        spec = replace(spec, within=_limits(spec, isolate))
        if spec.held_apart:
            click.echo(
                f"warning: --isolate no: if {spec.kind.name} ends its process, it ends the harness"
                " too and chooses the exit code; without a verdict on the last line the code means"
                " nothing",
                err=True,
            )
        return spec
    if isolate.memory_gib and not platform.startswith("linux"):
        raise UsageError(
            "--memory-gib: only Linux can limit the memory of another process; leave it out"
        )
    isolation = Isolation(
        memory_gib=isolate.memory_gib or 0.0, python=python, engines=isolate.engines
    )
    if isolate.deadline:
        isolation = replace(
            isolation, deadline=isolate.deadline, opening=_opening(isolate.deadline)
        )
    spec = spec.isolated(isolation)
    if spec.command and spec.isolation:
        from cachewitness.engines.isolation.jsonl import introduced

        spec = replace(spec, kind=introduced(spec.kind, spec.text, spec.isolation))
    return spec


def _limits(spec: EngineSpec, isolate: Isolate) -> Limits | None:
    """Return how long an engine may take in the harness's own process: as long as it takes, unless
    the user chose that process.

    One that computes may compile for minutes, so it has a limit only if the user names it.
    """
    from cachewitness.engines.deadline import Limits

    if (
        isolate.asked is None
        or (spec.kind.computes and isolate.deadline is None)
        or not hasattr(signal, "setitimer")
    ):
        return None
    return Limits(isolate.deadline, _opening(isolate.deadline)) if isolate.deadline else Limits()


def _opening(deadline: float) -> float:
    return max(OPENING_MIN, OPENING * deadline)


class Chosen(NamedTuple):
    """The configurations to run on. `named`: the user named their layouts; `exact`: and each of
    them is what was asked for.
    """

    configurations: list[Configuration]
    named: bool = False
    exact: bool = False


def configurations_of(
    policy: str,
    layouts: Sequence[str],
    options: Sequence[str],
    release: str | None = None,
    engine: EngineSpec | None = None,
) -> Chosen:
    """Return the configurations of a policy to run on, in a release if one is named, and those that
    are an engine's own.

    A layout alone stands for the kinds of retention that it has; what an engine refuses of these is
    left out and told. What the engine says that it does not take is not tried, unless it was named.
    Options without a layout apply to the layouts of a default run; those that
    refuse them are left out and told, since an option such as a retention interval has no effect on
    some layouts.
    """
    from cachewitness.engines import policy as policies
    from cachewitness.workloads.layouts import load

    kind = policies.get(policy)
    chosen = options_of(options)
    own = engine.configurations if engine else []
    # Before the layouts of the policy: an engine whose configurations are its own is asked those
    # alone.
    if (
        engine
        and own
        and (engine.own_layouts or not any(configuration.policy for configuration in own))
    ):
        return _own([replace(one, policy=one.policy and policy) for one in own], layouts, chosen)
    if layouts:
        names = list(dict.fromkeys(layouts))
        if chosen or kind.layouts.variants is None:
            return Chosen(
                [fitted(policy, name, chosen, release) for name in names], named=True, exact=True
            )
        return Chosen(
            _taken(
                engine,
                [
                    configuration
                    for name in names
                    for configuration in kind.layouts.variants(load(name))
                ],
            ),
            named=True,
        )
    if not chosen:
        return Chosen([*_tried(engine, policy, kind.configurations()), *own])
    known = {
        configuration.layout.name: configuration.layout for configuration in kind.configurations()
    }
    return Chosen(
        _taken(engine, [fitted(policy, layout, chosen, release) for layout in known.values()])
    )


def _taken(engine: EngineSpec | None, asked: list[Configuration]) -> list[Configuration]:
    """Return what the engine takes of what was asked for; all of it if it takes none, so that it
    says why.
    """
    accepts = engine.kind.accepts if engine else None
    return asked if accepts is None else accepts.within(asked) or asked


def _tried(
    engine: EngineSpec | None, policy: str, configurations: list[Configuration]
) -> list[Configuration]:
    """Return what a run tries in which the user chose nothing: what the engine takes of the
    policy's configurations, or layouts that are made up of what it takes.
    """
    from cachewitness.workloads.configurations import Configuration

    accepts = engine.kind.accepts if engine else None
    if accepts is None:
        return configurations
    return accepts.within(configurations) or [
        Configuration(layout, policy=policy) for layout in accepts.made_up()
    ]


def _own(
    configurations: list[Configuration], layouts: Sequence[str], options: dict[str, Any]
) -> Chosen:
    """Return what an engine with layouts of its own is asked on: those, with options of its own."""
    from cachewitness._util.names import nearest

    known = {configuration.layout.name for configuration in configurations}
    for name in layouts:
        if name not in known:
            raise UsageError(
                "--layout: the engine has layouts of its own, none called"
                f" {name!r}{nearest(name, known)}"
            )
    if not layouts and not options:
        return Chosen(configurations)
    asked = [one for one in configurations if not layouts or one.layout.name in layouts]
    chosen = [replace(one, options={**one.options, **options}) for one in asked]
    return Chosen(chosen, named=bool(layouts), exact=bool(layouts))


def fitted(
    policy: str, layout: str | Layout, options: dict[str, Any], release: str | None
) -> Configuration:
    """Return a configuration on what the policy's system makes of a layout that the user named.

    Of a layout that the user did not name, it is as the layout says if the system refuses it:
    whoever opens it says so.
    """
    from cachewitness.engines import policy as policies
    from cachewitness.workloads import layouts
    from cachewitness.workloads.configurations import Configuration

    kind = policies.get(policy)
    if isinstance(layout, str):
        asked = layouts.load(layout)
        model = layouts.model(layout) if layouts.has_model(layout) else None
        if kind.layouts.fit is not None:
            asked, options = kind.layouts.fit(asked, model, options, release or "")
    else:
        asked = layout
        if kind.layouts.fit is not None:
            with suppress(UsageError):
                asked, options = kind.layouts.fit(asked, None, options, release or "")
    return Configuration(asked, options, policy, kind.layouts.least_pages)


def replaced_by(
    policy: str, configurations: Sequence[Configuration], release: str | None
) -> list[str]:
    """Return what runs on configurations replace of the system's own defaults, or how it sizes
    them; a line each.
    """
    from cachewitness.engines import policy as policies

    remarks = policies.get(policy).layouts.remarks
    if remarks is None or not all(configuration.policy for configuration in configurations):
        return []
    lines: dict[str, None] = {}
    for configuration in configurations:
        with suppress(UsageError):
            lines |= dict.fromkeys(
                remarks(configuration.layout, configuration.options, release or "")
            )
    return list(lines)


def exported_of(policy: str, options: Sequence[str]) -> list[Exported]:
    """Return the environment variables of a policy's system that are set and that no option
    outranks.
    """
    from cachewitness.engines import policy as policies
    from cachewitness.engines.environment import exported

    return exported(policies.get(policy).variables, dict(_option(text) for text in options))


def options_of(texts: Sequence[str]) -> dict[str, Any]:
    """Return the policy's options that the user named. What traces are measured by is checked
    here.
    """
    chosen = dict(_option(text) for text in texts)
    for key in _MEASURES:
        value = chosen.get(key, 1)
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < 0
        ):
            raise UsageError(
                f"--option: {key} is a whole number, at least 0, or none; not {value!r}"
            )
    return chosen


def suites_of(names: Sequence[str]) -> list[Suite]:
    """Return the suites by name, all of them if none is named."""
    from cachewitness._util.names import nearest
    from cachewitness.cli.suites import SUITES

    known = {suite.name: suite for suite in SUITES}
    for name in names:
        if name not in known:
            raise UsageError(f"--suite: no suite is called {name!r}{nearest(name, list(known))}")
    return [known[name] for name in dict.fromkeys(names)] or list(SUITES)


def _option(text: str) -> tuple[str, Any]:
    """Read `key=value`; the value is JSON if it can be read as such (`none` is null), else a
    text; names are always texts.
    """
    import json

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--option: {text!r} is not of the form key=value")
    if key in _NAMES:
        return key, value
    if value.lower() in ("none", "true", "false"):
        value = {"none": "null"}.get(value.lower(), value.lower())
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def say_written(paths: Sequence[Path], *, as_json: bool, **more: Any) -> None:
    """Say which files were written, one a line, or with `more` of the document `written`."""
    if as_json:
        from cachewitness.cli import documents

        print_json(documents.Written(files=[str(path) for path in paths], **more))
        return
    for path in paths:
        output.echo(printable(f"written: {path}"))


def finish(
    code: int, files: Mapping[Path, bytes], problems: Sequence[str], *, quiet: bool = False
) -> int:
    """Write files when the verdict is printed, say what could not be written, and return the exit
    code.

    It is that of the verdict, unless that is a pass and something that was asked for is missing.
    """
    from cachewitness._util import files as writing

    failed = list(dict.fromkeys(problems))
    for path, content in files.items():
        try:
            writing.write(path, [content])
            if not quiet:
                output.echo(printable(f"written: {path}"))
        except UsageError as error:
            failed.append(str(error))
    for line in failed:
        click.echo(f"cachewitness: {one_line(line)}", err=True)
    return code or (EXIT_INCOMPLETE if failed else code)
