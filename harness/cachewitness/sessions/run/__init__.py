"""Drives a trace through engine, worker, ledger and checkers, and keeps the traces that fail."""
