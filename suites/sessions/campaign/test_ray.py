"""Workers as tasks of a real Ray cluster on this machine: killed, replaced, and coming to the
same.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cachewitness.sessions.campaign import driver as drivers
from cachewitness.sessions.campaign.executors import TASK
from suites.support.campaigns import InTurn, Remembered, came_to, driven, faulty, planned, settings
from suites.support.checkout import PYTHONPATH

ROOT = Path(__file__).resolve().parents[3]
TEXT = faulty("ray")
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_USAGE_STATS_ENABLED": "0"}
pytestmark = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="needs the extra `cluster`: pip install 'cachewitness[cluster]'",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a cluster of two cores; its processes are those of a session, which is ended whole."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ray = str(Path(sys.executable).parent / "ray")
    port = address.partition(":")[2]
    options = [
        "--num-cpus=2",
        f"--port={port}",
        "--include-dashboard=false",
        "--disable-usage-stats",
        "--block",
    ]
    options += [
        f"--temp-dir={tmp_path_factory.mktemp('ray')}",
        f"--object-store-memory={100 << 20}",
    ]
    head = subprocess.Popen(
        [ray, "start", "--head", *options],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                break
        assert head.poll() is None
        time.sleep(0.1)
    yield address
    os.killpg(head.pid, signal.SIGKILL)
    head.wait()


def started(folder: Path, address: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "cachewitness.cli",
        "campaign",
        "c.toml",
        "--json",
        "--ray",
        address,
        "--workers",
        "2",
    ]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def workers() -> list[int]:
    """Return the processes that are at a task."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(TASK.encode()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_tasks_and_the_driver_are_killed(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers and the driver end by signal 9; the same command goes on and comes to what one
    process comes to.
    """
    (tmp_path / "c.toml").write_text(TEXT)
    chance = random.Random(1)
    killed = 0
    first = started(tmp_path, cluster)
    deadline = time.monotonic() + 120
    while killed < 2 and time.monotonic() < deadline and first.poll() is None:
        if alive := workers():
            os.kill(chance.choice(alive), signal.SIGKILL)
            killed += 1
        time.sleep(1.0)
    assert killed == 2 and first.poll() is None
    first.kill()
    first.communicate()
    second = started(tmp_path, cluster)
    out, _ = second.communicate(timeout=300)
    summary = json.loads(out)
    monkeypatch.setattr(drivers, "POLL", 0.0)
    whole = driven(planned(TEXT, tmp_path), settings(tmp_path / "whole"), InTurn(Remembered()))
    assert second.returncode == summary["exit_code"] == whole.totals.exit_code == 1
    assert summary["digest"] == came_to(whole)[0] and summary["done"] == summary["units"]
