"""Benchmarks: each a script that writes the page of its results under `docs/`."""
