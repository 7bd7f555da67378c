"""lm-eval's own client of servers (`local-completions`), which counts what each of its requests
restored.

lm-eval hands a completion's text on and drops the rest of the body, and of a server's refusal it
keeps the status alone. So the class that it registers is taken further where it meets the server: a
request carries the arm's salt and asks for tokens, what comes back is read for `usage` and tokens
as well, and a failure is repeated or told in the server's words. lm-eval still builds the requests
and their generation parameters, and has them under way together.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import msgspec
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

from cachewitness._util import http
from cachewitness.engines.answers import Answer, Ask, BackendError
from cachewitness.engines.retries import wait_s
from cachewitness.parity.scores.asking import Asking
from cachewitness.parity.scores.completion import ANSWER_MAX, EXTRAS, read
from cachewitness.parity.scores.context import Offer
from cachewitness.parity.scores.lm import asks_of

REFUSED = (400, 422)
"""How a server says that a field of a request is not for it."""


class CompletionsLM(LocalCompletionsAPI):  # type: ignore[misc]
    """`local-completions` for one arm; every answer is kept with what it restored."""

    def __init__(self, asking: Asking, server: Offer, url: str) -> None:
        super().__init__(
            base_url=f"{url}/v1/completions",
            model=server.model,
            num_concurrent=max(2, server.concurrent),
            max_retries=1,
            timeout=server.timeout,
            tokenized_requests=False,
            tokenizer_backend=None,
        )
        self._asking = asking
        self._server = server
        self._room = asyncio.Semaphore(server.concurrent)
        self._failed = False
        self._asks: dict[str, list[Ask]] = {}

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that answers each request; those that were answered before are not sent
        again.

        Raises BackendError if the server does not answer; what it answered before that is kept.
        Raises UsageError for a prompt that is longer than the server's context, if the server tells
        its length, before anything is asked.
        """
        asks = asks_of(requests, self._asking)
        missing = self._asking.missing(asks)
        self._server.context.prepare(missing)
        self._asking.begin(asks)
        by_id = {ask.id: request for ask, request in zip(asks, requests, strict=True)}
        for part in self._asking.parts(missing, len(missing), self._server.concurrent):
            sent = self._asking.led_to(part)
            self._server.context.prepare(sent)
            self._asks = {}
            for asked, ask in zip(part, sent, strict=True):
                self._asks.setdefault(asked.prompt, []).append(ask)
            super().generate_until([by_id[ask.id] for ask in part], disable_tqdm=disable_tqdm)
        return self._asking.texts(asks)

    async def amodel_call(
        self, messages: Sequence[str], *, gen_kwargs: Any = None, eos: Any = None, **_: Any
    ) -> list[str]:
        """Answer one request: send it, and keep what comes with what it restored.

        A server does not say which tier that came from. In an arm of the second tier it can have
        come from nowhere else: the server's own pools were reset, and the request's salt was not
        used since.
        """
        ask = self._asks[messages[0]].pop()
        own: Mapping[str, Any] = self._create_payload(
            self.create_message(messages),
            generate=True,
            gen_kwargs=copy.deepcopy(gen_kwargs),
            seed=self._seed,
            eos=eos,
        )
        payload = {**own, "prompt": self._server.context.prompt(ask)}
        async with self._room:
            ask, answer = await self._unless_failed(self._answered(ask, payload))
        if self._asking.arm.tier:
            answer = msgspec.structs.replace(answer, from_tier=answer.restored[""])
        self._asking.keep(ask, answer)
        return [answer.text]

    async def _unless_failed(
        self, answering: Coroutine[Any, Any, tuple[Ask, Answer]]
    ) -> tuple[Ask, Answer]:
        """Answer a request. Once one has failed the others are over: nobody waits for them, and
        one line is told, not many.
        """
        if self._failed:
            answering.close()
            raise asyncio.CancelledError
        try:
            return await answering
        except Exception:
            if self._failed:
                raise asyncio.CancelledError from None
            self._failed = True
            raise

    async def _answered(self, ask: Ask, payload: Mapping[str, Any]) -> tuple[Ask, Answer]:
        """Send a request until it is answered; return it as it was sent at last. Raises
        BackendError if it is not answered.

        What a failed attempt left in the cache must not warm the next one of a cold arm, so that
        has another salt.
        """
        arm = self._asking.arm
        first = ask
        for attempt in itertools.count(1):
            if attempt > 1 and arm.own_salts and not arm.warm:
                ask = msgspec.structs.replace(first, salt=f"{first.salt}.{attempt}")
            with_tokens = self._server.tells_tokens
            extras = EXTRAS if with_tokens else {}
            status, content, retry_after = await self._sent(
                ask, {**payload, "cache_salt": ask.salt, **extras}
            )
            if status == 200:
                return ask, read(content, ask.id)
            if with_tokens and status in REFUSED:
                self._server.tells_tokens = False
                continue
            wait = wait_s(attempt, status, retry_after)
            if wait is None:
                problem = (
                    f"the server answered {status}: {content}"
                    if status
                    else f"{self.base_url} does not answer ({content})"
                )
                raise BackendError(f"question {ask.id}: {problem}")
            await asyncio.sleep(wait)
        raise AssertionError("attempts end")

    async def _sent(self, ask: Ask, payload: Mapping[str, Any]) -> tuple[int, Any, str]:
        """Send a request once and return status, body and Retry-After; a broken connection is
        status 0, the body says how.
        """
        body = json.dumps(payload).encode()
        key = self._server.key
        try:
            reply = await http.post(
                self.base_url, body, key.headers, within=self.timeout, most=ANSWER_MAX
            )
            if reply.status != http.OK:
                later = reply.headers.get("Retry-After", "")
                return reply.status, key.error_text(reply.body), later
            return http.OK, reply.json(), ""
        except http.NoAnswer as error:
            if not error.late:
                return 0, str(error), ""
            raise BackendError(
                f"question {ask.id}: {self.base_url} does not answer within {self.timeout} s"
            ) from None
        except ValueError:
            raise BackendError(
                f"question {ask.id}: the server answered 200, but its body is no JSON"
            ) from None


register_model("cachewitness-completions")(CompletionsLM)
