"""A server as a backend: vLLM's, ours, any that speaks OpenAI's completions.

With every answer it must report how many tokens of the prompt came from its cache, in
`usage.prompt_tokens_details.cached_tokens` (vLLM: `--enable-prompt-tokens-details`; it leaves the
field out where nothing was cached, so an absent field counts as none, and a server that never sends
it restored nothing by any evidence).

A server cannot be opened anew for every arm. Its cold arms give every request a salt of its own
(`cache_salt`), or go to a second server of the same model that has no prefix cache.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from cachewitness._util import http
from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import Answer, Ask, Backend, BackendError, Opening
from cachewitness.engines.retries import wait_s
from cachewitness.engines.server_errors import base_of
from cachewitness.engines.server_key import NO_KEY, ServerKey
from cachewitness.parity.scores.asking import Asking
from cachewitness.parity.scores.completion import ANSWER_MAX, read
from cachewitness.parity.scores.context import TIMEOUT_S, Context, Offer, Post

LIST_TIMEOUT_S = 30
"""How long the list of models may take."""
REFUSES_KEY = (401, 403)
BODY_MAX = 1 << 16
"""Bytes of an error's body that are read."""


def forgets(post: Post, *, external: bool = False) -> bool:
    """Have a server forget its cached prefixes, and return whether it says that it did; an HTTP
    status alone is not believed. Raises BackendError if it does not say.
    """
    query = "?reset_external=true" if external else ""
    content = post(f"/reset_prefix_cache{query}", {}, "reset_prefix_cache")
    if content is None:
        raise BackendError(
            "reset_prefix_cache: the server does not say whether it forgot anything (no"
            " `success` in its body)"
        )
    return bool(isinstance(content, dict) and content.get("success"))


class RemoteBackend:
    """A server that answers prompts; `concurrent` of them at a time, each within `timeout`
    seconds, to whoever has its key.
    """

    def __init__(
        self,
        url: str,
        model: str,
        concurrent: int = 16,
        timeout: int = TIMEOUT_S,
        key: ServerKey = NO_KEY,
    ) -> None:
        self._key = key
        self.url = url
        self.timeout = timeout
        self.model = model
        self.name = f"{model} at {url}"
        self._concurrent = concurrent

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer every prompt, in the order asked. Raises BackendError if the server does not."""
        with ThreadPoolExecutor(self._concurrent) as pool:
            return list(pool.map(self._one, asks))

    def reset(self, *, external: bool = False) -> bool:
        """Make the server forget its cached prefixes."""
        return forgets(self.post, external=external)

    def versions(self) -> Mapping[str, str]:
        """Return the server's model and, if it tells, its version."""
        found = {"server": self.url, "model": self.model}
        try:
            reply = _content(
                _asked(f"{self.url}/version", None, self.timeout, self._key), self._key
            )
        except (http.NoAnswer, ValueError):
            return found
        return found | (
            {"engine": str(reply["version"])}
            if isinstance(reply, dict) and "version" in reply
            else {}
        )

    def close(self) -> None:
        """Do nothing: the server is somebody else's."""

    def _one(self, ask: Ask) -> Answer:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": 0.0,
        }
        body |= {"stop": list(ask.stop)} if ask.stop else {}
        body |= {"cache_salt": ask.salt} if ask.salt else {}
        return read(self.post("/v1/completions", body, f"question {ask.id}"), ask.id)

    def post(self, path: str, body: Mapping[str, Any], what: str) -> Any:
        """Send a body, again if what failed may pass, and return what comes back. Raises
        BackendError if nothing does.
        """
        for attempt in itertools.count(1):
            try:
                reply = _asked(f"{self.url}{path}", body, self.timeout, self._key)
                if reply.status == http.OK:
                    return _content(reply, self._key)
                wait = wait_s(attempt, reply.status, reply.headers.get("Retry-After", ""))
                words = self._key.error_text(reply.body[:BODY_MAX])
                problem = f"the server answered {reply.status}: {words}"
            except ValueError:
                raise BackendError(
                    f"{what}: the server answered 200, but its body is no JSON"
                ) from None
            except http.NoAnswer as error:
                wait = None if error.late else wait_s(attempt, 0)
                how = f"within {self.timeout} s" if error.late else f"({error})"
                problem = f"{self.url} does not answer {how}"
            if wait is None:
                raise BackendError(f"{what}: {problem}")
            time.sleep(wait)
        raise AssertionError("attempts end")


