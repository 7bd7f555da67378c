"""cachewitness from a program: the names here are the public API, whatever the folders behind them
are called. `python -m cachewitness` is the command line.

* Run and judge: `verify` runs suites on an engine, `check` judges a recorded history, `suite` makes
  a pytest test of every trace, `drive` runs one trace. They answer with a `Report` of `Failure`s,
  or with a `Result`, its `Finding`s, `Tally` and `Activity`.
* What is asked: a `Trace` (`random_trace` draws one) of operations such as `Submit` and `Step`,
  under a `TraceHeader`; a `Configuration` of a `Layout` of `GroupSpec`s (`load_layout`).
* What happened: a `History` (`parse_history` reads one as text) of a `Header`, with its `Pool`s,
  `Group`s, `Rules`, `Retention`, `Eviction`, `Stores` and `Unkeyed`, and of events such as
  `Acquire` and `Release`. A `Checker` of your own sees these.
* An engine: an `EngineKind` opens an `Engine`. A `Driver` is one over an adapter, which is written
  from `Adapter` or `FirstCome` (requests are served in the order in which they came) in terms of
  `Asked`, `Scheduled`, `Refused`, `Tables`, `KeyId`, `Claim`, `Count` and `UnpublishReason`;
  `ManagerAdapter` and `ObservedManager` fit a cache manager of vLLM's shape. `CAPABILITIES`,
  `NO_STATES`, `describe_full_attention`, `describe_vllm` and `vllm_retention` make its header. What
  it refuses is a `UsageError`, what it misses an `EngineMissing`.
* Parts that an `EngineKind` may have: `Accepts`, `AnswersLevel`, `Controls`, `KnownFindings`,
  `OwnConfigurations`, `OwnProcess`, `Prompts`, `SecondTier`, `Texts`, `WrittenFor`.
* A policy with a reference: a `PolicyKind` with its `Rule`s and where it stands on the `AXES`;
  `load_policy` finds one by name. Its parts: `Choices`, `Drawing`, `LayoutRules`, `OnTensors`,
  `Sizing` (a command that shows a `Plan`: `plan_as_json`, `show_plan`) and `PolicyAnswers`.
* `Questions` for vectors (`vector_case`, `replay_cases`, `answer_case`, `Flag`, `LookupInput`).
* Seeded faults: `mutant` makes one, with `wrap` around a method of the `cache_manager`.

* Two modules for tests with Hypothesis (extra `machines`): `machines` has `Allocator`, the base of
  a test of a block pool, `AllocatorProcess`, the same for a program in any language, and state
  machines of engines; `strategies` draws traces, layouts and prompts.

A name is imported when it is first asked for, so that `cachewitness.core`, which judges, imports
nothing but itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachewitness import machines as machines
    from cachewitness import strategies as strategies
    from cachewitness._util.errors import EngineMissing, UsageError
    from cachewitness.api.suite import suite
    from cachewitness.api.verify import check, verify
    from cachewitness.core.checkers.finding import Finding, Tally
    from cachewitness.core.checkers.protocol import Checker
    from cachewitness.core.driving import drive
    from cachewitness.core.engine import Engine
    from cachewitness.core.events import (
        Acquire,
        Eviction,
        Group,
        Header,
        History,
        Pool,
        Release,
        Retention,
        Rules,
        Stores,
        Unkeyed,
        UnpublishReason,
    )
    from cachewitness.core.result import Activity, Result
    from cachewitness.core.trace_format import GroupSpec, Layout, Step, Submit, Trace, TraceHeader
    from cachewitness.engines.accepts import Accepts
    from cachewitness.engines.adapter import CAPABILITIES, Adapter, Asked, Refused, Scheduled
    from cachewitness.engines.answers import Prompts
    from cachewitness.engines.answers_level import AnswersLevel, Controls, Texts
    from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
    from cachewitness.engines.choices import Choices
    from cachewitness.engines.drawing import Drawing
    from cachewitness.engines.driver import Driver
    from cachewitness.engines.fault_tools import core as cache_manager
    from cachewitness.engines.fault_tools import wrap
    from cachewitness.engines.first_come import FirstCome
    from cachewitness.engines.full_attention import NO_STATES
    from cachewitness.engines.full_attention import describe as describe_full_attention
    from cachewitness.engines.kind import EngineKind
    from cachewitness.engines.known_findings import KnownFindings
    from cachewitness.engines.layout_rules import LayoutRules
    from cachewitness.engines.manager_adapter import ManagerAdapter
    from cachewitness.engines.mutant import mutant
    from cachewitness.engines.observe import ObservedManager
    from cachewitness.engines.on_tensors import OnTensors
    from cachewitness.engines.own_configurations import OwnConfigurations
    from cachewitness.engines.own_process import OwnProcess
    from cachewitness.engines.policy import AXES, PolicyKind, Rule
    from cachewitness.engines.policy import get as load_policy
    from cachewitness.engines.second_tier import SecondTier
    from cachewitness.engines.sizing import Sizing
    from cachewitness.engines.written_for import WrittenFor
    from cachewitness.plan.options import as_json as plan_as_json
    from cachewitness.plan.options import show as show_plan
    from cachewitness.plan.result import Plan
    from cachewitness.report.summary import Failure, Report
    from cachewitness.systems.vllm.header import describe as describe_vllm
    from cachewitness.systems.vllm.header import retention as vllm_retention
    from cachewitness.vectors.case import PolicyAnswers, Questions
    from cachewitness.vectors.case import case as vector_case
    from cachewitness.vectors.fill import answered as answer_case
    from cachewitness.vectors.form import Flag, LookupInput
    from cachewitness.vectors.scripts import replays as replay_cases
    from cachewitness.workloads.configurations import Configuration
    from cachewitness.workloads.generate import random_trace
    from cachewitness.workloads.layouts import load as load_layout
    from cachewitness.workloads.notation import parse as parse_history

__version__ = "0.1.0"

_HOMES = {
    "_util.errors": ("EngineMissing", "UsageError"),
    "api.suite": ("suite",),
    "api.verify": ("check", "verify"),
    "core.checkers.finding": ("Finding", "Tally"),
    "core.checkers.protocol": ("Checker",),
    "core.driving": ("drive",),
    "core.engine": ("Engine",),
    "core.events": (
        "Acquire",
        "Eviction",
        "Group",
        "Header",
        "History",
        "Pool",
        "Release",
        "Retention",
        "Rules",
        "Stores",
        "Unkeyed",
        "UnpublishReason",
    ),
    "core.result": ("Activity", "Result"),
    "core.trace_format": ("GroupSpec", "Layout", "Step", "Submit", "Trace", "TraceHeader"),
    "engines.accepts": ("Accepts",),
    "engines.adapter": ("CAPABILITIES", "Adapter", "Asked", "Refused", "Scheduled"),
    "engines.answers": ("Prompts",),
    "engines.answers_level": ("AnswersLevel", "Controls", "Texts"),
    "engines.cache_state": ("Claim", "Count", "KeyId", "Tables"),
    "engines.choices": ("Choices",),
    "engines.drawing": ("Drawing",),
    "engines.driver": ("Driver",),
    "engines.fault_tools": ("core as cache_manager", "wrap"),
    "engines.first_come": ("FirstCome",),
    "engines.full_attention": ("NO_STATES", "describe as describe_full_attention"),
    "engines.kind": ("EngineKind",),
    "engines.known_findings": ("KnownFindings",),
    "engines.layout_rules": ("LayoutRules",),
    "engines.manager_adapter": ("ManagerAdapter",),
    "engines.mutant": ("mutant",),
    "engines.observe": ("ObservedManager",),
    "engines.on_tensors": ("OnTensors",),
    "engines.own_configurations": ("OwnConfigurations",),
    "engines.own_process": ("OwnProcess",),
    "engines.policy": ("AXES", "PolicyKind", "Rule", "get as load_policy"),
    "engines.second_tier": ("SecondTier",),
    "engines.sizing": ("Sizing",),
    "engines.written_for": ("WrittenFor",),
    "plan.options": ("as_json as plan_as_json", "show as show_plan"),
    "plan.result": ("Plan",),
    "report.summary": ("Failure", "Report"),
    "systems.vllm.header": ("describe as describe_vllm", "retention as vllm_retention"),
    "vectors.case": ("PolicyAnswers", "Questions", "case as vector_case"),
    "vectors.fill": ("answered as answer_case",),
    "vectors.form": ("Flag", "LookupInput"),
    "vectors.scripts": ("replays as replay_cases",),
    "workloads.configurations": ("Configuration",),
    "workloads.generate": ("random_trace",),
    "workloads.layouts": ("load as load_layout",),
    "workloads.notation": ("parse as parse_history",),
}
"""The names of each module; `x as y` is a name that is longer here, where no module says whose it
is."""
_HOME = {
    name.rpartition(" ")[2]: (module, name.partition(" ")[0])
    for module, names in _HOMES.items()
    for name in names
}
_DOORS = ("machines", "strategies")
"""Modules of public names that need an extra."""
__all__ = [
    "AXES",
    "CAPABILITIES",
    "NO_STATES",
    "Accepts",
    "Acquire",
    "Activity",
    "Adapter",
    "AnswersLevel",
    "Asked",
    "Checker",
    "Choices",
    "Claim",
    "Configuration",
    "Controls",
    "Count",
    "Drawing",
    "Driver",
    "Engine",
    "EngineKind",
    "EngineMissing",
    "Eviction",
    "Failure",
    "Finding",
    "FirstCome",
    "Flag",
    "Group",
    "GroupSpec",
    "Header",
    "History",
    "KeyId",
    "KnownFindings",
    "Layout",
    "LayoutRules",
    "LookupInput",
    "ManagerAdapter",
    "ObservedManager",
    "OnTensors",
    "OwnConfigurations",
    "OwnProcess",
    "Plan",
    "PolicyAnswers",
    "PolicyKind",
    "Pool",
    "Prompts",
    "Questions",
    "Refused",
    "Release",
    "Report",
    "Result",
    "Retention",
    "Rule",
    "Rules",
    "Scheduled",
    "SecondTier",
    "Sizing",
    "Step",
    "Stores",
    "Submit",
    "Tables",
    "Tally",
    "Texts",
    "Trace",
    "TraceHeader",
    "Unkeyed",
    "UnpublishReason",
    "UsageError",
    "WrittenFor",
    "__version__",
    "answer_case",
    "cache_manager",
    "check",
    "describe_full_attention",
    "describe_vllm",
    "drive",
    "load_layout",
    "load_policy",
    "machines",
    "mutant",
    "parse_history",
    "plan_as_json",
    "random_trace",
    "replay_cases",
    "show_plan",
    "strategies",
    "suite",
    "vector_case",
    "verify",
    "vllm_retention",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _DOORS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_DOORS})
