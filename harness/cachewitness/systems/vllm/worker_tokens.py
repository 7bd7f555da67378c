"""Which tokens vLLM's worker feeds the model: what its batch holds, kept by its own code.

A request comes to the worker with its prompt. What it generates the worker notes by itself
(`_bookkeeping_sync`), and the scheduler tells it again only where the request was out of the batch.
So a row goes wrong if the worker is not told, or does not listen: the pages are right, and what is
computed into them is not of the request's tokens.

With async scheduling the worker does not know what it sampled; its row has a placeholder, which the
device overwrites with the token of the step before (`_prepare_input_ids`). A placeholder anywhere
else is fed as it is.

Source: vLLM 0.33.0, `v1/worker/gpu_model_runner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from cachewitness.systems.vllm.source import Source

SINCE = (0, 33)
"""The oldest release whose notes of sampled tokens the adapter was written for."""
PLACEHOLDER = -1


class Mask:
    """What vLLM's runner has for a mask of its batch, a buffer on host and device: which rows
    sample nothing in a step.
    """

    def __init__(self, rows: list[bool]) -> None:
        import numpy

        self.np = numpy.array(rows, dtype=bool)


class FedTokens:
    """The tokens in a runner's batch."""

    def __init__(self, runner: Any, *, ahead: bool) -> None:
        self._runner = runner
        self._ahead = ahead
        """`ahead`: the next step is prepared before it is known what this one samples."""
        vars(runner)["_to_list"] = lambda sampled: sampled.tolist()

    def fed(
        self,
        counts: Mapping[str, int],
        drafts: Mapping[str, list[int]],
        requests: Mapping[str, Any],
    ) -> dict[str, list[int]]:
        """Return, by request whose row is not its tokens, what the step feeds of it; drafts are
        what they are told to be.
        """
        batch = self._runner.input_batch
        wrong = dict[str, list[int]]()
        for r, count in counts.items():
            row = batch.req_id_to_index[r]
            start = int(batch.num_computed_tokens_cpu[row])
            stop = start + count - len(drafts.get(r, ()))
            own = requests[r].all_token_ids
            tokens = batch.token_ids_cpu[row, start:stop].tolist()
            expected = list(own[start:stop])
            tokens = tokens[
                : len(expected)
            ]  # what a step in flight has still to sample nobody knows
            if tokens != expected and not self._overwritten(r, tokens, expected):
                wrong[r] = [max(token, 0) for token in tokens]
        return wrong

    def _overwritten(self, r: str, tokens: list[int], expected: list[int]) -> bool:
        """Whether the last token alone is wrong, and the device has the one that the step before
        sampled.
        """
        before = self._runner.input_batch.prev_req_id_to_index or {}
        return tokens[:-1] == expected[:-1] and tokens[-1:] == [PLACEHOLDER] and r in before

    def prepared(self, counts: Mapping[str, int]) -> None:
        """Where nobody waits for what is sampled, have the worker note placeholders for those
        who will sample.
        """
        if self._ahead:
            batch = self._runner.input_batch
            ends = {
                r: int(batch.num_computed_tokens_cpu[batch.req_id_to_index[r]]) + count
                for r, count in counts.items()
            }
            self._note(
                {r: [0] for r, end in ends.items() if end >= self._runner.requests[r].num_tokens}
            )

    def sampled(self, tokens: Mapping[str, list[int]]) -> None:
        """Have the worker note what a step has sampled."""
        if not self._ahead:
            self._note(tokens)

    def _note(self, tokens: Mapping[str, list[int]]) -> None:
        import torch

        runner = self._runner
        names = self._runner.input_batch.req_ids
        token_rows = [tokens.get(r) or [] for r in names]
        width = max((len(row) for row in token_rows), default=0)
        if not names or not width:
            return
        rows = torch.tensor([[*row, *[PLACEHOLDER] * (width - len(row))] for row in token_rows])
        vars(runner)["discard_request_mask"] = Mask([not row for row in token_rows])
        vars(runner.input_batch)["prev_sampled_token_ids"] = None
        sampled = SimpleNamespace(sampled_token_ids=rows, logprobs_tensors=None)
        runner._bookkeeping_sync(SimpleNamespace(num_scheduled_tokens={}), sampled, None, [], 0)


def tokens_of(source: Source, runner: Any, *, ahead: bool) -> FedTokens | None:
    """Return what follows the tokens of a runner; None for a release that it was not written
    for.
    """
    return None if source.is_before(SINCE) else FedTokens(runner, ahead=ahead)
