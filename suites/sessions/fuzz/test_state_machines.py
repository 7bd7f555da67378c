"""State machines on every policy, at both levels: the references contradict nothing, and a planted
fault is found.

`CACHEWITNESS_ENGINE` names another engine than the reference, in the words of `--engine`;
`CACHEWITNESS_EXAMPLES` how many examples each machine runs, at random, in place of the few that are
the same each time.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.engine import Engine
from cachewitness.core.events import Event, Header, ResetDone, Version
from cachewitness.core.result import EXIT_FAIL
from cachewitness.core.trace_format import (
    GroupSpec,
    Layout,
    Op,
    Step,
    TraceHeader,
    UpdateWeights,
    load,
)
from cachewitness.engines import policy as policies
from cachewitness.engines.accepts import Accepts
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.sessions.fuzz.campaign import levels_of
from cachewitness.sessions.fuzz.machines import (
    SETTINGS,
    Contradiction,
    Machine,
    manager_machine,
    run,
    scheduler_machine,
)
from cachewitness.sessions.run.store import DEFAULT_FOLDER
from suites.support.sampled import chosen, fewer, sampled

ENGINE = parse(os.environ.get("CACHEWITNESS_ENGINE", "reference"))
EXAMPLES = int(os.environ.get("CACHEWITNESS_EXAMPLES", "0"))
FEW = fewer(30, 8)
MANY = settings(SETTINGS, max_examples=EXAMPLES or FEW, derandomize=not EXAMPLES)
ENOUGH_TO_FIND = settings(SETTINGS, max_examples=400, derandomize=True)
MACHINES = {"manager": manager_machine, "scheduler": scheduler_machine}
EVERYWHERE = [
    (policy, level)
    for policy in ENGINE.kind.policies or policies.names()
    for level in levels_of(ENGINE, policy)
]
NEVER_EVICTS = {"tensorrt_edge"}
"""It takes no key away for want of room."""
REFERENCES = [
    (policy, level) for policy in policies.names() for level in policies.get(policy).levels
]
MUTANTS = {
    "manager": {
        "window-freed-early": {"premature-release"},
        "replay-boundary-masked": {"lost-replay-boundary"},
    },
    "scheduler": {
        "window-freed-by-drafts": {
            "premature-release",  # of a window
            "use-after-free",  # of a state, whose page is gone when it is read
        },
        "drafts-published": {
            "partial-commit",  # of attention
            "fabricated-snapshot",  # of a state
            "engine-crashed",  # the policy asserts that it gives no block a second key
        },
    },
}
"""Faults, and as what they can be found."""


def found(machine: type[Machine]) -> Contradiction:
    with pytest.raises(Contradiction) as raised:
        run_state_machine_as_test(machine, settings=ENOUGH_TO_FIND)
    return raised.value


def command(contradiction: Contradiction) -> list[str]:
    """Return the words of the command on the last line of a failure."""
    return shlex.split(str(contradiction).splitlines()[-1].removeprefix("replay: "))


class OldWeights:
    """An engine that keeps everything it has when new weights come, and says that it does not."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._step = 0

    def describe(self) -> Header:
        return self._engine.describe()

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, UpdateWeights):
            step = self._step
            return [
                ResetDone(ok=True, step=step),
                Version(weights=op.version, adapter=op.adapter, step=step),
            ]
        events = self._engine.apply(op)
        self._step = max([self._step, *(event.step for event in events)])
        return events

    def close(self) -> None:
        self._engine.close()


def with_old_weights() -> EngineSpec:
    reference = parse("reference")

    def opened(header: TraceHeader, options: Mapping[str, str]) -> OldWeights:
        return OldWeights(reference.kind.open(header, options))

    return replace(reference, kind=replace(reference.kind, open=opened))


@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
def test_nothing_contradicts_in_any_order_of_operations(policy: str, level: str) -> None:
    """And something happened: `run` fails if nothing was hit or nothing evicted."""
    machine = MACHINES[level](ENGINE, policy, DEFAULT_FOLDER, evicts=policy not in NEVER_EVICTS)
    run(machine, MANY)
    assert machine.happened.operations > 10 * FEW
    assert machine.happened.lookups > 0