class Server:
    """The server that the user named, perhaps with a second one for the cold arms, as a run
    wants it.
    """

    def __init__(
        self,
        url: str,
        cold_url: str = "",
        model: str = "",
        concurrent: int = 16,
        timeout: int = TIMEOUT_S,
        key: ServerKey = NO_KEY,
    ) -> None:
        """Ask the servers for their models. Raises UsageError if one does not answer, or has not
        got the model.
        """
        self.url = base_of(url, "--base-url")
        self.cold_url = base_of(cold_url, "--cold-url") if cold_url else ""
        self.model, limit = model_at(self.url, model, "--base-url", key)
        if self.cold_url:
            _, cold_limit = model_at(self.cold_url, self.model, "--cold-url", key)
            limit = min(filter(None, (limit, cold_limit)), default=0)
        context = Context(
            RemoteBackend(self.url, self.model, timeout=timeout, key=key).post,
            self.model,
            limit,
            concurrent,
        )
        self.offer = Offer(self.model, concurrent, timeout, context, key)
        self.name = f"{self.model} at {self.url}"

    def open(self, opening: Opening) -> Backend:
        """Return the server for an arm. Raises UsageError for an arm that a server cannot be
        brought to.
        """
        for asked, arm in (
            (opening.preempt, "preempted"),
            (opening.drafts, "drafts` and `turns-drafts"),
            (opening.scarce, "scarce"),
        ):
            if asked:
                raise UsageError(
                    f"--arms: a server cannot be brought to that from outside; leave `{arm}` out"
                )
        return RemoteBackend(
            self._url(caching=opening.caching),
            self.model,
            self.offer.concurrent,
            self.offer.timeout,
            self.offer.key,
        )

    @property
    def lm(self) -> Callable[[Asking], Any]:
        """How lm-eval's own client of servers is made for an arm."""

        def make(asking: Asking) -> Any:
            from cachewitness.parity.scores.completions import CompletionsLM

            return CompletionsLM(asking, self.offer, self._url(caching=asking.arm.caching))

        return make

    def _url(self, *, caching: bool) -> str:
        return self.url if caching or not self.cold_url else self.cold_url


def model_at(url: str, model: str, option: str, key: ServerKey = NO_KEY) -> tuple[str, int]:
    """Return the model that the server is to answer with, the one named or its first, and its
    context's length, 0: not told.

    Raises UsageError if it tells none, or not to whoever has this key.
    """
    try:
        reply = _asked(f"{url}/v1/models", None, LIST_TIMEOUT_S, key)
        if reply.status in REFUSES_KEY:
            raise UsageError(
                f"{option}: {url} "
                + (
                    "refuses the key that --key names"
                    if key.value
                    else "wants a key: name the variable of the environment that holds it, --key"
                    " VARIABLE"
                )
            )
        found = _content(reply, key)
        listed = msgspec.convert(found, _Models).data
    except (http.NoAnswer, ValueError) as error:
        raise UsageError(
            f"{option}: {url} lists no models ({error}); is a server running there?"
        ) from None
    limits = {entry.id: entry.max_model_len or 0 for entry in listed}
    if (model and model not in limits) or not limits:
        raise UsageError(
            f"{option}: {url} has no model {model!r}; it has {', '.join(limits) or 'none'}"
        )
    name = model or listed[0].id
    return name, limits[name]


def end_of_sequence(url: str, key: ServerKey = NO_KEY) -> str:
    """Return the text that ends a sequence of the server's model, empty if the server does not say:
    vLLM's has `/tokenizer_info`, llama.cpp's `/props`.
    """
    for path in ("/tokenizer_info", "/props"):
        try:
            found = _got(f"{url}{path}", LIST_TIMEOUT_S, key)
            return msgspec.convert(found, _Ends).eos_token
        except (http.NoAnswer, ValueError):
            continue
    return ""


class _Ends(msgspec.Struct, frozen=True):
    eos_token: str = ""


class _Entry(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Entry]


def key_of(variable: str) -> ServerKey:
    """Return the key that a variable of the environment holds, none if no variable is named.

    Raises UsageError if it holds none.
    """
    return ServerKey.named(
        variable,
        f"--key: {variable} is no variable of the environment that holds a key; --key takes its"
        " name, not the key",
    )


def _asked(url: str, body: Mapping[str, Any] | None, timeout: int, key: ServerKey) -> http.Reply:
    """Return what the server answers; without a body to send it is a GET. Raises NoAnswer."""
    method = "GET" if body is None else "POST"
    data = None if body is None else msgspec.json.encode(body)
    most = ANSWER_MAX + 1
    return http.ask(method, url, data, key.headers, within=timeout, most=most, follow=True)


def _got(url: str, timeout: int, key: ServerKey) -> Any:
    """Return the decoded body that a GET is answered with. Raises NoAnswer and ValueError."""
    return _content(_asked(url, None, timeout, key), key)


def _content(reply: http.Reply, key: ServerKey) -> Any:
    """Return the decoded body of an answer, None if it is empty.

    Raises ValueError for another status than 200, and for a body that is no JSON, or larger than
    ANSWER_MAX.
    """
    if reply.status != http.OK:
        raise ValueError(f"it answers {reply.status}: {key.error_text(reply.body[:BODY_MAX])}")
    if len(reply.body) > ANSWER_MAX:
        raise ValueError(f"it sends more than {ANSWER_MAX:,} bytes")
    return reply.json()
