"""The configurations that vLLM's own scheduler is run on beside its policy's: with options that the reference has not."""

from __future__ import annotations

from harness.trace import layouts
from harness.trace.configurations import Configuration


def further_configurations() -> list[Configuration]:
    """Return them; all are run at scheduler height."""
    full, window, unequal = (layouts.load(name) for name in ("full", "full-swa", "full-mamba-unequal"))
    three = layouts.load("full-swa-mamba")
    return [
        Configuration(full, {"num_speculative_tokens": 3, "async_depth": 1}),
        Configuration(window, {"retention_interval": 64, "use_eagle": True, "num_speculative_tokens": 2, "async_depth": 2}),
        Configuration(unequal, {"retention_interval": 32, "num_speculative_tokens": 3, "async_depth": 1}),
        Configuration(three, {"retention_interval": None, "use_eagle": True, "num_speculative_tokens": 3, "async_depth": 2}),
    ]
