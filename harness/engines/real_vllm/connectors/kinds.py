"""What the harness asks of a connector of vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from harness.engines.real_vllm.connectors.copies import Copies
from harness.engines.real_vllm.connectors.tier import KeyNames, Memory


class Connector(Memory, Protocol):
    """A connector of vLLM's, with its scheduler side and its worker side."""

    names: KeyNames
    chunk: int
    """It serves prefixes of whole chunks of so many tokens."""
    fenced: bool
    """Its copies do not hold the device's blocks: a step that has such a block anew waits for them."""
    null: Sequence[int]
    """Pages of its memory that nobody owns."""

    def attach(self, pool: Any, copies: Copies) -> None:
        """Take the device's block pool, observed, and what stands in for the device's copies."""

    def work(self, output: Any, failing: Sequence[int]) -> Any:
        """Have the worker side do a step of the scheduler's; return what it tells the scheduler (`KVConnectorOutput`)."""
