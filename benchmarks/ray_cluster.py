"""A Ray cluster of this machine, of several nodes that can be killed one by one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

STORE_BYTES = 100 << 20
START_SECONDS = 120.0


class Cluster:
    """A head and further nodes, of one core each. `address` is that of the head."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**environment, "RAY_USAGE_STATS_ENABLED": "0"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self._nodes: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        """Start a node, the first one as the head. Raises OSError if that does not come up."""
        head = not self._nodes
        where = ["--head", f"--port={self._port}", "--include-dashboard=false"]
        where += ["--disable-usage-stats", f"--temp-dir={self._folder}"]
        node = subprocess.Popen(
            [str(Path(sys.executable).parent / "ray"), "start", "--num-cpus=1", "--block"]
            + [f"--object-store-memory={STORE_BYTES}"]
            + (where if head else [f"--address={self.address}"]),
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._nodes.append(node)
        if head:
            self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._nodes[0].poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.1)
        raise OSError("the cluster did not come up")

    def kill_node(self) -> None:
        """Kill the last node by signal 9, whatever runs on it, as when a machine is lost."""
        self._kill(self._nodes.pop())

    def processes(self, title: str) -> list[int]:
        """Return the processes of the cluster whose command line begins so."""
        nodes = {node.pid for node in self._nodes}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                named = (entry / "cmdline").read_bytes().startswith(title.encode())
                if named and nodes.intersection(_above(int(entry.name))):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def end(self) -> None:
        """Kill all nodes."""
        while self._nodes:
            self.kill_node()

    def _kill(self, node: subprocess.Popen[bytes]) -> None:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def _above(pid: int) -> Iterator[int]:
    """Yield the processes that a process descends from."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


@contextmanager
def cluster(nodes: int, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Yield a cluster of so many nodes; it is ended with the block."""
    with tempfile.TemporaryDirectory(prefix="cw-ray-", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder), environment)
        try:
            for _ in range(nodes):
                made.add()
            yield made
        finally:
            made.end()
