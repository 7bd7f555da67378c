"""Run the command line as `python -m harness.cli`."""

from __future__ import annotations

from harness.cli import main

main()
