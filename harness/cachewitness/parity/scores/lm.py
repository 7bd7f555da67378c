"""lm-eval's side of an in-process engine: a model class whose answers come from an arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from cachewitness.engines.answers import Ask
from cachewitness.parity.scores.asking import Asking


class BackendLM(LM):  # type: ignore[misc]
    """A model of lm-eval over a Backend. Stop strings and truncation are the backend's duty."""

    def __init__(self, asking: Asking) -> None:
        super().__init__()
        self._asking = asking

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that answers each request."""
        asks = asks_of(requests, self._asking)
        self._asking.begin(asks)
        self._asking.ask_missing(asks)
        return self._asking.texts(asks)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> NoReturn:
        """Refuse: scores are of generated answers."""
        raise NotImplementedError("answers are generated; likelihoods are not compared here")

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> NoReturn:
        """Refuse: scores are of generated answers."""
        raise NotImplementedError("answers are generated; likelihoods are not compared here")


register_model("cachewitness")(BackendLM)


def asks_of(requests: Sequence[Any], asking: Asking) -> list[Ask]:
    """Return lm-eval's requests as questions of an arm, which learns what they share. Raises
    UsageError if they do not suit it.
    """
    asks = [asking.ask(request.doc_id, *request.args) for request in requests]
    asking.take(asks, prefixes(requests))
    return asks


def prefixes(requests: Sequence[Any]) -> list[str]:
    """Return the texts that several prompts begin with: the tenants' contexts, or what all
    prompts have in common.
    """
    contexts = [request.doc.get("context") or "" for request in requests]
    if all(
        context and request.args[0].startswith(context)
        for context, request in zip(contexts, requests, strict=True)
    ):
        return [*dict.fromkeys(contexts)]
    common = _common([request.args[0] for request in requests])
    return [common] if common else []


def _common(prompts: Sequence[str]) -> str:
    """Return what all texts begin with: what the first and the last in order have in common."""
    first = min(prompts)
    last = max(prompts)
    length = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[:length]