@pytest.mark.parametrize(("policy", "level"), sampled(REFERENCES, 3))
def test_every_machine_finds_an_engine_that_keeps_what_old_weights_computed(
    policy: str, level: str, tmp_path: Path
) -> None:
    """What it found is small, and its trace alone fails again as it did; without the fault the
    trace is clean.
    """
    faulty = with_old_weights()
    contradiction = found(MACHINES[level](faulty, policy, tmp_path))
    trace = load(Path(command(contradiction)[2]))
    assert any(isinstance(op, UpdateWeights) for op in trace.ops) and len(trace.ops) <= 8
    again = {
        f"Contradiction[{found.anomaly}]": found.sentence
        for found in drive(trace, faulty.open(trace.header)).findings
    }
    assert again[type(contradiction).__name__] in " ".join(str(contradiction).split())
    assert drive(trace, parse("reference").open(trace.header)).findings == []


@pytest.mark.parametrize(
    ("level", "mutant"),
    chosen(
        [(level, mutant) for level, known in MUTANTS.items() for mutant in known],
        *[("manager", mutant) for mutant in MUTANTS["manager"]],
        ("scheduler", "window-freed-by-drafts"),
    ),
)
def test_a_planted_mutant_is_found_and_one_command_replays_it(
    level: str, mutant: str, tmp_path: Path
) -> None:
    """The last line of the failure is the command; it ends as a failure does, with the same
    anomaly.
    """
    contradiction = found(MACHINES[level](f"reference:mutant={mutant}", "vllm", tmp_path))
    assert type(contradiction).__name__ in {
        f"Contradiction[{anomaly}]" for anomaly in MUTANTS[level][mutant]
    }
    program, *words = command(contradiction)
    assert program == "cachewitness"
    assert invoke(words) == EXIT_FAIL


def test_a_trace_says_that_it_withdraws(tmp_path: Path) -> None:
    """An engine that cannot withdraw does not run it by mistake."""
    contradiction = found(manager_machine("reference:mutant=withdrawn-keys-stay", folder=tmp_path))
    trace = load(Path(command(contradiction)[2]))
    assert any(isinstance(op, Step) and op.withdraw for op in trace.ops)
    assert trace.header.needs == ["withdraw"]


@pytest.mark.parametrize(
    ("engine", "policy", "message"),
    [
        ("refrence", "vllm", "did you mean 'reference'"),  # codespell:ignore refrence
        ("reference", "vlm", "no policy is called 'vlm'"),
        ("reference", "lmcache", "does not follow policy 'lmcache' at manager level"),
    ],
)
def test_an_engine_without_a_level_or_a_policy_is_refused_in_one_line(
    engine: str, policy: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        manager_machine(engine, policy)
    assert "\n" not in str(raised.value)


STATES = Layout("states", [GroupSpec("recurrent", 16)])


@pytest.mark.parametrize("level", MACHINES)
def test_recurrent_states_alone(level: str, tmp_path: Path) -> None:
    """A configuration that is hardly ever drawn runs if it is named."""
    machine = MACHINES[level](
        "reference", "vllm", tmp_path, layouts=[STATES], options={"mamba_cache_mode": "align"}
    )
    run(machine, MANY)
    assert machine.tried.refused == 0 and machine.happened.hits > 0


def only_full_attention() -> EngineSpec:
    """Return an engine for one layout alone, like the tutorial's: with options it refuses all."""
    reference = parse("reference")

    def opened(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        if [group.kind for group in header.layout.groups] != ["full"] or header.options:
            raise UsageError("this engine is for one group of full attention")
        return reference.kind.open(header, options)

    return replace(reference, kind=replace(reference.kind, open=opened))


def test_a_machine_whose_engine_refuses_nearly_everything_fails_and_says_so(
    tmp_path: Path,
) -> None:
    machine = manager_machine(only_full_attention(), folder=tmp_path)
    with pytest.raises(AssertionError, match=r"refused [\d,]+ of [\d,]+ drawn configurations"):
        machine.TestCase("runTest").runTest()
    named = manager_machine(only_full_attention(), folder=tmp_path, layouts=["full"])
    run(named, MANY)
    assert named.tried.refused == 0 and named.happened.evictions > 0
    spec = only_full_attention()
    says = replace(spec.kind, accepts=Accepts(kinds=("full",), groups_max=1, options={}))
    declared = manager_machine(replace(spec, kind=says), folder=tmp_path)
    run(declared, settings(MANY, max_examples=20))
    assert declared.tried.refused == 0 and declared.happened.evictions > 0


def test_a_machine_that_hits_nothing_fails_with_its_counts(tmp_path: Path) -> None:
    machine = manager_machine(folder=tmp_path, layouts=["full"], options={"enable_caching": False})
    with pytest.raises(AssertionError, match=r"no request hit anything.* operations, 0 hits and"):
        run(machine, settings(MANY, max_examples=2))
