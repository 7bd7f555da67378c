"""A stand-in for vLLM's model: its tokens can be told from those of any prompt, and from one
another.
"""

from __future__ import annotations

from cachewitness_reference.vllm.request import Request


class Counting:
    """Generates 5000, 5001 and so on, and proposes no drafts."""

    def draft(self, request: Request, count: int) -> list[int]:
        """Return no drafts."""
        return []

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        """Return the next number."""
        return [5000 + request.num_output_tokens]
