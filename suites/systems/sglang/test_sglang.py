"""SGLang's own radix cache: its traces are clean, faults in its source are found, and what it
cannot do is one line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Publish, ResetDone, StepBegin
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import (
    Abort,
    GroupSpec,
    Layout,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.systems.sglang import source
from cachewitness.systems.sglang.configurations import configurations
from cachewitness.systems.sglang.declared import CAPABILITIES
from cachewitness.systems.sglang.options import read
from cachewitness.systems.sglang.room import Room
from cachewitness.workloads.capabilities import lacking
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import SCENARIOS
from cachewitness_faults.sglang.faults import FAULTS
from suites.support.real_engines import SGLANG_SOURCE as SOURCE
from suites.support.real_engines import needs_sglang as installed

SEEDS = 24


def engine(**chosen: str) -> str:
    options = [f"{name}={value}" for name, value in {"source": SOURCE, **chosen}.items() if value]
    return f"sglang:{','.join(options)}" if options else "sglang"


def ran(trace: Trace, mutant: str = "", caching: str = "") -> Result:
    return drive(trace, parse(engine(mutant=mutant, caching=caching)).open(trace.header))


def unlisted(result: Result) -> list[str]:
    """Return what fixtures/expected/sglang-0.5.txt does not list: where windows are, prompts go
    into the tree in parts.
    """
    windows = any(group.kind == "sliding" for group in result.history.header.groups)
    return [
        one.sentence
        for one in result.findings
        if not (windows and one.anomaly == "lost-replay-boundary")
    ]


def takes(trace: Trace) -> bool:
    """Whether the engine takes everything that a trace asks for."""
    return not lacking(trace, CAPABILITIES)


def random_traces(configuration: Configuration) -> list[Trace]:
    every = [
        random_trace(configuration.shape("manager"), seed, withdraw=False) for seed in range(SEEDS)
    ]
    return [trace for trace in every if takes(trace)]


@installed
@pytest.mark.parametrize("configuration", configurations(), ids=lambda one: one.name)
def test_scenarios_and_random_traces_are_clean_and_are_hit(configuration: Configuration) -> None:
    """Everything on every configuration; a cache that never hits would be clean too."""
    shape = configuration.shape("manager")
    activity = Activity()
    scenarios = [scenario.trace(shape) for scenario in SCENARIOS if scenario.applies(shape)]
    for trace in [*filter(takes, scenarios), *random_traces(configuration)]:
        result = ran(trace)
        assert unlisted(result) == [], trace.header.name
        activity.add(result.activity)
    recurrent = any(group.kind == "recurrent" for group in configuration.layout.groups)
    assert (
        activity.hits > 50 and activity.evictions > 50 and (activity.restored > 20 or not recurrent)
    )


@installed
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_as_named_and_the_same_trace_passes_without_it(fault: Mutant) -> None:
    for trace in (
        trace for configuration in configurations() for trace in random_traces(configuration)
    ):
        found = {(finding.anomaly, finding.checker) for finding in ran(trace, fault.name).findings}
        if (fault.anomaly, fault.checker) in found:
            assert unlisted(ran(trace)) == []
            return
    pytest.fail(f"{fault.name} survived")


@installed
def test_a_reset_is_refused_while_somebody_waits_and_done_when_it_has_ended() -> None:
    """SGLang's flush wants nobody there; that is declared, and the refusal is counted as
    excused.
    """
    trace = Trace(_header(), [Submit("r1", "a:8"), Reset(), Abort("r1"), Reset()])
    result = ran(trace)
    assert [event.ok for event in result.history.events if isinstance(event, ResetDone)] == [
        False,
        True,
    ]
    assert result.findings == []
    assert next(tally for tally in result.tallies if tally.checker == "progress").excused == {
        "idle_resets": 1
    }


@installed
def test_the_state_that_a_chunk_leaves_is_copied_in_a_step_of_its_own() -> None:
    """The copy's step has no runs; the key of the state is committed with it."""
    header = _header(GroupSpec("full", 1), GroupSpec("recurrent", 8))
    result = ran(Trace(header, [Submit("r1", "a:9"), Step(run=[("r1", 5)]), Step(run=[("r1", 4)])]))
    begun = [event for event in result.history.events if isinstance(event, StepBegin)]
    assert [(len(event.runs), len(event.copies)) for event in begun] == [
        (1, 0),
        (0, 1),
        (1, 0),
        (0, 1),
    ]
    published = [
        event.length
        for event in result.history.events
        if isinstance(event, Publish) and event.group == 1
    ]
    assert published == [5, 9] and result.findings == []


def beside_others(states: int, sharing: int) -> Result:
    """Run a request that asks for all of its prompt in each of nine steps, beside others that
    compute one prompt in chunks.
    """
    names = [f"r{number}" for number in range(sharing)]
    layout = Layout("t", [GroupSpec("full", 1), GroupSpec("recurrent", 8)])
    header = TraceHeader("t", layout, 1600, options={"states": states})
    step = Step(run=[*((r, 1) for r in names), ("late", 30)])
    return ran(
        Trace(header, [*(Submit(r, "a:30") for r in names), Submit("late", "b:30"), *[step] * 9])
    )


