"""Writes what an engine did as a pytest file that needs vLLM alone."""
