"""Dynamo's radix tree behind the events of a fleet; without Dynamo, what is said of that."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from cachewitness.cli import invoke
from cachewitness.sessions.route.delivery import DELIVERIES
from cachewitness.sessions.route.session import plan
from cachewitness_faults.dynamo import FAULTS, build
from suites.support.fleets import ENGINE, configuration, first_findings

ROUTER = "cachewitness.systems.dynamo.radix_tree:RadixTreeRouter"
ROUTE = ("route", "--router", ROUTER, "--traces", "2")
installed = pytest.mark.skipif(
    not find_spec("dynamo"), reason="needs ai-dynamo-runtime; ci/stage_routers.sh"
)


@pytest.mark.skipif(find_spec("dynamo") is not None, reason="Dynamo is installed")
def test_without_dynamo_the_line_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*ROUTE, "--layout", "full"]) == 4
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "pip install 'ai-dynamo-runtime==1.6.1'" in message


@installed
@pytest.mark.parametrize("delivery", ["whole", "late", "gaps", "twice", "media", "restart"])
def test_it_does_as_it_says(delivery: str) -> None:
    assert invoke([*ROUTE, "--layout", "full-mamba", "--delivery", delivery]) == 0


@installed
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_front_of_the_tree_is_found(fault: str) -> None:
    ways = [way for way in DELIVERIES if way != "seeds"]
    asked = plan(ENGINE, [*map(configuration, ("full", "full-swa"))], ways, 18, 0)
    found = first_findings(build(fault), asked)
    if all(first.anomaly != FAULTS[fault].finding for _, first in found):
        pytest.fail(f"{fault} survives")


@installed
def test_names_of_its_own_hide_a_worker(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`findings/dynamo-radix-tree-worker-names.sh` shows it without this package."""
    monkeypatch.chdir(str(tmp_path))
    assert invoke([*ROUTE, "--layout", "full", "--delivery", "seeds"]) == 1
    assert "missed-prefix" in capsys.readouterr().out


@installed
def test_several_groups_of_full_attention_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*ROUTE, "--layout", "full-full-narrow"]) == 4
    assert "one group of full attention" in capsys.readouterr().err
