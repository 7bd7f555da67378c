"""Seeded faults of OpenVINO GenAI's own cache: blocks that a request resumes from hold something
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachewitness.engines.mutant import declared, mutant
from cachewitness_faults.openvino_genai.blocks import resumed_from

MIDDLE = 8
"""So many blocks in front of its end lies the middle of a window of 512 tokens."""
_OWN: dict[str, Any] = {
    "checker": "answers",
    "engines": ("openvino-genai",),
    "level": "answers",
    "anomaly": "answer-differs",
}


def another_prompts(tensor: Any, own: Sequence[int], other: Sequence[int]) -> None:
    """Put the blocks of another prompt into those of a request."""
    tensor[[*own[: len(other)]]] = tensor[[*other]]


def last_ones_stale(tensor: Any, own: Sequence[int], other: Sequence[int]) -> None:
    """Let the last two blocks hold what the two in front of them do."""
    two = min(2, len(own) // 2)
    tensor[[*own[len(own) - two :]]] = tensor[[*own[len(own) - 2 * two : len(own) - two]]]


def some_lost(tensor: Any, own: Sequence[int], other: Sequence[int]) -> None:
    """Empty two blocks in the middle of a window, of a short prompt the first ones."""
    at = max(len(own) - MIDDLE, 0)
    tensor[[*own[at : at + 2]]] = 0


@mutant(
    name="openvino-resumed-from-another-prompt", mirrors="openvino.genai#3722", group="I", **_OWN
)
def _foreign(engine: Any) -> None:
    """A request that resumes reads the blocks of another prompt."""
    resumed_from(engine, another_prompts)


@mutant(name="openvino-last-blocks-stale", mirrors="transformers#47708", group="G", **_OWN)
def _stale(engine: Any) -> None:
    """A request that resumes reads what lies two blocks in front, in place of the last two."""
    resumed_from(engine, last_ones_stale)


@mutant(name="openvino-blocks-lost", mirrors="vllm#36622", group="G", **_OWN)
def _lost(engine: Any) -> None:
    """Two of the blocks that a request resumes from are empty."""
    resumed_from(engine, some_lost)


MUTANTS = declared(globals())
FAULTS = {fault.name: fault for fault in MUTANTS}
