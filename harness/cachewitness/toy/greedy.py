"""An engine whose requests generate what the model says: a policy's scheduler, tensors, the
likeliest token.

Drafts, if the policy verifies any, are guessed from the request's own text: what followed the last
time that its last token stood there. A draft stands as long as it is what the model would have
said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from cachewitness.core.engine import Stepping
from cachewitness.core.events import StepBegin
from cachewitness.core.scripted import Sampled
from cachewitness.toy.call_recorder import Computed
from cachewitness.toy.model import Model
from cachewitness.toy.tensors import Tensors

NO_TIE = 1e9
"""The margin of logits that hold NaN or infinity: more than any near-tie, which would excuse
another token."""


class Choice(NamedTuple):
    """The likeliest token after a position, and how many logits it is ahead of the next one;
    `NO_TIE` if that is no number.
    """

    token: int
    margin: float


class GreedyEngine(Computed):
    """Runs requests of model tokens. `chosen[r]` are the choices that became tokens of r."""

    def __init__(self, engine: Stepping, model: Model, *, kernels: str = "torch") -> None:
        super().__init__(engine, Tensors(engine.header, model, kernels=kernels))
        self.chosen: dict[str, list[Choice]] = {}
        self._choices: dict[str, list[Choice]] = {}
        engine.sampler = self

    def compute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]
    ) -> None:
        """Run the tensors, and choose what may follow each of the step's requests."""
        self._choices = _choices(self.tensors.execute(begin, withdrawn, tokens))

    def sample(self, request: Sampled, drafts: list[int]) -> list[int]:
        """Return the drafts that stand, and one token more."""
        tokens: list[int] = []
        chosen = self.chosen.setdefault(request.request_id, [])
        for choice, guess in zip(self._choices[request.request_id], [*drafts, None], strict=True):
            chosen.append(choice)
            tokens.append(choice.token)
            if guess != choice.token:
                break
        return tokens

    def draft(self, request: Sampled, count: int) -> list[int]:
        """Guess what followed when the last token stood here before; nothing if it never did."""
        text = request.all_token_ids
        last = next((i for i in range(len(text) - 2, -1, -1) if text[i] == text[-1]), len(text))
        return text[last + 1 : last + 1 + count]


def _choices(logits: Mapping[str, object]) -> dict[str, list[Choice]]:
    """Return the choices after each position, for all requests with one trip to the host."""
    import torch

    if not logits:
        return {}
    rows: list[torch.Tensor] = list(logits.values())
    values, tokens = torch.cat(rows).topk(2)
    margins = (values[:, 0] - values[:, 1]).nan_to_num(nan=NO_TIE, posinf=NO_TIE)
    both: list[tuple[float, float]] = torch.stack(
        [tokens[:, 0].double(), margins.double()], dim=1
    ).tolist()
    choices = [Choice(int(token), margin) for token, margin in both]
    out = {}
    at = 0
    for r, row in zip(logits, rows, strict=True):
        count = row.shape[0]
        out[r] = choices[at : at + count]
        at += count
    return out
