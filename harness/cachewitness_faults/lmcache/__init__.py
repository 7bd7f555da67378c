"""LMCache."""
