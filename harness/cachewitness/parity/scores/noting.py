"""A model of lm-eval that notes what lm-eval asks for, or answers likelihoods with what an arm
measured.

lm-eval builds the contexts and continuations, divides them into tokens and scores what comes back.
Between the two passes the harness asks for them in its own way, by which the cache is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from lm_eval.api.model import TemplateLM
from lm_eval.models.openai_completions import LocalCompletionsAPI

from cachewitness._util.errors import UsageError


class Wanted(NamedTuple):
    """One request of lm-eval: the document, by its place among those that are asked, the text and
    the tokens of its prompt, and the tokens whose likelihood it asks for; none: an answer.
    """

    doc: int
    text: str
    tokens: list[int]
    given: list[int]


Found = Callable[[Wanted], tuple[float, bool]]
"""The logarithm of the likelihood of what is wanted, and whether greedy decoding chooses it."""


class NotingLM(TemplateLM):  # type: ignore[misc]
    """A model of lm-eval over measured likelihoods; `wanted` are its requests in their order."""

    def __init__(
        self, tokens_of: Callable[[str], list[int]], found: Found = lambda wanted: (0.0, False)
    ) -> None:
        super().__init__()
        self._tokens_of = tokens_of
        self._found = found
        self._docs: list[int] = []
        self.wanted: list[Wanted] = []

    @property
    def eot_token_id(self) -> int:
        """Refuse: it is what lm-eval puts in place of an empty context."""
        raise UsageError(
            "the task asks for likelihoods behind an empty context; there nothing can be restored"
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return a text as tokens of the server."""
        return self._tokens_of(string)

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the likelihood of every continuation. lm-eval divides it from its context."""
        self._docs = [request.doc_id for request in requests]
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        wanted = [
            Wanted(doc, context.rstrip(), tokens, given)
            for doc, ((context, _), tokens, given) in zip(self._docs, requests, strict=True)
        ]
        self.wanted += wanted
        return [self._found(one) for one in wanted]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Note the prompts; answers are not scored here."""
        for request in requests:
            text = request.args[0]
            self.wanted.append(Wanted(request.doc_id, text, self._tokens_of(text), []))
        return [""] * len(requests)

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Refuse: there is no prompt in front of what is asked for."""
        raise NotImplementedError("likelihoods of whole texts have no prompt to restore")


def body_of(model: str, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the request by which lm-eval's `local-completions` asks for likelihoods."""
    own = SimpleNamespace(model=model)
    body: dict[str, Any] = LocalCompletionsAPI._create_payload(own, [*tokens], generate=False)
    return body


def read(body: Any, context: int) -> tuple[float, bool]:
    """Read an answer as lm-eval does. Raises whatever that raises."""
    ((likelihood, greedy),) = LocalCompletionsAPI.parse_logprobs(body, ctxlens=[context])
    return likelihood, greedy
