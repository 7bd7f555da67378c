"""Dynamo's process behind the events of a fleet; without it, what is said of that."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from cachewitness.cli import invoke
from cachewitness.sessions.route.session import plan
from cachewitness.systems.dynamo.indexer import IndexerRouter, Publisher
from cachewitness_faults.dynamo import PROCESS_FAULTS, build
from suites.support.fleets import ENGINE, configuration, first_findings

ROUTER = "cachewitness.systems.dynamo.indexer:IndexerRouter"
ROUTE = ("route", "--router", ROUTER, "--traces", "2")
WAY = {
    "NeverRegistersAgain": "restart",
    "NamesNoReplay": "late",
    "ReplaysFromTheNext": "late",
    "LeavesMediaOut": "media",
}
"""How messages have to come for a fault to matter; for all others every message arrives."""
installed = pytest.mark.skipif(
    not (find_spec("dynamo") and find_spec("zmq")),
    reason="needs ai-dynamo-runtime and pyzmq; ci/stage_routers.sh",
)


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    IndexerRouter.stop()


@pytest.mark.skipif(find_spec("dynamo") is not None, reason="Dynamo is installed")
def test_without_dynamo_the_line_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*ROUTE, "--layout", "full"]) == 4
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "pip install 'ai-dynamo-runtime==1.6.1' pyzmq" in message


@installed
@pytest.mark.parametrize("delivery", ["whole", "late", "gaps", "twice", "restart"])
def test_it_does_as_it_says(delivery: str) -> None:
    assert invoke([*ROUTE, "--layout", "full-mamba", "--delivery", delivery]) == 0


@installed
@pytest.mark.parametrize("fault", PROCESS_FAULTS)
def test_a_fault_in_front_of_the_process_is_found(fault: str) -> None:
    layouts = [*map(configuration, ("full", "full-swa"))]
    faulty = build(fault, process=True)
    try:
        asked = plan(ENGINE, layouts, [WAY.get(fault, "whole")], 18, 0)
        for one, first in first_findings(faulty, asked):
            if not [*first_findings(IndexerRouter, [one])]:  # known to fail without a fault
                assert first.anomaly == PROCESS_FAULTS[fault].finding
                return
    finally:
        faulty.stop()
    pytest.fail(f"{fault} survives")


@installed
def test_a_copy_that_is_gone_takes_the_salt_along(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`findings/dynamo-indexer-forgets-a-salt.sh` shows it without this package."""
    monkeypatch.chdir(str(tmp_path))
    assert invoke([*ROUTE, "--traces", "6", "--layout", "full", "--delivery", "media"]) == 1
    printed = capsys.readouterr().out
    assert "missed-prefix" in printed
    assert "salt=" in printed


def _router() -> IndexerRouter:
    """Return a router with one worker."""
    router = IndexerRouter(
        [{"kind": "full_attention", "block_size": 4, "window": 0, "chunk": 0}], lambda *_: ()
    )
    router.take(0, 0, [])
    return router


@installed
@pytest.mark.parametrize(
    ("how", "message"),
    [(signal.SIGKILL, "query"), (signal.SIGSTOP, "query: no answer within 0.5 s")],
)
def test_a_process_that_is_gone_is_told_and_the_next_router_has_another(
    how: signal.Signals, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = _router()
    router._process._child.send_signal(how)
    monkeypatch.setattr("cachewitness.systems.dynamo.indexer.ANSWERS_S", 0.5)
    with pytest.raises(ConnectionError, match=message):
        router.foresee([1, 2, 3, 4, 5], "", "")
    monkeypatch.undo()
    after = _router()
    assert after._process is not router._process
    assert after.foresee([1, 2, 3, 4, 5], "", "") == {}


@installed
def test_a_subscriber_that_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    zmq = pytest.importorskip("zmq")
    monkeypatch.setattr("cachewitness.systems.dynamo.indexer.ANSWERS_S", 0.01)
    publisher = Publisher(zmq, 4)
    with pytest.raises(TimeoutError, match="does not subscribe"):
        publisher.wait_for_a_subscriber()
    publisher.close()


@installed
def test_several_groups_of_full_attention_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*ROUTE, "--layout", "full-full-narrow"]) == 4
    assert "one group of full attention" in capsys.readouterr().err
