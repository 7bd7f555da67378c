"""An engine whose requests generate what the model says: the reference's scheduler, tensors, the likeliest token.

Drafts, if the policy verifies any, are guessed from the request's own text: what followed the last time that its last token
stood there. A draft stands as long as it is what the model would have said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from harness.engines.manager_height import ManagerHeight
from harness.engines.scheduler_height import SchedulerHeight
from harness.history import Event, StepBegin
from harness.toy.model import Model
from harness.toy.tensors import Tensors
from harness.trace import Op
from reference_impl.vllm.config import KVCacheConfig
from reference_impl.vllm.request import Request


class Choice(NamedTuple):
    """The likeliest token after a position, and how far (in logits) it is ahead of the next one; 0 if that is no number."""

    token: int
    margin: float


class GreedyEngine(SchedulerHeight):
    """Runs requests of model tokens. `chosen[r]` are the choices that became tokens of r."""

    def __init__(self, engine: ManagerHeight, config: KVCacheConfig, model: Model) -> None:
        super().__init__(engine.header, config, engine.manager, engine.new_request, sampler=self, device=self)
        self.tensors = Tensors(self.header, model)
        self.chosen: dict[str, list[Choice]] = {}
        self._choices: dict[str, list[Choice]] = {}
        self._followed = 0

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events."""
        self._followed = 0
        events = super().apply(op)
        self._follow()
        return events

    def execute(self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]) -> None:
        """Carry a step out and choose what may follow each of its requests."""
        self._follow()
        logits = self.tensors.execute(begin, withdrawn, tokens)
        self.tensors.settle(begin.step)
        self._choices = _choices(logits)

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        """Return the drafts that stand, and one token more."""
        tokens: list[int] = []
        chosen = self.chosen.setdefault(request.request_id, [])
        for choice, guess in zip(self._choices[request.request_id], [*drafts, None], strict=True):
            chosen.append(choice)
            tokens.append(choice.token)
            if guess != choice.token:
                break
        return tokens

    def draft(self, request: Request, count: int) -> list[int]:
        """Guess what followed when the last token stood here before; nothing if it never did."""
        text = request.all_token_ids
        last = next((i for i in range(len(text) - 2, -1, -1) if text[i] == text[-1]), len(text))
        return text[last + 1 : last + 1 + count]

    def _follow(self) -> None:
        events = self.manager.events[self._followed :]
        self._followed += len(events)
        self.tensors.follow(events)


def _choices(logits: Mapping[str, object]) -> dict[str, list[Choice]]:
    """Return the choices after each position, for all requests with one trip to the host."""
    import torch

    if not logits:
        return {}
    rows: list[torch.Tensor] = list(logits.values())
    values, tokens = torch.cat(rows).topk(2)
    margins = (values[:, 0] - values[:, 1]).nan_to_num().tolist()
    choices = [Choice(token, margin) for token, margin in zip(tokens[:, 0].tolist(), margins, strict=True)]
    out, at = {}, 0
    for r, row in zip(logits, rows, strict=True):
        out[r] = choices[at : at + len(row)]
        at += len(row)
    return out
