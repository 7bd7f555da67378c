"""A package that registers a policy badly says so when it is asked for, and is in nobody else's
way.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cachewitness._util import plugins
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.engines import faults, policy, registry
from cachewitness.plan.systems import systems
from cachewitness.sessions.run.lockstep import followed
from suites.support.sampled import ALL, fewer

BROKEN = {
    "gone": ("nowhere.at.all:POLICY", "No module named 'nowhere'"),
    "nameless": ("cachewitness.engines.policy:NOTHING", "has no attribute 'NOTHING'"),
    "raising": ("raises_when_imported:POLICY", "RuntimeError: no licence"),
    "another-thing": ("cachewitness.engines.policy:AXES", "is a dict, not a PolicyKind"),
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Register a policy that cannot be had, beside those of this package; return its name."""
    name: str = request.param
    (tmp_path / "raises_when_imported.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = plugins.registered

    def registered(group: str) -> dict[str, EntryPoint]:
        found = own(group)
        return (
            found | {name: EntryPoint(name, BROKEN[name][0], group)}
            if group == policy.GROUP
            else found
        )

    monkeypatch.setattr(plugins, "registered", registered)
    return name


def test_it_says_why_when_it_is_asked_for(broken: str) -> None:
    with pytest.raises(UsageError, match=BROKEN[broken][1]):
        policy.get(broken)


def test_whatever_does_not_need_it_goes_on(broken: str) -> None:
    """Planting, the self-test, plans and the differential find what they need in other policies."""
    assert broken in policy.names() and broken not in {kind.name for kind in policy.loadable()}
    assert "salt-left-out" in faults.fitting(
        "vllm"
    ) and "furiosa-window-matched-short" in faults.fitting("furiosa")
    assert systems()[0] == "vllm" and followed()[0] == "vllm" and broken not in followed()
    if ALL or broken == "raising":
        assert invoke(["fuzz", "--operations", str(fewer(1500, 300))]) == 0


def test_what_is_about_every_policy_is_refused_in_one_line(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list, or a hunt, that left a policy out would be taken for a whole one."""
    for command in (["ls", "policies"], ["ls", "mutants"], ["fill"]):
        assert invoke(command) == 4
        assert BROKEN[broken][1] in capsys.readouterr().err


def test_an_engine_that_is_something_else_is_listed_as_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = plugins.registered
    other = EntryPoint("other", "cachewitness.engines.policy:AXES", registry.GROUP)
    monkeypatch.setattr(
        plugins,
        "registered",
        lambda group: own(group) | ({"other": other} if group == registry.GROUP else {}),
    )
    assert "not an EngineKind" in registry.kinds()["other"].summary


def test_faults_that_cannot_be_imported_say_whose_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And are in nobody's way who plants what another policy has."""
    own = plugins.every
    broken = EntryPoint("lmcache", "nowhere.at.all:MUTANTS", faults.GROUP)
    monkeypatch.setattr(
        plugins,
        "every",
        lambda group: own(group) + ([broken] if group == faults.GROUP else []),
    )
    assert invoke(["ls", "mutants"]) == 4
    assert "seeded faults of lmcache (nowhere.at.all:MUTANTS)" in capsys.readouterr().err
    assert "furiosa-window-matched-short" in faults.fitting("furiosa")


def test_several_distributions_may_bring_the_faults_of_one_policy() -> None:
    """What this package has comes first, and no fault has the name of another."""
    values = [entry.value for entry in plugins.every(faults.GROUP) if entry.name == "vllm"]
    assert [value.partition(".")[0] for value in values] == ["cachewitness", "cachewitness_faults"]
    mutants = [m.name for entry in plugins.every(faults.GROUP) for m in entry.load()]
    assert len(mutants) == len(set(mutants)) == len(faults.all_mutants())
