"""A campaign on a real PostgreSQL server comes to what it comes to in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachewitness.cli import invoke
from cachewitness.sessions.campaign import driver as drivers
from suites.support import postgresql
from suites.support.campaigns import SMALL, InTurn, Remembered, came_to, driven, planned, settings


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if why := postgresql.missing():
        pytest.skip(why)
    with postgresql.server() as url:
        yield url


def test_a_campaign_on_a_server_comes_to_the_same(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "POLL", 0.0)
    made = planned(SMALL, tmp_path)
    remembered = Remembered()
    in_file = driven(made, settings(tmp_path), InTurn(remembered))
    on_server = driven(made, settings(tmp_path, database=server), InTurn(remembered))
    assert came_to(on_server) == came_to(in_file)


def test_processes_work_on_a_server(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, its workers, a store that fsspec reaches, and once more with nothing to do."""
    pytest.importorskip(
        "fsspec", reason="needs the extra `cluster`: pip install 'cachewitness[cluster]'"
    )
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(SMALL.replace('"small"', '"processes"'))
    options = ["campaign", "c.toml", "--database", server, "--traces", f"file://{tmp_path}/traces"]
    assert [invoke([*options, "--workers", workers]) for workers in ("2", "1")] == [1, 1]
    assert list((tmp_path / "traces").glob("*/*.trace.jsonl"))
