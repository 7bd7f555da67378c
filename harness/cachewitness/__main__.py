"""Run the command line as `python -m cachewitness`."""

from __future__ import annotations

from cachewitness.cli import main

main()
