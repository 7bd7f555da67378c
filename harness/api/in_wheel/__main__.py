"""Run the command line as `python -m cachewitness`: in a wheel, where that is a package, this file lies in it."""

from __future__ import annotations

from harness.cli import main

main()
