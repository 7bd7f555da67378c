"""Hypothesis strategies for traces, layouts and prompts that share prefixes (extra `machines`)."""

from cachewitness.sessions.fuzz.strategies import configurations, layouts, prompts, traces

__all__ = ["configurations", "layouts", "prompts", "traces"]