@installed
@pytest.mark.parametrize(("sharing", "waits"), [(14, True), (10, False)])
def test_who_is_kept_out_lest_forked_states_find_no_room_is_not_stuck(
    sharing: int, waits: bool
) -> None:
    """Requests that compute one prompt chunk by chunk lock the same state: each needs another
    slot for a moment.
    """
    result = beside_others(30, sharing)
    begun = [
        event for event in result.history.events if isinstance(event, StepBegin) and event.asked
    ]
    assert ("late" not in {run.r for event in begun for run in event.runs}) is waits
    assert len(begun) == 9 and result.findings == []


@installed
@pytest.mark.parametrize(("states", "sharing"), [(10, 1), (30, 10)])
def test_who_is_kept_out_with_half_of_the_states_left_is_stuck(
    states: int, sharing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what is declared as reserved hides nobody who had room."""
    fits = Room.fits
    monkeypatch.setattr(
        Room, "fits", lambda room, req, tokens: req.rid != "late" and fits(room, req, tokens)
    )
    assert [(one.anomaly, one.r) for one in beside_others(states, sharing).findings] == [
        ("no-progress", "late")
    ]


@installed
@pytest.mark.parametrize("configuration", configurations(), ids=lambda one: one.name)
def test_without_its_cache_nothing_is_hit_and_nothing_is_found(
    configuration: Configuration,
) -> None:
    """The control: the traces hit with the cache and have no finding without it."""
    kept = Activity()
    off = Activity()
    for trace in random_traces(configuration):
        kept.add(ran(trace).activity)
        result = ran(trace, caching="off")
        assert result.findings == [], trace.header.name
        off.add(result.activity)
    assert kept.hits > 0 and off.hits == 0


@installed
@pytest.mark.parametrize(
    ("field", "salt", "found"),
    [
        ("extra_key", "tuned", {"cross-identity-hit"}),
        ("extra_key", "other", set()),
        ("cache_salt", "tuned", set()),
    ],
)
def test_an_extra_key_that_is_called_like_an_adapter_finds_what_that_computed(
    field: str, salt: str, found: set[str]
) -> None:
    """sgl-project/sglang#24638: they are joined to one text (`Req.__init__`)."""
    served = [Submit("r1", "a:9", adapter="tuned"), Step(run=[("r1", 9)])]
    asked = [Submit("r2", "a:9", salt=salt), Step(run=[("r2", 9)])]
    trace = Trace(_header(), [*served, *asked])
    result = drive(trace, parse(engine(salt=field)).open(trace.header))
    assert {one.anomaly for one in result.findings} == found


def test_caching_is_on_or_off() -> None:
    with pytest.raises(UsageError, match="caching is on or off, not 'no'"):
        parse("sglang:caching=no").open(_header())


def test_every_fault_says_in_advance_what_finds_it() -> None:
    assert len(FAULTS) >= 6 and {fault.engines for fault in FAULTS} == {("sglang",)}
    assert {fault.checker for fault in FAULTS} >= {
        "identity",
        "safety-law",
        "ownership",
        "no-fabricated-snapshots",
    }


def test_what_is_not_sglang_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sglang/srt there"):
        source.load(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "named"), [("__version__ = version = '0.5.24'", "0.5.24"), ("", "unknown")]
)
def test_a_release_that_the_stand_ins_were_not_written_for_is_named(
    tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "_version.py").write_text(text, encoding="utf-8")
    with pytest.raises(
        UsageError, match=rf"SGLang {named}: its cache is driven in release 0\.5\.23 alone"
    ):
        source.load(str(tmp_path))


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([GroupSpec("recurrent", 8)], {}, "one group of full attention"),
        (
            [GroupSpec("full", 4), GroupSpec("recurrent", 8)],
            {},
            "takes pages of one token; `extra_buffer` is not driven",
        ),
        ([GroupSpec("full", 4), GroupSpec("sliding", 8, window=8)], {}, "one page size"),
        ([GroupSpec("full", 4), GroupSpec("full", 4)], {}, "one group of them is enough"),
        ([GroupSpec("full", 4)], {"strategy": "extra_buffer"}, "no option 'strategy'"),
        ([GroupSpec("full", 1), GroupSpec("recurrent", 8)], {"states": 0}, "at least 1; not 0"),
        ([GroupSpec("full", 4)], {"retention_interval": 0}, "no option 'retention_interval'"),
    ],
)
def test_what_sglang_has_not_is_refused(
    groups: list[GroupSpec], options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(_header(*groups, **options))


def _header(*groups: GroupSpec, **options: object) -> TraceHeader:
    return TraceHeader(
        "t", Layout("t", list(groups) or [GroupSpec("full", 4)]), 40, options=dict(options)
    )
