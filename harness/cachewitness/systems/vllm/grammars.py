"""Requests whose output follows a grammar: vLLM lets them wait until it is compiled, and others
overtake them.

The grammar here takes every token. What is tested is the wait, which a trace gives in steps and not
in seconds.

Sources: vLLM 0.29.0 to 0.33.0, `v1/request.py`; `v1/structured_output/request.py`;
`v1/core/sched/scheduler.py`, `_handle_blocked_waiting_request`.
"""

from __future__ import annotations

from typing import Any

from cachewitness.systems.vllm.source import Source


class AnyOutput:
    """A compiled grammar that everything follows."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Take tokens that were sampled."""
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the drafts that follow the grammar."""
        return tokens

    def is_terminated(self) -> bool:
        """Whether nothing more may come."""
        return False


class Grammars:
    """The grammars that are being compiled."""

    def __init__(self, source: Source) -> None:
        source.part("v1.structured_output.backend_types", "StructuredOutputGrammar").register(
            AnyOutput
        )  # 0.29 asserts it
        self._waiting = source.part("v1.request", "RequestStatus")[
            "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"
        ]
        self._left: dict[Any, int] = {}

    def compile(self, request: Any, steps: int) -> None:
        """Let a request wait for its grammar for so many steps. Raises RuntimeError if it does
        not wait for one.
        """
        if request.status != self._waiting:
            raise RuntimeError(
                f"{request.request_id} asks for a grammar, and its status is {request.status!s}"
            )
        self._left[request] = steps

    def step_begins(self) -> None:
        """Let a step go by."""
        for request, left in list(self._left.items()):
            self._left[request] = left - 1
            if left <= 0:
                request.structured_output_request.grammar = AnyOutput()
                del self._left[request]
