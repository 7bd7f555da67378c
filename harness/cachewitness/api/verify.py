"""Run suites on an engine, or judge a history, from a program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cachewitness._util.errors import UsageError
from cachewitness.cli.options import (
    Chosen,
    Isolate,
    configurations_of,
    engine_of,
    expectations_of,
    suites_of,
)
from cachewitness.core import driving, validate
from cachewitness.core.checkers.protocol import Checker
from cachewitness.core.events import History
from cachewitness.core.result import Result
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.summary import Report
from cachewitness.sessions.run.runner import Runner


def verify(
    engine: str | EngineKind = "reference",
    *,
    policy: str = "vllm",
    layouts: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    suites: Sequence[str] = (),
    seed: int = 0,
    seconds: float = 0.0,
    expected: Path | None = None,
    fail_fast: bool = False,
) -> Report:
    """Run suites on an engine and return the report, as `cachewitness run` does.

    `engine` is a name with options (`vllm:source=PATH`; an engine of another package runs in a
    process of its own) or a kind, which runs in this one. `layouts` are names or paths of TOML
    files, `options` those of the policy, `suites` names; what is left out is as the command line
    has it. `seconds` bounds the random suites; 0: a fixed number of traces. `expected` is a file of
    expected failures; `fail_fast` ends the run at the first that is not. A suite that was named and
    did not run counts as not checked.
    `Report.exit_code` is the verdict: 0 pass, 1 fail, 2 unknown, 3 the harness itself is wrong, 4
    events that cannot be followed, 5 nothing checked.

    Raises UsageError for what does not exist or does not fit.
    """
    spec, chosen = chosen_of(engine, policy, layouts, options, suites)
    if seed < 0:
        raise UsageError(f"seed: {seed} is less than 0")
    if seconds < 0:
        raise UsageError(f"seconds: {seconds} is less than 0")
    runner = Runner(
        spec,
        chosen.configurations,
        seed=seed,
        seconds=seconds,
        expected=expectations_of(expected, strict=False),
        policy=policy,
        chosen_configurations=chosen.named,
        chosen_suites=bool(suites),
        exact_configurations=chosen.exact,
        fail_fast=fail_fast,
    )
    return runner.run(suites_of(suites))


def check(history: str | Path | History, checkers: Iterable[Checker] | None = None) -> Result:
    """Judge a recorded history under the checkers (all of them by default), without an engine.

    `history` is a file (docs/reference/formats.md) or a history in memory. `Result.findings` are
    the contradictions, `Result.tallies` how often each checker had something to judge.

    Raises UsageError naming file, line and field for a file that does not fit the format or refers
    to what does not exist.
    """
    if isinstance(history, History):
        return driving.judge(history.header, iter(history.events), checkers)
    return driving.judge(*validate.events(Path(history)), checkers)


def chosen_of(
    engine: str | EngineKind,
    policy: str,
    layouts: Sequence[str],
    options: Mapping[str, object] | None,
    suites: Sequence[str],
) -> tuple[EngineSpec, Chosen]:
    """Return the engine and the configurations that a program asks for. Raises UsageError for
    what does not exist.
    """
    for name, given in ("layouts", layouts), ("suites", suites):
        if isinstance(given, str):
            raise UsageError(f"{name}: {given!r} is one name; give a list of names: [{given!r}]")
    if not isinstance(engine, (str, EngineKind)):
        raise UsageError(f"engine: {engine!r} is neither an engine's name nor an EngineKind")
    spec = (
        engine_of(engine, policy, isolate=Isolate())
        if isinstance(engine, str)
        else EngineSpec(engine, {}, engine.name)
    )
    texts = [f"{key}={json.dumps(value)}" for key, value in (options or {}).items()]
    return spec, configurations_of(policy, layouts, texts, None, spec)
