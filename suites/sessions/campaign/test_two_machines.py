"""Workers on two machines, as network namespaces are: each reaches the server by a network of
its own, and one is cut off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachewitness.sessions.campaign import driver as drivers
from cachewitness.sessions.campaign.database import Database
from suites.support import postgresql
from suites.support.campaigns import InTurn, Remembered, came_to, driven, faulty, planned, settings
from suites.support.checkout import PYTHONPATH

ROOT = Path(__file__).resolve().parents[3]
TEXT = faulty("machines", lease=1.5)
MACHINES = {"cwtest-a": "10.231.1", "cwtest-b": "10.231.2"}


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def machines() -> Iterator[str]:
    """Yield the port of a server that two namespaces reach, each by its own pair of interfaces."""
    if why := postgresql.missing():
        pytest.skip(why)
    if os.geteuid() != 0 or shutil.which("ip") is None or not ip("netns", "add", "cwtest-probe"):
        pytest.skip("needs root and network namespaces (`ip netns`)")
    ip("netns", "del", "cwtest-probe")
    try:
        for name, net in MACHINES.items():
            inside = ("netns", "exec", name, "ip")
            assert ip("netns", "add", name) and ip(
                "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name
            )
            assert ip("addr", "add", f"{net}.1/24", "dev", name) and ip("link", "set", name, "up")
            assert ip(*inside, "addr", "add", f"{net}.2/24", "dev", "eth0") and ip(
                *inside, "link", "set", "eth0", "up"
            )
        with postgresql.server("127.0.0.1,10.231.1.1,10.231.2.1") as url:
            yield url.rpartition(":")[2]
    finally:
        for name in MACHINES:
            ip("link", "del", name)
            ip("netns", "del", name)


def started(folder: Path, url: str, *options: str, machine: str = "") -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", machine] if machine else []
    command += [
        sys.executable,
        "-P",
        "-m",
        "cachewitness.cli",
        "campaign",
        "c.toml",
        "--database",
        url,
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_machine_that_is_cut_off_loses_and_doubles_nothing(
    machines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker on each; the network of one is down for longer than its lease, and comes back
    with an outcome too late.
    """
    (tmp_path / "c.toml").write_text(TEXT)
    here = f"postgresql://postgres@127.0.0.1:{machines}"
    joined = {
        name: started(tmp_path, f"postgresql://postgres@{net}.1:{machines}", "--join", machine=name)
        for name, net in MACHINES.items()
    }
    driver = started(tmp_path, here, "--workers", "0", "--json")
    database = Database(here)
    deadline = time.monotonic() + 120
    while not _midway(database, joined["cwtest-a"].pid):
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.02)
    assert ip("link", "set", "cwtest-a", "down")
    time.sleep(4)
    assert ip("link", "set", "cwtest-a", "up")
    output, _ = driver.communicate(timeout=300)
    database.close()
    summary = json.loads(output)
    assert [joined[name].wait(120) for name in MACHINES] == [0, 0]
    monkeypatch.setattr(drivers, "POLL", 0.0)
    whole = driven(planned(TEXT, tmp_path), settings(tmp_path / "whole"), InTurn(Remembered()))
    assert driver.returncode == summary["exit_code"] == whole.totals.exit_code == 1
    assert summary["digest"] == came_to(whole)[0] and summary["done"] == summary["units"]
    shares = [
        int(process.communicate()[0].split("this worker did ")[1].split()[0])
        for process in joined.values()
    ]
    assert sum(shares) == summary["units"] and min(shares) > 0


def _midway(database: Database, process: int) -> bool:
    """Whether a worker has done a unit and holds another one now; the name of one that joined
    ends with its process.
    """
    try:
        rows = database.rows("SELECT worker, state FROM units WHERE state IN ('done', 'leased')")
    except Exception:  # the tables are not there yet
        return False
    return {state for worker, state in rows if worker.endswith(f"-{process}")} == {"done", "leased"}
