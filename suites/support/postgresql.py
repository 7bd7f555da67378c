"""A real PostgreSQL server for tests, on a free port, in a folder of its own; ended with the
tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

USER = "postgres"
INSTALLED = "/usr/lib/postgresql"
_QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
"""A server of tests need not survive a loss of power."""


def programs() -> Path | None:
    """Return the folder with initdb and postgres; None if they are not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path(INSTALLED).glob("*/bin"), reverse=True)
    return next(
        (
            folder
            for folder in folders
            if (folder / "initdb").is_file() and (folder / "postgres").is_file()
        ),
        None,
    )


def missing() -> str:
    """Return why no server can be started and asked; empty if one can."""
    if find_spec("psycopg") is None:
        return "needs the extra `cluster`: pip install 'cachewitness[cluster]'"
    return "" if programs() else "needs PostgreSQL: apt-get install postgresql"


@contextmanager
def server(hosts: str = "127.0.0.1", encoding: str = "UTF8") -> Iterator[str]:
    """Yield the URL of a fresh server on the first of some addresses. As root, who is refused,
    it is run by `postgres`.
    """
    folder = programs()
    where = Path(tempfile.mkdtemp(prefix="cachewitness-postgresql-"))
    assert folder is not None
    user = USER if os.geteuid() == 0 else None
    if user:
        shutil.chown(where, user)
    data = where / "data"
    port = _free()
    common = {
        "user": user,
        "cwd": where,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    asked = [
        str(folder / "initdb"),
        "-D",
        str(data),
        "-U",
        USER,
        "-A",
        "trust",
        "--no-sync",
        "-E",
        encoding,
    ]
    subprocess.run(asked, check=True, env=environment, **common)  # type: ignore[call-overload]
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 10.0.0.0/8 trust\n")
    options = [
        word for setting in (*_QUICK, f"listen_addresses={hosts}") for word in ("-c", setting)
    ]
    command = [
        str(folder / "postgres"),
        "-D",
        str(data),
        "-p",
        str(port),
        "-k",
        str(where),
        *options,
    ]
    process = subprocess.Popen(command, env=environment, **common)  # type: ignore[call-overload]
    try:
        url = f"postgresql://{USER}@{hosts.split(',')[0]}:{port}/postgres"
        _wait(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGINT)  # the fast way: it waits for nobody
        process.wait(30)
        shutil.rmtree(where, ignore_errors=True)


def _free() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    import time

    import psycopg

    for _ in range(200):
        assert process.poll() is None, "the server ended"
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    pytest.fail("the server was not reached within ten seconds")
