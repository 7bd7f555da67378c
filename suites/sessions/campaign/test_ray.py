"""Workers as tasks of a real Ray cluster on this machine: killed, replaced, and coming to the
same.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import ray_cluster
from benchmarks.ray_cluster import Cluster
from cachewitness.sessions.campaign import driver as drivers
from cachewitness.sessions.campaign.executors import TASK, Ray
from suites.support.campaigns import (
    InTurn,
    Remembered,
    came_to,
    driven,
    faulty,
    planned,
    settings,
    task_of,
)
from suites.support.checkout import PYTHONPATH

ROOT = Path(__file__).resolve().parents[3]
TEXT = faulty("ray")
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_USAGE_STATS_ENABLED": "0"}
pytestmark = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="needs the extra `cluster`: pip install 'cachewitness[cluster]'",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster of two nodes with a core each."""
    with ray_cluster.cluster(2, ENVIRONMENT) as made:
        yield made


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


def test_tasks_a_machine_and_the_driver_are_killed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, a node and the driver end by signal 9; the same command goes on and comes to
    what one process comes to.
    """
    (tmp_path / "c.toml").write_text(TEXT)
    chance = random.Random(1)
    killed = 0
    first = started(tmp_path, cluster.address)
    deadline = time.monotonic() + 240
    while killed < 3 and time.monotonic() < deadline and first.poll() is None:
        if alive := cluster.processes(TASK):
            killed += 1
            if killed == 2:
                cluster.kill_node()
                cluster.add()
            else:
                os.kill(chance.choice(alive), signal.SIGKILL)
        time.sleep(1.0)
    assert killed == 3 and first.poll() is None
    first.kill()
    first.communicate()
    second = started(tmp_path, cluster.address)
    out, _ = second.communicate(timeout=300)
    summary = json.loads(out)
    monkeypatch.setattr(drivers, "POLL", 0.0)
    whole = driven(planned(TEXT, tmp_path), settings(tmp_path / "whole"), InTurn(Remembered()))
    assert second.returncode == summary["exit_code"] == whole.totals.exit_code == 1
    assert summary["digest"] == came_to(whole)[0] and summary["done"] == summary["units"]


def test_a_unit_that_ends_every_worker_is_given_up(cluster: Cluster, tmp_path: Path) -> None:
    """Ray tries it so often that there are `attempts`, also where it takes too long."""
    made = planned(TEXT.replace("traces = 60", "traces = 2"), tmp_path)
    executor = Ray(cluster.address, attempts=2)
    try:
        executor.submit(task_of(made, 1, tmp_path, deadline=0.01))
        ended = []
        deadline = time.monotonic() + 240
        while not (ended := executor.wait(1.0)):
            assert time.monotonic() < deadline
    finally:
        executor.stop()
        executor._ray.shutdown()
    assert [(one.outcome, one.tries) for one in ended] == [(b"", 2)]
    assert ended[0].why.startswith("WorkerCrashedError")
