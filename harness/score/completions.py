"""lm-eval's own client of servers (`local-completions`), which counts what each of its requests restored.

lm-eval hands a completion's text on and drops the rest of the body, so the class that it registers is taken further at the
three places where it meets the server: what is sent gets the arm's salt, what comes back is read for `usage` as well, and a
call knows which question it is for. The last goes through a context variable, since concurrent calls are tasks with contexts of
their own. Nothing else is changed: lm-eval makes the requests, limits how many are under way, and repeats those that fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
from aiohttp import ClientError, ClientResponseError
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

from harness.engines.answers import Ask, BackendError
from harness.score.asking import Asking
from harness.score.completion import read
from harness.score.lm import asks_of, prefixes

ATTEMPTS = 2
"""How often a request is sent before it counts as failed."""
_ASKED: ContextVar[Ask] = ContextVar("the question that this call is for")


class CompletionsLM(LocalCompletionsAPI):  # type: ignore[misc]
    """`local-completions` for one arm; every answer is kept with what it restored."""

    def __init__(self, asking: Asking, url: str, model: str, concurrent: int) -> None:
        super().__init__(
            base_url=f"{url}/v1/completions",
            model=model,
            num_concurrent=max(2, concurrent),
            max_retries=ATTEMPTS,
            tokenized_requests=False,
            tokenizer_backend=None,
        )
        self._asking = asking
        self._asks: dict[str, list[Ask]] = {}

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that answers each request; those that were answered before are not sent again.

        Raises BackendError if the server does not answer; what it answered before that is kept.
        """
        asks = asks_of(requests, self._asking)
        self._asking.begin(asks, prefixes(requests))
        missing = {ask.id for ask in self._asking.missing(asks)}
        waiting = [(request, ask) for request, ask in zip(requests, asks, strict=True) if ask.id in missing]
        self._asks = {}
        for _, ask in waiting:
            self._asks.setdefault(ask.prompt, []).append(ask)
        if waiting:
            super().generate_until([request for request, _ in waiting], disable_tqdm=disable_tqdm)
        return self._asking.texts(asks)

    async def amodel_call(self, session: Any, sem: Any, messages: Sequence[str], **options: Any) -> Any:
        """Send one request, knowing for which question; a server's failure becomes one line."""
        waiting = self._asks[messages[0]]
        ask = waiting.pop()
        _ASKED.set(ask)
        try:
            return await super().amodel_call(session, sem, messages, **options)
        except BaseException as error:
            waiting.append(ask)
            if isinstance(error, ClientResponseError):
                raise BackendError(f"question {ask.id}: the server answered {error.status} ({error.message})") from None
            if isinstance(error, ClientError | OSError | asyncio.TimeoutError):
                told = str(error) or type(error).__name__
                raise BackendError(f"question {ask.id}: {self.base_url} does not answer ({told})") from None
            raise

    def _create_payload(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._create_payload(*arguments, **options)
        return payload | {"cache_salt": _ASKED.get().salt}

    def parse_generations(self, outputs: Any, **_: Any) -> list[str]:
        """Return the text of an answer, and keep it with what it restored.

        A server does not say which tier that came from. In an arm of the second tier it can have come from nowhere else: the
        server's own pools were reset, and the request's salt was not used since.
        """
        ask = _ASKED.get()
        answer = read(outputs, ask.id)
        if self._asking.arm.tier:
            answer = msgspec.structs.replace(answer, from_tier=answer.restored[""])
        self._asking.keep(ask, answer)
        return [answer.text]


register_model("cachewitness-completions")(CompletionsLM)
