"""Faults of a device: tables and keys are right, and what is computed is not."""
