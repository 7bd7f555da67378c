"""A page as a browser without a window shows it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or ""
QUIETLY = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ),
]


def seen(page: Path, profile: Path, *options: str, fragment: str = "") -> str:
    """Return a page as it stands when its scripts have run; nothing may be said on its console.
    `fragment` is what stands behind the `#` of its address.
    """
    address = page.as_uri() + (f"#{fragment}" if fragment else "")
    command = [CHROMIUM, *QUIETLY, *options, f"--user-data-dir={profile}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
